"""What can't be combined: one table for planner and executor, each row with its reason.

A row is judged where its facts are known; a fact that is None is not guessed. The reason of row ``heads`` is the
sentence ``layout.rule_heads`` of the catalogue. What is allowed at a cost stands in ``legality_cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trireme.plan.layout import Layout
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
class Rule:
    """One row of what is refused: ``broken`` gives the values of its sentence, or None."""

    id: str
    keys: tuple[str, ...]
    broken: Callable[[Layout, ModelFacts], Values | None]


def check_layout(layout: Layout, facts: ModelFacts) -> list[Violation]:
    """Give every row that the layout breaks; none means that it can run."""
    found = ((rule, rule.broken(layout, facts)) for rule in RULES)
    return [Violation(rule=rule.id, keys=rule.keys, values=values) for rule, values in found if values is not None]


def head_ranks(layout: Layout) -> int:
    """Ranks that attention heads are dealt out to: tp, and cp too where it exchanges heads for positions."""
    return layout.tp * layout.cp if layout.cp_kind == "ulysses" else layout.tp


def say_head_ranks(layout: Layout) -> str:
    """Give the degrees that make up ``head_ranks``."""
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
    return {"said": say_head_ranks(layout), "heads": facts.num_heads}


def _kv_heads(layout: Layout, facts: ModelFacts) -> Values | None:
    ranks, heads = head_ranks(layout), facts.num_kv_heads
    if heads is None or heads % ranks == 0 or ranks % heads == 0:
        return None
    return {"said": say_head_ranks(layout), "heads": heads}


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
