"""One verification from beginning to end: one device, the ranks of a layout, the difference."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trireme.errors import ModelError, RankFailed, TriremeError, VerifyError
from trireme.mesh import RankError, preload_on_ranks, run_on_ranks
from trireme.plan import Layout, ModelFacts, ParsedLayout, parse_layout, require_legal
from trireme.verify.compare import DOUBLE, SINGLE, SINGLE_INSIDE_NOISE, Comparison, Tolerance, compare
from trireme.verify.fault import check_fault
from trireme.verify.rank_run import RankResult, RankTask, Shapes, left_errors, load_trace, run_rank
from trireme.verify.reference import Recipe, Reference, measure_noise, run_reference
from trireme.verify.report import Report
from trireme.verify.subject import Source, Subject
from trireme.verify.trace import Trace, first_names

FACTORY = "trireme.verify.layout_candidate:build"
"""What brings a module onto ranks; tests put others in its place."""

_SEQ_LEN = 16
_MIN_SEQS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. ``seqs`` and ``seq_len`` are those of the first step's global batch, 0 for what suits."""

    source: Source
    layout: str
    ranks: int
    num_steps: int = 2
    seqs: int = 0
    seq_len: int = 0
    fault: str | None = None
    timeout_s: float = 300.0
    factory: str = FACTORY


@dataclass(slots=True)
class Expected:
    """One device's numbers for a source and its shapes; kept by who verifies several layouts of one model."""

    reference: Reference
    tolerance: Tolerance
    ties: dict[str, str]
    num_elements: int
    notices: tuple[str, ...]


@dataclass(slots=True)
class Memory:
    """References by what they depend on."""

    known: dict[tuple[Source, Shapes], Expected] = field(default_factory=dict)


def verify(request: Request, *, memory: Memory | None = None) -> Report:
    """Train a model on one device and on the ranks of a layout, and compare.

    Raises:
        LayoutError: The layout can't be read, doesn't fit the ranks, or can't run this model.
        ModelError: The model can't be built, called or counted.
        VerifyError: The fault is unknown or can't bite; or (RankFailed) a rank died or hung.
    """
    started_s = time.perf_counter()
    parsed = _layout(request)
    layout = parsed.layout
    shapes = _shapes(request, layout)
    check_fault(request.fault, layout)
    expected = _expected(request.source, shapes, memory or Memory())
    found, results = _run_ranks(request, layout, shapes, expected.reference.recipe)
    if request.fault and not any(each.has_bitten for each in results):
        raise VerifyError("verify.fault_not_met", name=request.fault, model=request.source.model, layout=layout)
    comparison = compare(expected.reference.trace, found, tolerance=expected.tolerance, ties=expected.ties)
    return _report(request, parsed, shapes, expected, comparison, results, time.perf_counter() - started_s)


def _layout(request: Request) -> ParsedLayout:
    parsed = parse_layout(request.layout, ranks=request.ranks)
    seq_len = request.seq_len or None
    require_legal(parsed.layout, ModelFacts(ranks=request.ranks, seq_len=seq_len))
    return parsed


