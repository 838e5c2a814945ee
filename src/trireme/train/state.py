"""All that a run is between two steps, and its way into and out of a checkpoint, with nothing left over.

Tensors: ``model/<name>`` and ``optimizer/<name>/<key>``. The rest is JSON: what the
optimizer keeps outside tensors, progress, counters, schedule, loss scale, random state, data position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trireme.checkpoint import MODEL_PREFIX, OPTIMIZER_PREFIX, Checkpoint
from trireme.errors import CheckpointError, TrainError
from trireme.parallel import ChunkedOptimizer, local_shard
from trireme.train.rng import capture_rng, merge_rng, restore_rng, rng_of_rank
from trireme.train.schedule import Schedule
from trireme.train.step import Stepper
from trireme.train.step_result import StepCounters

STATE_FORMAT = 1
RNG = "rng"
WIRE = "communication"
"""Key of what ranks keep of gradients, there only where they do."""
_KEYS = ("format", "progress", "counters", "precision", "scaler", "schedule", "optimizer", RNG, "data")
_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    num_seqs: int = 0
    best_loss: float | None = None
    best_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a resume put back, and from where. It is ``exact`` unless something was allowed to be missing.

    ``left`` says in a sentence what ranks kept of gradients and could not be put back.
    """

    step: int
    names: tuple[str, ...]
    path: Path
    layout: str
    missing: tuple[str, ...] = ()
    left: str | None = None

    @property
    def exact(self) -> bool:
        """Whether the run goes on as if it had never stopped."""
        return not self.missing and self.left is None


def state_tensors(stepper: Stepper) -> dict[str, torch.Tensor]:
    """Return weights, saved buffers and optimizer state by name: the live tensors, not copies."""
    tensors = {f"{MODEL_PREFIX}{name}": tensor for name, tensor in _model_tensors(stepper.module).items()}
    for name, parameter in _optimized(stepper).items():
        for key, value in stepper.optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{OPTIMIZER_PREFIX}{name}/{key}"] = value
    return tensors | dict(stepper.engine.own_tensors(tensors))


