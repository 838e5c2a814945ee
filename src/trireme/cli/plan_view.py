"""What a person sees of a search: the table, where memory and time go, who talks to whom, why not another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trireme.cli.column import align
from trireme.cluster import axis_span
from trireme.graph import count_model_params
from trireme.plan import estimate_goodput, layout_costs, ranks_of, say_event, why_not
from trireme.units import format_bytes, format_count, format_duration
from trireme.words import say

if TYPE_CHECKING:
    from trireme.cli.plan_problem import Asked
    from trireme.plan import Axis, Found, Problem, RankMemory, SearchResult, Workload

_BAR = 40
_FILL = {"parameters": "P", "weight_casts": "P", "gradients": "G", "optimizer": "O", "activations": "A", "logits": "L"}
_AXES: tuple[tuple[Axis, ...], ...] = (("tp",), ("cp",), ("dp_shard",), ("dp_replicate",), ("pp",))
_SHOWN_RANKS = 8
_SHOWN_REASONS = 8


def result_lines(problem: Problem, result: SearchResult, asked: Asked, *, smaller: str = "") -> Iterator[str]:
    """Give everything, section by section."""
    best = result.best
    yield from _head(problem, result)
    if smaller:
        yield say("plan_cli.smaller", ranks=problem.cluster.num_ranks, reason=smaller)
    yield ""
    yield from _table(result)
    for section in (_parts(best), _memory(best), _placement(best), _layout_notes(problem, best)):
        yield ""
        yield from section
    yield from _budget(problem, best, asked)
    for text, wish in asked.wishes.items():
        why = why_not(problem, wish, best=best)
        yield ""
        yield say("plan_cli.why_not", wish=text, reason=why.reason)
        yield from (f"  {cost}" for cost in why.costs)
    yield ""
    yield from _rejected(result)


def _head(problem: Problem, result: SearchResult) -> Iterator[str]:
    params = count_model_params(problem.model)
    counted = result.counted
    yield say(
        "plan_cli.head",
        model=problem.model.name,
        params=format_count(params.total),
        cluster=problem.cluster.name,
        ranks=problem.cluster.num_ranks,
        batch=problem.global_batch_seqs,
        seq_len=problem.seq_len,
    )
    yield say(
        "plan_cli.counted",
        layouts=f"{counted.layouts:,}",
        estimated=f"{counted.estimated:,}",
        large=f"{counted.too_large:,}",
        slower=f"{counted.slower:,}",
    )
    if not result.best.time.is_calibrated:
        yield say("plan_cli.not_calibrated", accelerator=problem.cluster.accelerator.name)


def _table(result: SearchResult) -> list[str]:
    columns = ("rank", "layout", "step", "interval", "tokens", "mfu", "bubble", "memory", "recompute")
    rows = [[say(f"plan_cli.column_{column}") for column in columns]]
    rows += [_row(number, found) for number, found in enumerate(result.plans, 1)]
    return align(rows)


def _row(number: int, found: Found) -> list[str]:
    time, memory = found.time, found.memory
    return [
        str(number),
        str(found.workload.layout),
        f"{time.step_s:.2f} s",
        f"{time.low_s:.2f}-{time.high_s:.2f}",
        format_count(time.tokens_per_s),
        f"{time.mfu:.1%}",
        f"{time.bubble_ratio:.1%}",
        f"{format_bytes(memory.device_bytes)} / {format_bytes(memory.capacity_bytes)}",
        say_recompute(found.workload),
    ]


def say_recompute(workload: Workload) -> str:
    """``full 12/96``: how many layers recompute how, and how many offload."""
    layers = range(workload.model.num_layers)
    kinds = [workload.recompute_of(layer) for layer in layers]
    words = [f"{kind} {kinds.count(kind)}/{len(kinds)}" for kind in ("selective", "full") if kind in kinds]
    away = sum(workload.offload_of(layer) for layer in layers)
    return ", ".join([*words, *([f"offload {away}/{len(kinds)}"] if away else [])]) or "-"


def _parts(found: Found) -> Iterator[str]:
    """Where a step's time goes, largest first."""
    time = found.time
    yield say("plan_cli.time", formula=time.formula)
    shown = sorted(time.parts.items(), key=lambda part: -part[1])
    rows = [
        [f"  {say(f'search.part_{name}')}", f"{seconds:.2f} s", f"{seconds / time.step_s:.1%}"]
        for name, seconds in shown
        if seconds > 0.002 * time.step_s
    ]
    yield from align(rows)


