"""One rank of any layout on a laptop: its memory and what it sends, from the code that would really run."""

from trireme.simulate.collective import CollectiveCounter
from trireme.simulate.ledger import PARTS, Ledger, Part, Peak
from trireme.simulate.measure import Measurement, measure
from trireme.simulate.report import report_json, report_lines
from trireme.simulate.run import Simulated, Simulation, build_optimizer, simulate_rank
from trireme.simulate.world import World

__all__ = [
    "PARTS",
    "CollectiveCounter",
    "Ledger",
    "Measurement",
    "Part",
    "Peak",
    "Simulated",
    "Simulation",
    "World",
    "build_optimizer",
    "measure",
    "report_json",
    "report_lines",
    "simulate_rank",
]