def state_json(stepper: Stepper, *, progress: Progress, schedule: Schedule, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything else that a run is, as JSON."""
    own = stepper.engine.own_state()
    return {
        "format": STATE_FORMAT,
        "progress": asdict(progress),
        "counters": asdict(stepper.counters),
        "precision": stepper.precision.policy,
        "scaler": stepper.scaler.to_json() if stepper.scaler else None,
        "schedule": schedule.to_json(),
        "optimizer": _optimizer_json(stepper),
        RNG: merge_rng(stepper.engine.merge(capture_rng(stepper.device))),
        "data": dict(data),
    } | ({} if own is None else {WIRE: own})


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a state that must not become a checkpoint.

    Raises:
        TrainError: A tensor has a NaN, or an Inf outside of the model's buffers; the message names it.
    """
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    if not names:
        return
    flags = [_total(local_shard(tensors[name].detach())).isfinite().cpu() for name in names]
    doubtful = [name for name, finite in zip(names, torch.stack(flags).tolist(), strict=True) if not finite]
    # A sum may overflow where no element does; an element that isn't finite makes every sum so.
    bad = [name for name in doubtful if not _all_finite(local_shard(tensors[name].detach()))]
    # A buffer may hold Inf on purpose (an attention mask), never NaN.
    bad = [name for name in bad if isinstance(tensors[name], nn.Parameter) or _is_bad(name, tensors[name])]
    if bad:
        raise TrainError("train.state_not_finite", names=_show(bad))


def restore_state(
    checkpoint: Checkpoint, *, stepper: Stepper, progress: Progress, allow_missing: Collection[str] = ()
) -> Restored:
    """Put a saved state back, in place and whole.

    ``allow_missing`` may name ``rng``: a damaged random state is then given up, and said so.

    Raises:
        CheckpointError: An entry is claimed by nobody, a component would get nothing, a tensor has
            another shape or format, or the random state is damaged; the message names it.
    """
    state = checkpoint.state
    _check_keys(state)
    _check_policy(state, stepper=stepper)
    left = stepper.engine.restore_own(state.get(WIRE))
    stepper.engine.restore_state(stepper.module, checkpoint, _targets(state, stepper=stepper))
    _restore_scalars(state, stepper=stepper, progress=progress)
    missing = _restore_rng(state, stepper=stepper, allow_missing=allow_missing)
    names = tuple(key for key in ("model", "optimizer", *_KEYS[1:]) if key not in missing)
    return Restored(
        step=progress.step,
        names=tuple(dict.fromkeys(names)),
        path=checkpoint.path,
        layout=checkpoint.manifest.layout,
        missing=missing,
        left=left,
    )


def _model_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise TrainError("train.state_not_tensor", name=name, kind=type(value).__name__)
        tensors[name] = value
    return tensors


def _optimized(stepper: Stepper) -> dict[str, torch.Tensor]:
    """Return the optimizer's parameters by their name in the module."""
    names = {parameter: name for name, parameter in stepper.module.named_parameters()}
    parameters = [parameter for group in stepper.optimizer.param_groups for parameter in group["params"]]
    return {names.get(parameter, f"#{index}"): parameter for index, parameter in enumerate(parameters)}


def _optimizer_json(stepper: Stepper) -> dict[str, Any]:
    state = stepper.optimizer.state
    parameters = _optimized(stepper)
    scalars = {
        name: {key: value for key, value in state.get(parameter, {}).items() if not isinstance(value, torch.Tensor)}
        for name, parameter in parameters.items()
    }
    without = [name for name, parameter in parameters.items() if not _has_state(stepper.optimizer, parameter)]
    of_all = stepper.engine.merge([without, {name: values for name, values in scalars.items() if values}])
    return {
        "kind": _kind(stepper.optimizer),
        "without_state": list(dict.fromkeys(name for names, _ in of_all for name in names)),
        "scalars": {name: values for _, found in of_all for name, values in found.items()},
    }


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Name the arithmetic; where state lives may change from one attempt to the next."""
    return optimizer.kind_name if isinstance(optimizer, ChunkedOptimizer) else type(optimizer).__name__


def _total(values: torch.Tensor) -> torch.Tensor:
    """Return a number that is finite only if all values are: one pass, nothing made on the way."""
    if values.itemsize == 1:
        values = values.float()
    return values.sum(dtype=torch.promote_types(values.dtype, torch.float32))


def _all_finite(values: torch.Tensor) -> bool:
    return bool(torch.isfinite(values.float() if values.itemsize == 1 else values).all())


def _is_bad(name: str, tensor: torch.Tensor) -> bool:
    return not name.startswith(MODEL_PREFIX) or bool(torch.isnan(local_shard(tensor)).any())


def _check_keys(state: Mapping[str, Any]) -> None:
    if unclaimed := [key for key in state if key not in (*_KEYS, WIRE)]:
        raise CheckpointError("train.state_unclaimed", names=_show(unclaimed))
    if missing := [key for key in _KEYS if key not in state and key != RNG]:
        raise CheckpointError("train.state_missing", names=_show(missing))
    if state["format"] != STATE_FORMAT:
        raise CheckpointError("train.state_format", found=state["format"], known=STATE_FORMAT)


def _check_policy(state: Mapping[str, Any], *, stepper: Stepper) -> None:
    if state["precision"] != stepper.precision.policy:
        raise CheckpointError("train.precision_changed", old=state["precision"], new=stepper.precision.policy)
    if (kind := _kind(stepper.optimizer)) != state["optimizer"]["kind"]:
        raise CheckpointError("train.optimizer_changed", old=state["optimizer"]["kind"], new=kind)
    if bool(state["scaler"]) != bool(stepper.scaler):
        raise CheckpointError("train.state_missing" if stepper.scaler else "train.state_unclaimed", names="scaler")


def _targets(state: Mapping[str, Any], *, stepper: Stepper) -> dict[str, torch.Tensor]:
    """Return the tensors to fill. Optimizer state is created first: what doesn't exist can't be filled."""
    without = set(state["optimizer"]["without_state"])
    parameters = _optimized(stepper)
    if len(without) < len(parameters):
        _create_state(stepper.optimizer)
    for name in without & set(parameters):
        _drop_state(stepper.optimizer, parameters[name])
    return state_tensors(stepper)


def _has_state(optimizer: torch.optim.Optimizer, parameter: Any) -> bool:
    if isinstance(optimizer, ChunkedOptimizer):
        return optimizer.has_stepped(parameter)
    return bool(optimizer.state.get(parameter))


def _drop_state(optimizer: torch.optim.Optimizer, parameter: Any) -> None:
    if isinstance(optimizer, ChunkedOptimizer):
        optimizer.forget(parameter)
    else:
        optimizer.state.pop(parameter, None)


def _create_state(optimizer: torch.optim.Optimizer) -> None:
    """Have the optimizer make its state, by a step with zero gradients and zero rate: works for any kind."""
    if isinstance(optimizer, ChunkedOptimizer):
        optimizer.create_state()
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _restore_scalars(state: Mapping[str, Any], *, stepper: Stepper, progress: Progress) -> None:
    try:
        for key, value in asdict(Progress(**state["progress"])).items():
            setattr(progress, key, value)
        stepper.counters = StepCounters(**state["counters"])
        if stepper.scaler:
            stepper.scaler.restore(state["scaler"])
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError("train.state_damaged", cause=error) from error
    parameters = _optimized(stepper)
    for name, values in state["optimizer"]["scalars"].items():
        if name in parameters or not stepper.engine.lockstep:  # another rank's parameter is no concern of this one
            stepper.optimizer.state[parameters[name]].update(values)


def _restore_rng(state: Mapping[str, Any], *, stepper: Stepper, allow_missing: Collection[str]) -> tuple[str, ...]:
    try:
        rank = stepper.engine.rank
        restore_rng(rng_of_rank(state.get(RNG), rank=rank), device=stepper.device, rank=rank)
    except CheckpointError:
        if RNG not in allow_missing:
            raise
        return (RNG,)
    return ()


def _show(names: Collection[str]) -> str:
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (f" ... ({len(names)})" if len(names) > _SHOWN else "")
