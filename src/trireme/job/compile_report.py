"""What compiling gives a run: its own model, batch and number format, as written and compiled, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch

from trireme.config import Loaded, RunConfig
from trireme.data import Batch, PreparedData, prepare_data
from trireme.errors import LayoutError
from trireme.job.layout import resolve_layout
from trireme.job.logits import choose_logits
from trireme.mesh import choose_device, set_threads
from trireme.models import build_model
from trireme.observe import WorkProgress
from trireme.train import (
    CompileFigures,
    Policy,
    apply_precision,
    build_objective,
    build_precision,
    choose_precision,
    measure_compile,
)
from trireme.units import format_bytes
from trireme.words import say

_REPEATS = 3

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFindings:
    """What was measured, and of what."""

    seqs: int
    seq_len: int
    policy: str
    figures: CompileFigures


def measure_run(loaded: Loaded, *, notice: Notice) -> CompileFindings:
    """Build a run's model and measure a micro-batch of its own data; nothing is trained and no folder is made.

    Raises:
        LayoutError: The run is spread or recomputes.
        DeviceError: This machine can't compile this model.
    """
    config = loaded.config
    arrangement = resolve_layout(config, ranks=1, notice=notice)
    if arrangement.needs_ranks:
        raise LayoutError("compile_report.layout", layout=arrangement.layout)
    set_threads(config.train.num_threads)
    device = choose_device()
    data = prepare_data(config.data, seed=config.run.seed, progress=WorkProgress(), notice=notice)
    module = build_model(
        config.model,
        vocab_size=data.tokenizer.vocab_size,
        seq_len=config.data.seq_len,
        seed=config.run.seed,
        notice=notice,
    ).to(device)
    batch = _microbatch(data, config)
    objective = choose_logits(
        build_objective(), module=module, batch=batch, layout=arrangement.layout, section=config.train, notice=notice
    )
    policy = config.precision.policy
    if policy == "auto":
        policy = cast(Policy, choose_precision(module, batch, objective=objective, device=device).choice)
    precision = build_precision(policy, device=device, section=config.precision, notice=notice)
    apply_precision(module, precision=precision)
    figures = measure_compile(module, batch, objective=objective, precision=precision, repeats=_REPEATS)
    seqs, seq_len = torch.as_tensor(batch.input_ids).shape
    return CompileFindings(seqs=seqs, seq_len=seq_len, policy=policy, figures=figures)


def _microbatch(data: PreparedData, config: RunConfig) -> Batch:
    seqs = min(config.train.microbatch_seqs or config.train.global_batch_seqs, config.train.global_batch_seqs)
    return data.train.read(0, global_batch_seqs=seqs)


def findings_json(found: CompileFindings) -> dict[str, Any]:
    """Give everything as plain values."""
    return asdict(found)


def findings_lines(found: CompileFindings) -> Iterator[str]:
    """Tell it to a reader."""
    figures, counts = found.figures, found.figures.counts
    yield say("compile_report.title", seqs=found.seqs, seq_len=found.seq_len, policy=found.policy)
    yield say(
        "compile_report.programs",
        blocks=figures.num_blocks,
        programs=counts.num_programs,
        seconds=f"{figures.compile_s:.1f}",
    )
    yield say("compile_report.fused", nodes=counts.num_nodes, kernels=counts.num_kernels)
    yield say(
        "compile_report.time",
        before=f"{figures.eager_s * 1e3:.1f}",
        after=f"{figures.compiled_s * 1e3:.1f}",
        ratio=f"{figures.eager_s / figures.compiled_s:.2f}",
        repeats=_REPEATS,
    )
    yield say(
        "compile_report.memory",
        before=format_bytes(figures.eager_peak_bytes),
        after=format_bytes(figures.compiled_peak_bytes),
    )
    yield from _listed(say("compile_report.breaks"), counts.breaks)
    yield from _listed(say("compile_report.recompiles"), counts.recompiles)
    yield from _listed(say("compile_report.unable"), counts.unable)


def _listed(title: str, reasons: tuple[str, ...]) -> Iterator[str]:
    yield say("compile_report.number", title=title, count=len(reasons))
    for reason in reasons:
        yield say("compile_report.reason", reason=reason)
