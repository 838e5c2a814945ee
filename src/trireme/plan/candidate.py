"""Every layout that a problem allows, class by class; what is left out is counted with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from trireme.errors import LayoutError
from trireme.plan.layout import CpKind, Layout, Recompute
from trireme.plan.legality import ModelFacts, check_layout
from trireme.plan.problem import Problem
from trireme.plan.schedule import ScheduleName

_MICROBATCH_SEQS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
_VIRTUAL = (2, 3, 4, 5, 6, 7, 8, 12, 16)


class Frame(NamedTuple):
    """Degrees alone."""

    pp: int
    tp: int
    cp: int
    dp: int
    ep: int


@dataclass(slots=True)
class Left:
    """Layouts left out: how many, by rule of the table of legality, and an example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, rule: str, layout: str, reason: str) -> None:
        """Count one layout, or class of layouts."""
        self.counts[rule] += 1
        self.examples.setdefault(rule, (layout, reason))


def frames(problem: Problem, *, left: Left) -> Iterator[Frame]:
    """Yield the degrees that multiply to the ranks and that the table of legality lets pass."""
    facts = problem.facts()
    ranks = problem.cluster.num_ranks
    for tp in _degrees(problem, "tp", ranks):
        for cp in _degrees(problem, "cp", ranks // tp):
            for pp in _degrees(problem, "pp", ranks // (tp * cp)):
                dp = ranks // (tp * cp * pp)
                if not problem.allows("dp", dp):
                    continue
                for ep in _expert_degrees(problem, facts, inside=dp * cp * tp):
                    frame = Frame(pp, tp, cp, dp, ep)
                    if _is_legal(problem, frame, facts, left=left):
                        yield frame


def _degrees(problem: Problem, key: str, ranks: int) -> list[int]:
    if key in problem.fix:
        return [problem.fix[key]] if ranks % problem.fix[key] == 0 else []
    return divisors(ranks)


def divisors(number: int) -> list[int]:
    """Give all divisors, smallest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _expert_degrees(problem: Problem, facts: ModelFacts, *, inside: int) -> list[int]:
    if not facts.num_experts:
        return [1] if problem.allows("ep", 1) else []
    return [ep for ep in divisors(facts.num_experts) if inside % ep == 0 and problem.allows("ep", ep)]


def _is_legal(problem: Problem, frame: Frame, facts: ModelFacts, *, left: Left) -> bool:
    layout = _plain(problem, frame)
    violations = check_layout(layout, facts)
    for violation in violations:
        left.add(violation.rule, str(layout), violation.reason)
    return not violations


def _plain(problem: Problem, frame: Frame) -> Layout:
    """The frame with the fewest techniques."""
    return Layout(
        pp=frame.pp,
        tp=frame.tp,
        cp=frame.cp,
        dp_shard=frame.dp if frame.ep > 1 else 1,
        dp_replicate=1 if frame.ep > 1 else frame.dp,
        ep=frame.ep,
        cp_kind=problem.fix.get("cp_kind", "allgather"),
        microbatches_per_step=1,
    )


class Shape(NamedTuple):
    """A layout before it is worth being one: there are tens of thousands; attributes as those of ``Layout``."""

    pp: int
    vp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    ep: int
    zero: int
    sp: bool
    schedule: ScheduleName
    num_microbatches: int
    recompute: Recompute
    cp_kind: CpKind

    @property
    def dp(self) -> int:
        """Data-parallel degree of both kinds."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_stages(self) -> int:
        """Pipeline stages of all ranks."""
        return self.pp * self.vp

    def layout(self) -> Layout:
        """The layout itself."""
        values = self._asdict()
        count = values.pop("num_microbatches")
        return Layout(**values, microbatches_per_step=count)


def shardings(problem: Problem, frame: Frame) -> Iterator[Shape]:
    """Yield a frame with each way to shard state; the rest as plain as can be."""
    for zero, replicate, shard in _shardings(problem, frame):
        yield Shape(
            pp=frame.pp,
            vp=1,
            dp_replicate=replicate,
            dp_shard=shard,
            cp=frame.cp,
            tp=frame.tp,
            ep=frame.ep,
            zero=zero,
            sp=_sequence_parallel(problem, frame),
            schedule="1f1b",
            num_microbatches=1,
            recompute=problem.fix.get("recompute", "auto"),
            cp_kind=problem.fix.get("cp_kind", "allgather"),
        )


def variants(problem: Problem, shape: Shape) -> Iterator[Shape]:
    """Yield every micro-batch and schedule for a sharding; recomputation is left to what memory asks."""
    per_rank = problem.global_batch_seqs // shape.dp
    for count in _microbatch_counts(problem, per_rank):
        for schedule, vp in _schedules(problem, shape.pp, count, recompute=shape.recompute):
            is_split = schedule in ("zb", "zbv")
            if is_split and shape.zero == 3 and shape.dp_shard > 1:
                continue  # row zero_bubble_reshard of the table of legality
            recompute = "none" if is_split else shape.recompute
            yield shape._replace(schedule=schedule, vp=vp, num_microbatches=count, recompute=recompute)


def _microbatch_counts(problem: Problem, per_rank: int) -> list[int]:
    if "micro" in problem.fix:
        return [problem.fix["micro"]] if problem.fix["micro"] <= per_rank else []
    sizes = [seqs for seqs in _MICROBATCH_SEQS if per_rank % seqs == 0 and problem.allows("microbatch_seqs", seqs)]
    if "microbatch_seqs" in problem.fix and not sizes and problem.fix["microbatch_seqs"] <= per_rank:
        sizes = [problem.fix["microbatch_seqs"]]
    return [-(-per_rank // seqs) for seqs in sizes]


def _schedules(problem: Problem, pp: int, count: int, *, recompute: str) -> Iterator[tuple[ScheduleName, int]]:
    """1f1b first. gpipe takes as long as 1f1b and holds more, so it is there only if asked for."""
    layers = problem.model.num_layers
    if pp == 1:
        if problem.fix.get("schedule", "1f1b") in ("1f1b", "gpipe") and problem.fix.get("vp", 1) == 1:
            yield problem.fix.get("schedule", "1f1b"), 1
        return
    wanted, vp = problem.fix.get("schedule"), problem.fix.get("vp")
    if wanted == "gpipe":
        yield "gpipe", vp or 1
    if wanted in (None, "1f1b") and vp in (None, 1):
        yield "1f1b", 1
    if wanted in (None, "interleaved", "1f1b" if vp else None) and count >= pp:
        for degree in [vp] if vp else _virtual_degrees(layers, pp):
            if degree > 1 and pp * degree <= layers:
                yield "interleaved", degree
    may_split = recompute in ("auto", "none")
    if wanted in (None, "zb") and vp in (None, 1) and may_split:
        yield "zb", 1
    if wanted in (None, "zbv") and vp in (None, 2) and may_split and 2 * pp <= layers:
        yield "zbv", 2


def _virtual_degrees(layers: int, pp: int) -> list[int]:
    """Those with which all stages have as many layers, if there are any."""
    possible = [degree for degree in _VIRTUAL if pp * degree <= layers]
    even = [degree for degree in possible if layers % (pp * degree) == 0]
    return even or possible[:3]


def _shardings(problem: Problem, frame: Frame) -> Iterator[tuple[int, int, int]]:
    """(ZeRO stage, replicate, shard). In a pipeline stages 2 and 3 exchange for every micro-batch what stage 1 does
    once, and stage 0 moves as many bytes as stage 1 and holds more, so they are there only if asked for."""
    zeros = [0] if frame.dp * frame.cp == 1 else [1] if frame.pp > 1 else [1, 0, 2, 3]
    for zero in [problem.fix["zero"]] if "zero" in problem.fix else zeros:
        for replicate, shard in _splits(problem, frame, zero):
            if problem.allows("dp_replicate", replicate) and problem.allows("dp_shard", shard):
                yield zero, replicate, shard


def _splits(problem: Problem, frame: Frame, zero: int) -> list[tuple[int, int]]:
    """How data parallelism is dealt out to copies and shards: all of one, or shards within a node."""
    dp = frame.dp
    if "dp_replicate" in problem.fix or "dp_shard" in problem.fix:
        replicate = problem.fix.get("dp_replicate", dp // problem.fix.get("dp_shard", dp) or 1)
        return [(replicate, dp // replicate)] if dp % replicate == 0 else []
    if zero == 0:
        return [(1, dp)] if frame.ep > 1 else [(dp, 1)]
    splits = [(1, dp)]
    inside, uneven = divmod(problem.cluster.ranks_per_node, frame.tp * frame.cp)
    if (
        zero == 3
        and not uneven
        and 1 < inside < dp
        and dp % inside == 0
        and inside * frame.cp * frame.tp % frame.ep == 0
    ):
        splits.append((dp // inside, inside))
    return splits


def _sequence_parallel(problem: Problem, frame: Frame) -> bool:
    """On wherever it can be: it moves as many bytes as tensor parallelism alone and keeps less."""
    if "sp" in problem.fix:
        return bool(problem.fix["sp"])
    return frame.tp > 1 and problem.seq_len % (frame.tp * frame.cp) == 0


def check_wish(problem: Problem) -> None:
    """Refuse fixed degrees that no layout on these ranks can have.

    Raises:
        LayoutError: Their product doesn't divide the ranks, or the batch; the message has the equation.
    """
    fix, ranks = problem.fix, problem.cluster.num_ranks
    degrees = {key: fix[key] for key in ("pp", "cp", "tp", "dp", "dp_replicate", "dp_shard") if key in fix}
    product = 1
    for degree in degrees.values():
        product *= degree
    said = " * ".join(f"{key}={degree}" for key, degree in degrees.items()) or "dp=1"
    if ranks % product:
        raise LayoutError("search.fixed_ranks", said=said, product=product, ranks=ranks, near=_near(degrees, ranks))
    missing = {"pp", "cp", "tp"} - set(fix)
    if not missing and "dp" not in fix and not {"dp_replicate", "dp_shard"} & set(fix):
        dp = ranks // product
        if problem.global_batch_seqs % dp:
            near = _multiples_near(problem.global_batch_seqs, dp)
            raise LayoutError(
                "search.fixed_batch", said=said, ranks=ranks, dp=dp, batch=problem.global_batch_seqs, near=near
            )


def _near(degrees: dict[str, int], ranks: int) -> str:
    """The nearest value of each degree with which the product divides the ranks."""
    found = []
    for key, degree in degrees.items():
        rest = 1
        for other, value in degrees.items():
            rest *= value if other != key else 1
        if ranks % rest == 0:
            best = _nearest(divisors(ranks // rest), degree)
            found.append(f"{key}={best}")
    return ", ".join(found) or f"dp={ranks}"


def _nearest(values: list[int], wanted: int) -> int:
    return min(values, key=lambda value: (abs(value - wanted), value))


def _multiples_near(batch: int, dp: int) -> str:
    below = batch // dp * dp
    return f"{below} / {below + dp}" if below else str(dp)
