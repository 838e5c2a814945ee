"""What the table of legality asks, read off a model's graph."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from trireme.plan.legality import Attention, ModelFacts

if TYPE_CHECKING:
    from trireme.graph import ModelGraph


def facts_of_graph(
    graph: ModelGraph,
    *,
    seq_len: int | None = None,
    attention: Attention | None = None,
    global_batch_seqs: int | None = None,
    ranks: int | None = None,
    ranks_per_node: int | None = None,
) -> ModelFacts:
    """Give the facts of a model: where layers differ, what divides all of them.

    Feed-forward widths and biases of attention are not in the graph as such, so rows on them need ``attention``
    from the caller or stay unjudged.
    """
    ops = [op for section in graph.sections() for op in section.block.ops]
    attentions = [op.attention for op in ops if op.attention is not None]
    experts = gcd(*(op.experts.num_experts for op in ops if op.experts is not None))
    return ModelFacts(
        num_layers=graph.num_layers,
        num_heads=gcd(*(shape.heads for shape in attentions)) or None,
        num_kv_heads=gcd(*(shape.kv_heads for shape in attentions)) or None,
        vocab_size=graph.vocab_size or None,
        num_experts=experts,
        seq_len=seq_len,
        attention=attention,
        global_batch_seqs=global_batch_seqs,
        ranks=ranks,
        ranks_per_node=ranks_per_node,
    )
