"""What torch's compiler counts of its own work, and torch's record of allocations; torch promises neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics, graph_break_reasons
from torch._inductor import metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCounts:
    """What became of a module's code.

    Attributes:
        num_programs: Graphs that were captured.
        num_nodes: Operations of all programs that the compiler makes kernels of, backward's too.
        num_kernels: Kernels they became.
        breaks: Why code was left half-way and goes on as written, each once.
        recompiles: What differed from what a program was made for.
        unable: Why code can't be captured at all.
    """

    num_programs: int
    num_nodes: int
    num_kernels: int
    breaks: tuple[str, ...]
    recompiles: tuple[str, ...]
    unable: tuple[str, ...]


def forget_programs() -> None:
    """Throw away what was compiled and counted in this process."""
    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    clear_compilation_metrics()
    graph_break_reasons.clear()


def count_programs() -> CompilerCounts:
    """Give what was counted since ``forget_programs``."""
    told = get_compilation_metrics()
    return CompilerCounts(
        num_programs=int(counters["stats"]["unique_graphs"]),
        num_nodes=int(metrics.ir_nodes_pre_fusion),
        num_kernels=int(metrics.generated_kernel_count),
        breaks=_each_once(_break_text(each) for each in graph_break_reasons),
        recompiles=_each_once(each.recompile_reason for each in told),
        unable=_each_once(each.fail_reason for each in told),
    )


def _break_text(told: object) -> str:
    """Give the reason with the line of code, which is the innermost that was met."""
    reason = _first_line(getattr(told, "reason", told))
    stack = getattr(told, "user_stack", None)
    return f"{stack[-1].filename}:{stack[-1].lineno}: {reason}" if stack else reason


def _each_once(texts: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_first_line(each) for each in texts if each))  # type: ignore[attr-defined]


def _first_line(text: object) -> str:
    return next(iter(str(text).strip().splitlines()), "")


def peak_allocated_bytes(run: Callable[[], None]) -> int:
    """Give the most that the host's allocator had given out at one time while something ran, beside what was before."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    events = [each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"]
    live = peak = 0
    for each in sorted(events, key=lambda event: event.start_ns()):
        live += each.nbytes()
        peak = max(peak, live)
    return peak
