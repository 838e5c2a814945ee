"""What can be combined, and what it costs: degrees that don't come out even, copies, words without effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trireme.plan.layout import Layout
from trireme.plan.legality import ModelFacts, Values, head_ranks, say_head_ranks
from trireme.plan.simulate import one_f_one_b_utilisation
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCost:
    """Something allowed that costs; ``extra_ratio`` is how much more of what the sentence names."""

    rule: str
    extra_ratio: float
    values: Values

    @property
    def reason(self) -> str:
        """What it costs, in the user's language."""
        return say(f"layout.cost_{self.rule}", extra=f"{self.extra_ratio:.1%}", **self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """One row of what is allowed and costs: ``extra`` gives the ratio and the values of its sentence, or None."""

    id: str
    extra: Callable[[Layout, ModelFacts], tuple[float, Values] | None]


def layout_costs(layout: Layout, facts: ModelFacts) -> list[LayoutCost]:
    """Give what the layout pays for degrees that don't come out even, and what in it has no effect."""
    found = ((rule, rule.extra(layout, facts)) for rule in COST_RULES)
    return [LayoutCost(rule=rule.id, extra_ratio=cost[0], values=cost[1]) for rule, cost in found if cost is not None]


def _kv_replicated(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
    heads = facts.num_kv_heads
    if heads is None or head_ranks(layout) <= heads:
        return None
    return head_ranks(layout) / heads - 1, {"said": say_head_ranks(layout), "heads": heads}


def _uneven(size: int | None, parts: int) -> float | None:
    """How much more the largest part has than an even one, or None."""
    return None if size is None or size % parts == 0 else -(-size // parts) * parts / size - 1


def _uneven_by(name: str, *, key: str) -> Callable[[Layout, ModelFacts], tuple[float, Values] | None]:
    def extra(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
        size, parts = getattr(facts, name), getattr(layout, key)
        ratio = _uneven(size, parts)
        return None if ratio is None else (ratio, {"size": size, "parts": parts})

    return extra


def _uneven_micro(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
    seqs = None if facts.global_batch_seqs is None else facts.global_batch_seqs // layout.dp
    ratio = _uneven(seqs, layout.num_microbatches) if seqs and seqs >= layout.num_microbatches else None
    return None if ratio is None else (ratio, {"size": seqs, "parts": layout.num_microbatches})


def _not_full(layout: Layout, _: ModelFacts) -> tuple[float, Values] | None:
    m = layout.num_microbatches
    if m >= layout.pp:
        return None
    utilisation = one_f_one_b_utilisation(pp=layout.pp, num_microbatches=m)
    return 1 / utilisation - 1, {"pp": layout.pp, "micro": m, "utilisation": f"{utilisation:.0%}"}


def _gathers(layout: Layout, _: ModelFacts) -> tuple[float, Values] | None:
    if layout.zero < 3 or layout.dp_shard == 1 or layout.num_microbatches == 1:
        return None
    return layout.num_microbatches - 1.0, {"gathers": 2 * layout.num_microbatches}


def _tp_across_nodes(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
    if facts.ranks_per_node is None or facts.ranks_per_node % layout.tp == 0:
        return None
    return 0.0, {"tp": layout.tp, "ranks_per_node": facts.ranks_per_node}


def _cp_unbalanced(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
    """Causal work is even where each rank has an early and a late piece of the sequence."""
    if facts.seq_len is None or layout.cp == 1 or layout.cp_kind == "ulysses" or facts.seq_len % (2 * layout.cp) == 0:
        return None
    return 1.0 - 1 / layout.cp, {"seq_len": facts.seq_len, "cp": layout.cp}


def _no_effect(layout: Layout, _: ModelFacts) -> tuple[float, Values] | None:
    idle = [
        word
        for word, is_idle in (
            ("sp (tp = 1)", layout.sp and layout.tp == 1),
            (f"zero{layout.zero} (dp_shard = 1)", layout.zero > 0 and layout.dp_shard == 1),
            (f"cp_kind = {layout.cp_kind} (cp = 1)", layout.cp_kind != "allgather" and layout.cp == 1),
            (f"schedule = {layout.schedule} (pp = 1)", layout.schedule != "1f1b" and layout.pp == 1),
        )
        if is_idle
    ]
    return (0.0, {"words": ", ".join(idle)}) if idle else None


COST_RULES: tuple[CostRule, ...] = (
    CostRule(id="kv_replicated", extra=_kv_replicated),
    CostRule(id="uneven_vocab", extra=_uneven_by("vocab_size", key="tp")),
    CostRule(id="uneven_ffn", extra=_uneven_by("d_ffn", key="tp")),
    CostRule(id="uneven_layers", extra=_uneven_by("num_layers", key="num_stages")),
    CostRule(id="uneven_micro", extra=_uneven_micro),
    CostRule(id="not_full", extra=_not_full),
    CostRule(id="gathers", extra=_gathers),
    CostRule(id="tp_across_nodes", extra=_tp_across_nodes),
    CostRule(id="cp_unbalanced", extra=_cp_unbalanced),
    CostRule(id="no_effect", extra=_no_effect),
)
"""What is allowed and costs, or does nothing."""
