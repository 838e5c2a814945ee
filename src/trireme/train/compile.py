"""torch.compile for the blocks of a model, in place: names, weights and checkpoints stay as they are.

Compiling each block of the longest list of equal layers, instead of the whole module, costs one
compilation however many layers there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trireme.data import Batch
from trireme.errors import DeviceError
from trireme.train.measure import Decision, fastest_of, timed_s, trial, trial_batch, undisturbed
from trireme.train.objective import Objective
from trireme.train.precision import Precision

COMPILE_MARGIN = 1.05
"""A gain below this is noise."""


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of the longest list of equal ones, else the module itself."""
    lists = [list(child) for child in module.modules() if isinstance(child, nn.ModuleList)]
    equal = [layers for layers in lists if len(layers) > 1 and len({type(layer) for layer in layers}) == 1]
    return max(equal, key=len, default=[module])


def apply_compile(module: nn.Module) -> nn.Module:
    """Have the module's blocks compiled at their next call, in place, and return it."""
    for block in blocks_of(module):
        block.compile()
    return module


def remove_compile(module: nn.Module) -> nn.Module:
    """Have the module's blocks run as written again, in place, and return it."""
    for block in blocks_of(module):
        # Module.compile has no public opposite; this is the one attribute it sets.
        block._compiled_call_impl = None
    return module


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled modules as written: for generation, where each length would be compiled anew."""
    with torch.compiler.set_stance("force_eager"):
        yield


def check_compile(
    module: nn.Module, batch: Batch | Mapping[str, Any], *, objective: Objective, precision: Precision
) -> float:
    """Compile now instead of in step 1, and return how long it took in seconds.

    Raises:
        DeviceError: This machine can't compile; the message says what is missing.
    """
    micro = trial_batch(batch, objective=objective)
    if not micro.count:
        return 0.0
    with undisturbed(module):
        return _first_run_s(trial(module, micro, objective=objective, precision=precision), precision=precision)


def choose_compile(
    module: nn.Module,
    batch: Batch | Mapping[str, Any],
    *,
    objective: Objective,
    precision: Precision,
    planned_microbatches: int,
) -> Decision:
    """Return ``on`` where the planned run is measured to end earlier with compilation, else ``off``.

    The module is left compiled if the choice is ``on``.
    """
    micro = trial_batch(batch, objective=objective)
    run = trial(module, micro, objective=objective, precision=precision)
    if not micro.count:
        return Decision(choice="off", reason="nothing_to_learn")
    with undisturbed(module):
        eager_s = fastest_of({"eager": run}, device=precision.device)["eager"]
        apply_compile(module)
        try:
            compile_s = _first_run_s(run, precision=precision)
        except DeviceError:
            remove_compile(module)
            return Decision(choice="off", reason="no_compiler", figures={"eager_s": eager_s})
        compiled_s = fastest_of({"compiled": run}, device=precision.device)["compiled"]
    figures = {"eager_s": eager_s, "compiled_s": compiled_s, "compile_s": compile_s}
    if eager_s < compiled_s * COMPILE_MARGIN:
        remove_compile(module)
        return Decision(choice="off", reason="no_gain", figures=figures)
    if (eager_s - compiled_s) * planned_microbatches < compile_s:
        remove_compile(module)
        return Decision(choice="off", reason="run_too_short", figures=figures)
    return Decision(choice="on", reason="faster", figures=figures)


def _first_run_s(run: Callable[[], None], *, precision: Precision) -> float:
    started_s = time.perf_counter()
    try:
        timed_s(run, device=precision.device)
    except Exception as error:
        raise DeviceError("train.compile_failed", cause=root_cause(error)) from error
    return time.perf_counter() - started_s


def root_cause(error: BaseException) -> str:
    """Return the first line of the innermost error: dynamo wraps it several times."""
    while (inner := error.__cause__ or getattr(error, "inner_exception", None)) is not None:
        error = inner
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".strip()
