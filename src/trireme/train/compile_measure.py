"""A module's step as written and compiled, side by side: time, memory, and what the compiler did."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trireme.data import Batch
from trireme.errors import DeviceError, TriremeError
from trireme.mesh import measures_whole_process, memory_in_use_bytes, peak_memory_bytes, reset_peak_memory
from trireme.train.compile import apply_compile, blocks_of, eager, remove_compile, root_cause
from trireme.train.measure import fastest_of, timed_s, trial, undisturbed
from trireme.train.microbatch import Micro, host_tensors
from trireme.train.objective import Objective
from trireme.train.precision import Precision

if TYPE_CHECKING:
    from trireme.train.compile_private import CompilerCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFigures:
    """Forward and backward of one micro-batch, as written and compiled.

    Attributes:
        num_blocks: Modules that were to be compiled.
        counts: What became of them.
        compile_s: The first compiled run; kernels may come from the cache on disk.
        eager_s: The shortest of several.
        compiled_s: The shortest of as many, in turns with the others.
        eager_peak_bytes: The most alive at one time beside weights: activations and gradients.
        compiled_peak_bytes: The same, compiled.
    """

    num_blocks: int
    counts: CompilerCounts
    compile_s: float
    eager_s: float
    compiled_s: float
    eager_peak_bytes: int
    compiled_peak_bytes: int


def measure_compile(
    module: nn.Module,
    batch: Batch | Mapping[str, Any],
    *,
    objective: Objective,
    precision: Precision,
    repeats: int,
) -> CompileFigures:
    """Run forward and backward of a micro-batch as written and compiled, in turns; the module is left as it was.

    Raises:
        DeviceError: This machine can't compile this model.
    """
    from trireme.train.compile_private import count_programs, forget_programs

    tensors = host_tensors(batch)
    micro = Micro(tensors=tensors, count=objective.count(tensors))
    run, device = trial(module, micro, objective=objective, precision=precision), precision.device

    def as_written() -> None:
        with eager():
            run()

    with undisturbed(module):
        run()  # whatever the model itself refuses is no matter of compiling
        forget_programs()
        apply_compile(module)
        try:
            compile_s = _compiled_s(run, device=device)
            shortest = fastest_of({"eager": as_written, "compiled": run}, device=device, repeats=repeats)
            peaks = [_peak_bytes(each, module, device=device) for each in (as_written, run)]
            counts = count_programs()
        finally:
            remove_compile(module)
    return CompileFigures(
        num_blocks=len(blocks_of(module)),
        counts=counts,
        compile_s=compile_s,
        eager_s=shortest["eager"],
        compiled_s=shortest["compiled"],
        eager_peak_bytes=peaks[0],
        compiled_peak_bytes=peaks[1],
    )


def _compiled_s(run: Callable[[], None], *, device: torch.device) -> float:
    started_s = time.perf_counter()
    try:
        timed_s(run, device=device)
    except TriremeError:
        raise
    except Exception as error:
        raise DeviceError("compile_report.failed", cause=root_cause(error)) from error
    return time.perf_counter() - started_s


def _peak_bytes(run: Callable[[], None], module: nn.Module, *, device: torch.device) -> int:
    """Give what a run needs beside what is there when it starts; gradients are made anew."""
    for parameter in module.parameters():
        parameter.grad = None
    from trireme.train.compile_private import peak_allocated_bytes

    if measures_whole_process(device):
        return peak_allocated_bytes(run)
    before = memory_in_use_bytes(device)
    reset_peak_memory(device)
    timed_s(run, device=device)
    return peak_memory_bytes(device) - before
