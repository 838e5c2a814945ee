"""Shares of the peak: MFU counts what the model needs, HFU what the hardware did, each under a named convention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from trireme.plan.time_place import Place

if TYPE_CHECKING:
    from trireme.graph import AttentionCount, ModelGraph
    from trireme.plan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopShares:
    """Shares of the accelerators' 16-bit peak, and the formulas that gave them."""

    mfu: float
    hfu: float
    formula: str
    model_flops: float


def flop_shares(workload: Workload, place: Place, *, step_s: float, count: AttentionCount = "full") -> FlopShares:
    """Give both shares for a step that takes ``step_s``.

    ``full`` attention is what most published figures count (Chowdhery et al. 2022, PaLM, appendix B).
    """
    products, attention, pixels = _forward_flops(
        _Graph(workload.model), workload.seq_len, workload.source_len or 0, count
    )
    seqs = workload.global_batch_seqs
    model_flops = seqs * (3.0 * (products + attention) - pixels)
    if workload.adapters_only:
        model_flops *= 2 / 3
    repeated = seqs * _repeated_share(workload) * (products + attention)
    if all(workload.recompute_of(layer) == "selective" for layer in range(workload.model.num_layers)):
        repeated = seqs * (attention if workload.framework.repeats == "attention" else 0.5 * (products + attention))
    peak = workload.cluster.accelerator.peak_flops_per_s[place.wide] * workload.layout.world_size
    formula = (
        f"3 * (2 * rows * inner * outer + 2 * pairs * H * (K_qk + K_v)) / (step_s * ranks * {place.wide} peak), "
        f"{count} pairs"
    )
    return FlopShares(
        mfu=model_flops / (step_s * peak),
        hfu=(model_flops + repeated) / (step_s * peak),
        formula=formula,
        model_flops=model_flops,
    )


def _repeated_share(workload: Workload) -> float:
    num_layers = workload.model.num_layers
    return sum(workload.recompute_of(layer) == "full" for layer in range(num_layers)) / num_layers


class _Graph:
    """A graph by identity, for a cache: comparing graphs would read all of them."""

    __slots__ = ("graph",)

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Graph) and self.graph is other.graph


@lru_cache(maxsize=4096)
def _forward_flops(key: _Graph, seq_len: int, source_len: int, count: AttentionCount) -> tuple[float, float, float]:
    from trireme.graph import MicroBatch, count_model_flops

    batch = MicroBatch(seqs=1, seq_len=seq_len, source_len=source_len or None)
    flops = count_model_flops(key.graph, batch, count=count)
    return float(flops.products), float(flops.attention), float(flops.input_products)