def _shapes(request: Request, layout: Layout) -> Shapes:
    """Two shapes in turn: the second has a sequence more, so that ranks or micro-batches differ, and is longer."""
    parts = 2 * layout.cp * (layout.tp if layout.sp else 1) if layout.cp > 1 or layout.sp else 1
    seqs = request.seqs or max(_MIN_SEQS, layout.dp * layout.num_microbatches)
    seq_len = request.seq_len or -(-_SEQ_LEN // parts) * parts
    # Where sequences aren't cut, an odd length.
    longer = seq_len + (parts if parts > 1 else 3)
    pair = ((seqs, seq_len), (seqs + 1, longer))
    if layout.num_microbatches > max(1, seqs // layout.dp):
        raise VerifyError(
            "verify.few_seqs",
            seqs=seqs,
            dp=layout.dp,
            micro=layout.num_microbatches,
            near=layout.dp * layout.num_microbatches,
        )
    return Shapes(per_step=tuple(pair[step % 2] for step in range(request.num_steps)), seed=request.source.seed)


def _expected(source: Source, shapes: Shapes, memory: Memory) -> Expected:
    key = (source, shapes)
    if key not in memory.known:
        memory.known[key] = _measure(source, shapes)
    return memory.known[key]


def _measure(source: Source, shapes: Shapes) -> Expected:
    subject = source.load()
    batches = shapes.batches(subject)
    ties, num_elements = first_names(subject.module), sum(each.numel() for each in subject.module.parameters())
    tolerance, optimizer = _strictness(source, subject, batches)
    try:
        reference = run_reference(subject, batches, recipe=Recipe(optimizer=optimizer))
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError("verify.one_device_fails", model=source.model, reason=reason) from error
    _check_finite(source, reference.trace)
    return Expected(
        reference=reference, tolerance=tolerance, ties=ties, num_elements=num_elements, notices=subject.notices
    )


def _strictness(source: Source, subject: Subject, batches: list[Mapping[str, Any]]) -> tuple[Tolerance, str]:
    """Give the tolerance, and the optimizer that doesn't amplify what it allows."""
    if source.dtype == "fp32":
        return SINGLE, "sgd"
    noise = measure_noise(subject, batches[0], error_of=_noise_error)
    return (DOUBLE, "adamw") if noise <= SINGLE_INSIDE_NOISE else (SINGLE, "sgd")


def _noise_error(one: Trace, other: Trace) -> float:
    found = compare(one, other, tolerance=DOUBLE, ties={})
    return max(found.worst_grad_error, found.loss_error)


def _check_finite(source: Source, trace: Trace) -> None:
    for number, step in enumerate(trace.steps, start=1):
        if not (math.isfinite(step.loss) and math.isfinite(step.grad_norm)):
            raise ModelError("verify.not_finite", model=source.model, step=number, loss=step.loss, norm=step.grad_norm)
        if not step.grad_norm:
            raise ModelError("verify.no_gradient", model=source.model, step=number)


def _run_ranks(request: Request, layout: Layout, shapes: Shapes, recipe: Recipe) -> tuple[Trace, list[RankResult]]:
    preload_on_ranks("trireme.verify.preload", *_architectures())
    with tempfile.TemporaryDirectory(prefix="trireme-verify-") as name:
        task = RankTask(
            source=request.source,
            layout=layout,
            shapes=shapes,
            recipe=recipe,
            factory=request.factory,
            fault=request.fault,
            folder=Path(name),
        )
        try:
            results = run_on_ranks(run_rank, request.ranks, timeout_s=request.timeout_s, task=task)
        except RankError as error:
            raise _in_a_line(error, request, Path(name)) from error
        return load_trace(Path(name) / "trace.pt"), results


def _architectures() -> list[str]:
    """Give the modules of transformers that building the model here has loaded; every rank will need them."""
    return [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]


def _in_a_line(error: RankError, request: Request, folder: Path) -> TriremeError:
    """Say what ended the ranks: a mistake of the user's as it was said there, else the earliest failure."""
    left = left_errors(folder)
    mistakes = [each.mistake for each in left if each.mistake is not None]
    if mistakes:
        return mistakes[0]
    with tempfile.NamedTemporaryFile("w", prefix="trireme-verify-", suffix=".txt", delete=False) as file:
        file.write(str(error))
    values = {"ranks": request.ranks, "layout": request.layout, "log": file.name}
    if left:
        # Ranks whose partner failed complain about the connection; the earliest complaint is about the cause.
        return RankFailed("verify.rank_failed", rank=left[0].rank, what=left[0].text, place=left[0].place, **values)
    first = str(error).splitlines()[0]
    return RankFailed("verify.ranks_ended", what=first, limit_s=request.timeout_s, **values)


def _report(
    request: Request,
    parsed: ParsedLayout,
    shapes: Shapes,
    expected: Expected,
    comparison: Comparison,
    results: list[RankResult],
    seconds: float,
) -> Report:
    told = [*parsed.notices, *expected.notices, *(line for each in results for line in each.notices)]
    return Report(
        model=request.source.model,
        layout=str(parsed.layout),
        ranks=request.ranks,
        dtype=request.source.dtype,
        is_single_inside=request.source.dtype == "fp64" and expected.tolerance is SINGLE,
        shapes=shapes.per_step,
        comparison=comparison,
        path=results[0].path,
        local_param_ratios=tuple(each.held_elements / expected.num_elements for each in results),
        notices=tuple(dict.fromkeys(told)),
        fault=request.fault,
        verify_s=seconds,
    )
