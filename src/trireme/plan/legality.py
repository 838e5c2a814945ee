"""What can't be combined, and what can at a cost: one table for planner and executor, each row with its reason.

A row is judged where its facts are known; a fact that is None is not guessed. The reason of row ``heads`` is the
sentence ``layout.rule_heads`` of the catalogue (``layout.cost_...`` for the rows that only cost).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trireme.plan.layout import Layout
from trireme.plan.simulate import one_f_one_b_utilisation
from trireme.words import say

Attention = Literal["plain", "biased", "recurrent"]
"""How positions meet: softmax attention, with a bias per head and distance (ALiBi), or a state carried along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the table asks of model, data and machine; None is unknown.

    ``num_experts`` 0 is a model without any. ``global_batch_seqs`` is given where every rank must have the same
    number of sequences; who can run unequal ones leaves it out.
    """

    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    d_ffn: int | None = None
    vocab_size: int | None = None
    num_experts: int | None = None
    seq_len: int | None = None
    attention: Attention | None = None
    global_batch_seqs: int | None = None
    ranks: int | None = None
    ranks_per_node: int | None = None


Values = Mapping[str, Any]
"""What fills in the sentence of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A row that a layout breaks; ``keys`` are the settings that can mend it, the likeliest first."""

    rule: str
    keys: tuple[str, ...]
    values: Values

    @property
    def reason(self) -> str:
        """Why, in the user's language."""
        return say(f"layout.rule_{self.rule}", **self.values)


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
class Rule:
    """One row of what is refused: ``broken`` gives the values of its sentence, or None."""

    id: str
    keys: tuple[str, ...]
    broken: Callable[[Layout, ModelFacts], Values | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRule:
    """One row of what is allowed and costs: ``extra`` gives the ratio and the values of its sentence, or None."""

    id: str
    extra: Callable[[Layout, ModelFacts], tuple[float, Values] | None]


def check_layout(layout: Layout, facts: ModelFacts) -> list[Violation]:
    """Give every row that the layout breaks; none means that it can run."""
    found = ((rule, rule.broken(layout, facts)) for rule in RULES)
    return [Violation(rule=rule.id, keys=rule.keys, values=values) for rule, values in found if values is not None]


def layout_costs(layout: Layout, facts: ModelFacts) -> list[LayoutCost]:
    """Give what the layout pays for degrees that don't come out even, and what in it has no effect."""
    found = ((rule, rule.extra(layout, facts)) for rule in COST_RULES)
    return [LayoutCost(rule=rule.id, extra_ratio=cost[0], values=cost[1]) for rule, cost in found if cost is not None]


def head_ranks(layout: Layout) -> int:
    """Ranks that attention heads are dealt out to: tp, and cp too where it exchanges heads for positions."""
    return layout.tp * layout.cp if layout.cp_kind == "ulysses" else layout.tp


def _said_head_ranks(layout: Layout) -> str:
    if layout.cp_kind == "ulysses" and layout.cp > 1:
        return f"tp * cp = {layout.tp} * {layout.cp}"
    return f"tp = {layout.tp}"


def _world(layout: Layout, facts: ModelFacts) -> Values | None:
    if facts.ranks is None or layout.world_size == facts.ranks:
        return None
    return {"layout": str(layout), "world": layout.world_size, "ranks": facts.ranks}


def _expert_ranks(layout: Layout, _: ModelFacts) -> Values | None:
    ranks = layout.dp_shard * layout.cp * layout.tp
    return {"ep": layout.ep, "ranks": ranks} if ranks % layout.ep else None


def _experts(layout: Layout, facts: ModelFacts) -> Values | None:
    if facts.num_experts is None or layout.ep == 1 or (facts.num_experts and facts.num_experts % layout.ep == 0):
        return None
    return {"ep": layout.ep, "experts": facts.num_experts}


def _stages(layout: Layout, facts: ModelFacts) -> Values | None:
    if facts.num_layers is None or layout.num_stages <= facts.num_layers:
        return None
    return {"pp": layout.pp, "vp": layout.vp, "stages": layout.num_stages, "layers": facts.num_layers}


def _stages_per_rank(layout: Layout, _: ModelFacts) -> Values | None:
    allowed = {"1f1b": "1", "zb": "1", "zbv": "2"}.get(layout.schedule)
    if layout.schedule == "interleaved" and layout.vp < 2:
        allowed = ">= 2"
    elif allowed is None or allowed == str(layout.vp):
        return None
    return {"schedule": layout.schedule, "allowed": allowed, "vp": layout.vp}


def _interleaved_few(layout: Layout, _: ModelFacts) -> Values | None:
    if layout.schedule != "interleaved" or layout.num_microbatches >= layout.pp:
        return None
    return {"pp": layout.pp, "micro": layout.num_microbatches}


def _zero_bubble_reshard(layout: Layout, _: ModelFacts) -> Values | None:
    if layout.schedule not in ("zb", "zbv") or layout.zero < 3 or layout.dp_shard == 1:
        return None
    return {"schedule": layout.schedule}


def _zero_bubble_recompute(layout: Layout, _: ModelFacts) -> Values | None:
    if layout.schedule not in ("zb", "zbv") or layout.recompute in ("none", "auto"):
        return None
    return {"schedule": layout.schedule, "recompute": layout.recompute}


def _heads(layout: Layout, facts: ModelFacts) -> Values | None:
    if facts.num_heads is None or facts.num_heads % head_ranks(layout) == 0:
        return None
    return {"said": _said_head_ranks(layout), "heads": facts.num_heads}


def _kv_heads(layout: Layout, facts: ModelFacts) -> Values | None:
    ranks, heads = head_ranks(layout), facts.num_kv_heads
    if heads is None or heads % ranks == 0 or ranks % heads == 0:
        return None
    return {"said": _said_head_ranks(layout), "heads": heads}


def _narrow(layout: Layout, facts: ModelFacts) -> Values | None:
    """Uneven parts are fine, empty ones are not."""
    for name in ("d_ffn", "vocab_size"):
        size = getattr(facts, name)
        if size is not None and size < layout.tp:
            return {"tp": layout.tp, "name": name, "size": size}
    return None


def _sequence_tp(layout: Layout, facts: ModelFacts) -> Values | None:
    parts = layout.cp * layout.tp
    if facts.seq_len is None or not layout.sp or layout.tp == 1 or facts.seq_len % parts == 0:
        return None
    return {"seq_len": facts.seq_len, "parts": parts, "near": _multiples(facts.seq_len, parts)}


def _sequence_cp(layout: Layout, facts: ModelFacts) -> Values | None:
    if facts.seq_len is None or facts.seq_len % layout.cp == 0:
        return None
    return {"seq_len": facts.seq_len, "cp": layout.cp, "near": _multiples(facts.seq_len, layout.cp)}


def _cp_recurrent(layout: Layout, facts: ModelFacts) -> Values | None:
    return {"cp": layout.cp} if layout.cp > 1 and facts.attention == "recurrent" else None


def _ring_biased(layout: Layout, facts: ModelFacts) -> Values | None:
    return {} if layout.cp > 1 and layout.cp_kind == "ring" and facts.attention == "biased" else None


def _batch_dp(layout: Layout, facts: ModelFacts) -> Values | None:
    batch = facts.global_batch_seqs
    if batch is None or batch % layout.dp == 0:
        return None
    return {"dp": layout.dp, "batch": batch, "near": _multiples(batch, layout.dp)}


def _batch_micro(layout: Layout, facts: ModelFacts) -> Values | None:
    """A micro-batch may be smaller than another, not empty."""
    if facts.global_batch_seqs is None or facts.global_batch_seqs // layout.dp >= layout.num_microbatches:
        return None
    return {"batch": facts.global_batch_seqs, "dp": layout.dp, "micro": layout.num_microbatches}


def _multiples(size: int, part: int) -> str:
    below = size // part * part
    return f"{below} / {below + part}" if below else str(part)


RULES: tuple[Rule, ...] = (
    Rule(id="world", keys=("dp", "tp", "pp", "cp"), broken=_world),
    Rule(id="stages_per_rank", keys=("vp", "schedule"), broken=_stages_per_rank),
    Rule(id="stages", keys=("vp", "pp"), broken=_stages),
    Rule(id="interleaved_few", keys=("micro", "schedule"), broken=_interleaved_few),
    Rule(id="zero_bubble_reshard", keys=("zero", "schedule"), broken=_zero_bubble_reshard),
    Rule(id="zero_bubble_recompute", keys=("recompute", "schedule"), broken=_zero_bubble_recompute),
    Rule(id="heads", keys=("tp", "cp", "cp_kind"), broken=_heads),
    Rule(id="kv_heads", keys=("tp", "cp", "cp_kind"), broken=_kv_heads),
    Rule(id="narrow", keys=("tp",), broken=_narrow),
    Rule(id="sequence_cp", keys=("cp",), broken=_sequence_cp),
    Rule(id="sequence_tp", keys=("sp", "tp", "cp"), broken=_sequence_tp),
    Rule(id="cp_recurrent", keys=("cp",), broken=_cp_recurrent),
    Rule(id="ring_biased", keys=("cp_kind",), broken=_ring_biased),
    Rule(id="experts", keys=("ep",), broken=_experts),
    Rule(id="expert_ranks", keys=("ep",), broken=_expert_ranks),
    Rule(id="batch_dp", keys=("dp", "tp", "pp"), broken=_batch_dp),
    Rule(id="batch_micro", keys=("micro", "pp", "dp"), broken=_batch_micro),
)
"""What is refused, coarse rows first."""


def _kv_replicated(layout: Layout, facts: ModelFacts) -> tuple[float, Values] | None:
    heads = facts.num_kv_heads
    if heads is None or head_ranks(layout) <= heads:
        return None
    return head_ranks(layout) / heads - 1, {"said": _said_head_ranks(layout), "heads": heads}


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
