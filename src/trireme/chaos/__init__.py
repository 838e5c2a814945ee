"""Faults on purpose: a run is broken in a known way, and what became of it is compared with the unbroken one."""

from trireme.chaos.drill import FAULTS, Drill, matrix, parse_drill
from trireme.chaos.experiment import Bench, Finding, carry_out, run_unbroken
from trireme.chaos.launched import Launched, start_launch
from trireme.chaos.table import format_table
from trireme.chaos.tiny_run import TINY_SETTINGS, lay_out_tiny
from trireme.chaos.weights import same_weights

__all__ = [
    "FAULTS",
    "TINY_SETTINGS",
    "Bench",
    "Drill",
    "Finding",
    "Launched",
    "carry_out",
    "format_table",
    "lay_out_tiny",
    "matrix",
    "parse_drill",
    "run_unbroken",
    "same_weights",
    "start_launch",
]