def _memory(found: Found) -> Iterator[str]:
    """A bar for each pipeline rank, and when the fullest is fullest."""
    memory = found.memory
    worst = memory.worst
    legend = ", ".join(
        f"{letter} {say(f'plan.part_{name}')}" for name, letter in _FILL.items() if name != "weight_casts"
    )
    yield say("plan_cli.memory", legend=legend)
    ranks = _distinct(memory.ranks)
    for rank in ranks:
        bar = "".join(
            letter * round(_BAR * rank.parts.get(name, 0) / memory.capacity_bytes) for name, letter in _FILL.items()
        )
        other = "." * max(0, round(_BAR * rank.device_bytes / memory.capacity_bytes) - len(bar))
        yield f"  pp {rank.pp_rank:>3} |{(bar + other)[:_BAR]:<{_BAR}}| {format_bytes(rank.device_bytes)}"
    yield say("plan_cli.peak", where=say_event(worst), allocated=format_bytes(worst.allocated_bytes))
    rows = [[f"  {say(f'plan.part_{name}')}", format_bytes(size)] for name, size in worst.parts.items() if size]
    rows.append([f"  {say('plan_cli.reserved')}", format_bytes(worst.reserved_bytes)])
    rows.append([f"  {say('plan_cli.context')}", format_bytes(worst.context_bytes)])
    yield from align(rows)
    if worst.host_bytes:
        yield say("plan_cli.host", size=format_bytes(max(rank.host_bytes for rank in memory.ranks)))


def _distinct(ranks: tuple[RankMemory, ...]) -> list[RankMemory]:
    """All ranks of a short pipeline, of a long one the first, the last and some between."""
    if len(ranks) <= 16:
        return list(ranks)
    step = -(-len(ranks) // 14)
    return [rank for rank in ranks if rank.pp_rank % step == 0 or rank is ranks[-1]]


def _placement(found: Found) -> Iterator[str]:
    """How many parts the model is cut into, how often each is there, and which ranks talk to each other."""
    layout, cluster = found.workload.layout, found.workload.cluster
    yield say(
        "plan_cli.placement",
        parts=layout.tp * layout.pp,
        tp=layout.tp,
        pp=layout.pp,
        copies=layout.dp * layout.cp,
    )
    stride, rows = 1, []
    for axes in _AXES:
        degree = getattr(layout, axes[0])
        if degree > 1:
            span = axis_span(degree=degree, stride=stride, cluster=cluster)
            rows.append([f"  {axes[0]} {degree}", say_ranks(ranks_of(layout, axes)), span.label])
        stride *= degree
    yield from align(rows) if rows else ()


def say_ranks(ranks: tuple[int, ...]) -> str:
    """Ranks of a group, the middle left out where they are many."""
    if len(ranks) <= _SHOWN_RANKS:
        return ", ".join(map(str, ranks))
    return ", ".join(map(str, ranks[:3])) + f" ... {ranks[-1]}"


def _layout_notes(problem: Problem, found: Found) -> Iterator[str]:
    """What the layout pays for, and the arithmetic of its bubble."""
    layout = found.workload.layout
    if layout.pp > 1 and layout.schedule in ("1f1b", "gpipe"):
        m, p = layout.num_microbatches, layout.pp
        yield say(
            "plan_cli.bubble", m=m, p=p, busy=f"{m / (m + p - 1):.1%}", simulated=f"{found.time.bubble_ratio:.1%}"
        )
    for cost in layout_costs(layout, problem.facts()):
        yield say("plan_cli.cost", reason=cost.reason)


def _budget(problem: Problem, found: Found, asked: Asked) -> Iterator[str]:
    """Days, cost and energy of a number of tokens, and what failures leave of the time."""
    cluster, time = problem.cluster, found.time
    share = 1.0
    if asked.node_mtbf_s is not None:
        goodput = estimate_goodput(
            num_nodes=cluster.num_nodes,
            node_mtbf_s=asked.node_mtbf_s,
            checkpoint_s=asked.checkpoint_s,
            restart_s=asked.restart_s,
        )
        share = goodput.ratio
        yield ""
        yield say(
            "plan_cli.goodput",
            ratio=f"{share:.1%}",
            mtbf=format_duration(goodput.mtbf_s),
            interval=format_duration(goodput.interval_s),
        )
    if asked.tokens is None:
        return
    seconds = asked.tokens / time.tokens_per_s / max(share, 1e-9)
    low, high = (seconds * end / time.step_s for end in (time.low_s, time.high_s))
    yield ""
    yield say("plan_cli.days", tokens=format_count(asked.tokens), days=_days(seconds), low=_days(low), high=_days(high))
    hours = seconds / 3600 * cluster.num_ranks
    if cluster.price_per_rank_hour is not None:
        yield say("plan_cli.price", cost=format_count(hours * cluster.price_per_rank_hour), hours=format_count(hours))
    if cluster.power_w_per_rank is not None:
        yield say("plan_cli.energy", energy=format_count(hours * cluster.power_w_per_rank / 1e6))


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f}"


def _rejected(result: SearchResult) -> Iterator[str]:
    if result.rejected:
        yield say("plan_cli.rejected")
    rows = [
        [f"  {rejection.count:,}", rejection.example, rejection.reason]
        for rejection in result.rejected[:_SHOWN_REASONS]
    ]
    yield from align(rows) if rows else ()
