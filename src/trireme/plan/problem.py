"""Problem: what is to be trained on what, with all about the layout left open but what was fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trireme.plan.framework import TRIREME, Framework
from trireme.plan.layout import Layout
from trireme.plan.legality import Attention, ModelFacts
from trireme.plan.legality_facts import facts_of_graph
from trireme.plan.workload import KernelSet, OptimizerName, PrecisionName, Workload

if TYPE_CHECKING:
    from trireme.cluster import Cluster
    from trireme.graph import ModelGraph


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a search is asked.

    ``fix`` holds settings that every layout must have, by the keys of a layout (see ``parse_wish``); ``dp`` is the
    product of both data-parallel degrees, ``microbatch_seqs`` the sequences of a micro-batch. ``may_offload`` allows
    what layers keep to wait in host memory.
    """

    model: ModelGraph
    cluster: Cluster
    global_batch_seqs: int
    seq_len: int
    source_len: int | None = None
    precision: PrecisionName = "bf16"
    optimizer: OptimizerName = "adamw"
    kernels: KernelSet = "fused"
    framework: Framework = TRIREME
    attention: Attention | None = None
    may_offload: bool = False
    fix: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, layout: Layout, **settings: Any) -> Workload:
        """Give the workload of one layout."""
        return Workload(
            model=self.model,
            cluster=self.cluster,
            layout=layout,
            global_batch_seqs=self.global_batch_seqs,
            seq_len=self.seq_len,
            source_len=self.source_len,
            precision=self.precision,
            optimizer=self.optimizer,
            kernels=self.kernels,
            framework=self.framework,
            **settings,
        )

    def facts(self) -> ModelFacts:
        """Give what the table of legality asks."""
        return facts_of_graph(
            self.model,
            seq_len=self.seq_len,
            attention=self.attention,
            global_batch_seqs=self.global_batch_seqs,
            ranks=self.cluster.num_ranks,
            ranks_per_node=self.cluster.ranks_per_node,
        )

    def allows(self, key: str, value: object) -> bool:
        """Whether a setting is open, or fixed to this."""
        return key not in self.fix or self.fix[key] == value
