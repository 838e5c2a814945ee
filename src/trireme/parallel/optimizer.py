"""The user's optimizer over a spread model: unscale, clip by the one true norm, step, and skip alike on all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trireme.errors import LayoutError
from trireme.parallel.chunked import ChunkedOptimizer
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.gather import GatherChain, gatherer_of
from trireme.parallel.norm import grad_norm
from trireme.parallel.optimizer_kind import OptimizerKind, judge_optimizer, refuse_by_name, state_like_parameter
from trireme.parallel.optimizer_local import LocalParameters, WholeStep
from trireme.parallel.optimizer_step import multiply, step_times
from trireme.parallel.part import ParameterPart


class LossScale(Protocol):
    """What the step needs of an fp16 loss scaler."""

    scale: float

    def update(self, *, overflow: bool) -> None:
        """Take note of one update."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step did, the same on every rank.

    Attributes:
        norm: Global gradient norm, unscaled and before clipping.
        factor: What gradients were multiplied by.
        is_updated: False where the norm was not finite and the step was skipped.
    """

    norm: float
    factor: float
    is_updated: bool


class ParallelOptimizer(torch.optim.Optimizer):
    """Wraps any torch optimizer over the parameters of a spread model.

    Elementwise optimizers step on the local shards; those that need whole tensors get them gathered one by one and
    keep their part; those that mix tensors are refused, unless every rank holds everything.
    ``param_groups``, ``state``, ``state_dict`` and schedulers see the wrapped optimizer's own.

    Args:
        optimizer: Built on the model's parameters, before (then say ``moved``) or after they were spread.
        parts: This rank's parameters, all of the model's that it holds.
        world_group: All ranks of the layout. Default: the world.
        clip_grad_norm: Largest global norm; None: no clipping.
        scaler: Loss scale of fp16; it hears of every step.
        moved: For an optimizer built before: the parameters that took the place of those it holds; None for those
            that this rank no longer holds.

    Raises:
        LayoutError: The optimizer can't be exact here, or holds parameters that aren't the model's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        parts: Sequence[ParameterPart],
        world_group: dist.ProcessGroup | None = None,
        clip_grad_norm: float | None = None,
        scaler: LossScale | None = None,
        moved: Mapping[nn.Parameter, nn.Parameter | None] | None = None,
    ) -> None:
        refuse_by_name(optimizer)
        self.optimizer = optimizer
        self.clip_grad_norm = clip_grad_norm
        self.scaler = scaler
        self.last: StepOutcome | None = None
        self._world_group = world_group
        if moved is not None:
            move_parameters(optimizer, moved, parts=parts)
        if not isinstance(optimizer, ChunkedOptimizer):
            _make_state_plain(optimizer)
        self._parts = _own_parts(optimizer, parts)
        self._gatherers = {id(part.parameter): gatherer_of(part.parameter, share=part.share) for part in self._parts}
        self._locals = LocalParameters()
        self.kind = self._judge()
        self._whole = self._build_whole_step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's state by parameter; what is laid out like a parameter is cut like it."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's defaults."""
        return self.optimizer.defaults

    def grad_norm(self) -> Tensor:
        """Return the global norm of the gradients as they are (scaled, with a loss scale); all ranks call it."""
        return grad_norm(self._parts, world_group=self._world_group)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Unscale, clip and step, or skip on every rank where the norm isn't finite; ``last`` tells which.

        Raises:
            LayoutError: A closure was given; it would run forward and backward outside the layout.
        """
        if closure is not None:
            raise LayoutError("parallel.optimizer_closure", name=type(self.optimizer).__name__)
        scale = self.scaler.scale if self.scaler else 1.0
        norm = float(self.grad_norm()) / scale
        is_finite = math.isfinite(norm)
        factor = _clip_factor(norm, limit=self.clip_grad_norm) / scale if is_finite else 0.0
        if is_finite:
            self.step_scaled(factor)
        if self.scaler:
            self.scaler.update(overflow=not is_finite)
        self.last = StepOutcome(norm=norm, factor=factor, is_updated=is_finite)

    @torch.no_grad()
    def step_scaled(self, factor: float = 1.0) -> None:
        """Step with gradients times a factor, whatever their norm."""
        if isinstance(self.optimizer, ChunkedOptimizer):  # it knows itself how to step on shards
            self.optimizer.step_scaled(factor)
            return
        if self._whole is not None:
            self._scale(factor)
            self._whole.step(self._gatherers)
            return
        with self._locals.put_into(self.optimizer):
            step_times(self.optimizer, factor)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters of the model, those not in the optimizer too."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state: shards where parameters are sharded."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` of the same layout gave."""
        is_chunked = isinstance(self.optimizer, ChunkedOptimizer)
        with nullcontext() if is_chunked else self._locals.put_into(self.optimizer):
            self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the model's parameters are known from the start.

        Raises:
            LayoutError: Always.
        """
        raise LayoutError("parallel.optimizer_group", name=type(self.optimizer).__name__)

    def is_cut_like_parameter(self, parameter: nn.Parameter, key: str) -> bool:
        """Tell whether a state entry is laid out like its parameter, and so holds the same ranges of the whole."""
        if self._whole is not None:
            return self._whole.is_like_parameter(parameter, key)
        value = self.optimizer.state.get(parameter, {}).get(key)
        return (
            isinstance(value, Tensor) and value.dim() > 0 and local_shard(value).shape == local_shard(parameter).shape
        )

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"ParallelOptimizer({self.kind.value}: {self.optimizer!r})"

    def _judge(self) -> OptimizerKind:
        if isinstance(self.optimizer, ChunkedOptimizer):
            return OptimizerKind.ELEMENTWISE
        kind = judge_optimizer(self.optimizer)
        if kind is OptimizerKind.JOINT and not self._holds_everything():
            raise LayoutError("parallel.optimizer_joint", name=type(self.optimizer).__name__)
        return kind

    def _holds_everything(self) -> bool:
        world = dist.get_world_size(self._world_group) if dist.is_initialized() else 1
        return all(part.copies == world for part in self._parts)

    def _build_whole_step(self) -> WholeStep | None:
        is_cut = any(chain.is_cut for chain in self._gatherers.values())
        if self.kind is not OptimizerKind.PER_TENSOR or not is_cut:
            return None
        return WholeStep(self.optimizer, like_parameter=state_like_parameter(self.optimizer))

    def _scale(self, factor: float) -> None:
        grads = [part.parameter.grad for part in self._parts]
        multiply([local_shard(grad) for grad in grads if grad is not None], factor)


def move_parameters(
    optimizer: torch.optim.Optimizer,
    moved: Mapping[nn.Parameter, nn.Parameter | None],
    *,
    parts: Sequence[ParameterPart] = (),
) -> None:
    """Let an optimizer that was built before a model was spread hold the parameters that the model has now.

    State it already has (some make it when they are built) is cut as the parameters are.

    Raises:
        LayoutError: There is state for a parameter that isn't known how to cut.
    """
    shares = {id(part.parameter): part.share for part in parts}
    for group in optimizer.param_groups:
        now = [(old, moved.get(old, old)) for old in group["params"]]
        for old, new in now:
            if new is None:
                optimizer.state.pop(old, None)
            elif new is not old and old in optimizer.state:
                chain = gatherer_of(new, share=shares.get(id(new)))
                _move_state(optimizer, old, new, chain)
        group["params"] = list(dict.fromkeys(new for _, new in now if new is not None))


def _move_state(optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter, chain: GatherChain) -> None:
    state = optimizer.state.pop(old)
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and value.shape == old.shape:
            kept = chain.keep(value)
            if kept.shape != local_shard(new).shape:
                raise LayoutError("parallel.optimizer_stepped", name=type(optimizer).__name__)
            state[key] = kept.clone()
    optimizer.state[new] = state


def _make_state_plain(optimizer: torch.optim.Optimizer) -> None:
    """Keep the local part of state that an optimizer made like its sharded parameters when it was built."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, DTensor):
                state[key] = local_shard(value)


def _own_parts(optimizer: torch.optim.Optimizer, parts: Sequence[ParameterPart]) -> list[ParameterPart]:
    """Give the parts of the optimizer's parameters; a foreign one would differ from rank to rank unnoticed."""
    by_parameter = {id(part.parameter): part for part in parts}
    own = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in by_parameter:
                shape = "x".join(map(str, parameter.shape))
                raise LayoutError("parallel.optimizer_foreign", name=type(optimizer).__name__, shape=shape)
            own.append(by_parameter[id(parameter)])
    return own


def _clip_factor(norm: float, *, limit: float | None) -> float:
    return limit / norm if limit is not None and norm > limit else 1.0
