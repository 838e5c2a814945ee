"""An optimizer that steps stretch by stretch: on fp32 copies of 16-bit weights, on state that lives elsewhere, or both.

The user's own optimizer does the arithmetic, on one stretch of one parameter at a time, so what it computes is what it
would compute on whole tensors; only elementwise optimizers can be taken apart like that. Between steps its state lies
where ``StateHome`` keeps it, under the names it has always had, with the fp32 copies beside it as ``master``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trireme.errors import LayoutError
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.optimizer_kind import OptimizerKind, judge_optimizer, refuse_by_name, state_like_parameter
from trireme.parallel.optimizer_step import step_times
from trireme.parallel.rounding import StochasticRounding
from trireme.parallel.state_home import DeviceHome, StateHome, Visit

MASTER = "master"
"""Name of the fp32 copy among a parameter's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    group: dict[str, Any]
    parameter: nn.Parameter
    start: int
    stop: int
    is_last: bool


class ChunkedOptimizer(torch.optim.Optimizer):
    """Wraps any elementwise torch optimizer that has not stepped yet.

    ``param_groups`` are the wrapped optimizer's own, with the model's parameters. ``state`` holds, by parameter, what
    the wrapped optimizer keeps, laid out like the parameter (sharded where that is), and ``master``.

    Args:
        optimizer: Built on the model's parameters, whole or sharded.
        home: Where state lives. Default: where the parameters do.
        keeps_master: Keep an fp32 copy of parameters of fewer bits and step on that.
        rounding: How new weights are rounded where there is no copy. Default: to nearest.
        widens: Step in fp32 and keep state in fp32; False: in the parameter's own format, as torch does.
        chunk_numel: Elements of a stretch. Default: what suits the home.

    Raises:
        LayoutError: The optimizer mixes elements or tensors, so it can't step on stretches; or it has state already.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        home: StateHome | None = None,
        keeps_master: bool = False,
        rounding: StochasticRounding | None = None,
        widens: bool = True,
        chunk_numel: int | None = None,
    ) -> None:
        refuse_by_name(optimizer)
        if judge_optimizer(optimizer) is not OptimizerKind.ELEMENTWISE:
            raise LayoutError("parallel.chunked_whole", name=type(optimizer).__name__)
        if optimizer.state:
            raise LayoutError("parallel.chunked_stepped", name=type(optimizer).__name__)
        self.optimizer = optimizer
        self.home = home or DeviceHome()
        self.keeps_master = keeps_master
        self._rounding = rounding
        self._widens = widens
        self._chunk_numel = chunk_numel or self.home.chunk_numel
        self._state: defaultdict[nn.Parameter, dict[str, Any]] = defaultdict(dict)
        self._seen: dict[int, tuple[int, int]] = {}
        self._cut: set[str] = set()
        self._like = state_like_parameter(optimizer)
        self.home.reserve(self.state_bytes)
        self._make_masters()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state by parameter."""
        return self._state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's defaults."""
        return self.optimizer.defaults

    @property
    def kind_name(self) -> str:
        """What the arithmetic is called; where state lives is no part of it."""
        return type(self.optimizer).__name__

    @property
    def state_bytes(self) -> int:
        """Bytes of state on this rank once every parameter has been stepped."""
        return sum(self._bytes_of(parameter) for parameter in self._parameters())

    def set_step(self, step: int) -> None:
        """Tell the rounding, if it draws, which step it draws for."""
        if self._rounding is not None:
            self._rounding.step = step

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step on every parameter that has a gradient.

        Raises:
            LayoutError: A closure was given; it would run forward and backward between stretches.
        """
        if closure is not None:
            raise LayoutError("parallel.optimizer_closure", name=self.kind_name)
        self.step_scaled(1.0)

    @torch.no_grad()
    def step_scaled(self, factor: float = 1.0) -> None:
        """Step with gradients times a factor."""
        self._run([each for each in self._stretches() if _has_work(each)], factor=factor)

    @torch.no_grad()
    def create_state(self) -> None:
        """Have the wrapped optimizer make all its state, by a step with zero gradients at zero rate."""
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        try:
            self._run(list(self._stretches()), factor=1.0, is_trial=True)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

    def has_stepped(self, parameter: nn.Parameter) -> bool:
        """Whether there is state beside the fp32 copy."""
        return bool(self._state.get(parameter, {}).keys() - {MASTER})

    def forget(self, parameter: nn.Parameter) -> None:
        """Drop a parameter's state but for its fp32 copy, as if it had never had a gradient."""
        kept = self._state[parameter]
        for key in kept.keys() - {MASTER}:
            del kept[key]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Give the state by number of the parameter, as torch's optimizers do."""
        numbers = {id(parameter): index for index, parameter in enumerate(self._parameters())}
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}}
            | {"params": [numbers[id(parameter)] for parameter in group["params"]]}
            for group in self.param_groups
        ]
        state = {numbers[id(parameter)]: dict(kept) for parameter, kept in self._state.items() if kept}
        return {"state": state, "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into place; tensors stay where they live."""
        parameters = self._parameters()
        if any(kept.keys() - self._state[parameters[number]].keys() for number, kept in state_dict["state"].items()):
            self.create_state()
        for number, kept in state_dict["state"].items():
            own = self._state[parameters[number]]
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    local_shard(own[key]).copy_(local_shard(value))
                else:
                    own[key] = value
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the model's parameters are known from the start.

        Raises:
            LayoutError: Always.
        """
        raise LayoutError("parallel.optimizer_group", name=self.kind_name)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"ChunkedOptimizer({self.optimizer!r}, {self.home!r})"

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _bytes_of(self, parameter: nn.Parameter) -> int:
        keys = self._like.get(min(max(parameter.dim(), 1), 3), frozenset())
        count = len(keys) + self._has_master(parameter)
        return count * local_shard(parameter).numel() * self._work_dtype(parameter).itemsize

    def _work_dtype(self, parameter: Tensor) -> torch.dtype:
        return torch.promote_types(parameter.dtype, torch.float32) if self._widens else parameter.dtype

    def _has_master(self, parameter: nn.Parameter) -> bool:
        return self.keeps_master and self._work_dtype(parameter) != parameter.dtype

    @torch.no_grad()
    def _make_masters(self) -> None:
        for parameter in self._parameters():
            if self._has_master(parameter):
                made = self._allocate(parameter, MASTER)
                made.copy_(local_shard(parameter))
                self._seen[id(parameter)] = _mark(parameter)

    def _allocate(self, parameter: nn.Parameter, key: str) -> Tensor:
        """Make room for one entry of a parameter's state; returns what this rank holds of it."""
        local = self.home.allocate(local_shard(parameter), dtype=self._work_dtype(parameter))
        self._cut.add(key)
        self._state[parameter][key] = _laid_out_like(parameter, local)
        return local

    def _stretches(self) -> Iterator[_Stretch]:
        for group in list(self.param_groups):
            for parameter in group["params"]:
                shard = local_shard(parameter)
                numel = shard.numel()
                length = self._chunk_numel if shard.is_contiguous() else max(1, numel)
                # A rank without rows has state without rows, so that all ranks know of it.
                for start in range(0, max(1, numel), length):
                    stop = min(start + length, numel)
                    yield _Stretch(group=group, parameter=parameter, start=start, stop=stop, is_last=stop == numel)

    def _run(self, stretches: Sequence[_Stretch], *, factor: float, is_trial: bool = False) -> None:
        """Step on stretch after stretch; the groups are empty but for the one at work."""
        for parameter in {id(each.parameter): each.parameter for each in stretches}.values():
            self._follow_weights(parameter)
        own = [list(group["params"]) for group in self.param_groups]
        visits = [self._visit(each) for each in stretches]
        for group in self.param_groups:
            group["params"] = []
        try:
            with self.home.visiting(visits) as lent:
                for stretch, tensors in zip(stretches, lent, strict=True):
                    self._step_on(stretch, tensors, factor=factor, is_trial=is_trial)
        finally:
            for group, members in zip(self.param_groups, own, strict=True):
                group["params"] = members
            self.optimizer.state.clear()

    def _visit(self, stretch: _Stretch) -> Visit:
        kept = self._state.get(stretch.parameter, {})
        cut = {key: local_shard(value).view(-1) for key, value in kept.items() if key in self._cut}
        return Visit(tensors=cut, start=stretch.start, stop=stretch.stop)

    def _step_on(self, stretch: _Stretch, lent: dict[str, Tensor], *, factor: float, is_trial: bool) -> None:
        parameter, inner = stretch.parameter, self.optimizer
        master = lent.get(MASTER)
        worked = self._weights(stretch) if master is None else master
        part = nn.Parameter(worked, requires_grad=False)
        part.grad = torch.zeros_like(worked) if is_trial else self._gradient(stretch, like=worked)
        kept = self._state.get(parameter, {})
        whole = {key: _copied(value) for key, value in kept.items() if key not in self._cut}
        before = {key: value for key, value in lent.items() if key != MASTER}
        if before or whole:
            inner.state[part] = {**whole, **before}
        stretch.group["params"] = [part]
        step_times(inner, factor)
        stretch.group["params"] = []
        self._keep(stretch, inner.state.pop(part, {}), before=before)
        self._write(stretch, worked, is_exact=master is not None)
        if stretch.is_last and master is not None:
            self._seen[id(parameter)] = _mark(parameter)

    def _weights(self, stretch: _Stretch) -> Tensor:
        """Give what is stepped on: the weights themselves, or a copy in the right format at the right place."""
        part = local_shard(stretch.parameter).reshape(-1)[stretch.start : stretch.stop]
        return self.home.bring(part, dtype=self._work_dtype(stretch.parameter), use="weights")

    def _gradient(self, stretch: _Stretch, *, like: Tensor) -> Tensor:
        gradient = stretch.parameter.grad
        if gradient is None:
            return torch.zeros_like(like)
        part = local_shard(gradient).reshape(-1)[stretch.start : stretch.stop]
        return self.home.bring(part, dtype=like.dtype, use="gradients")

    def _write(self, stretch: _Stretch, exact: Tensor, *, is_exact: bool) -> None:
        """Put new weights into the parameter, if they aren't there already."""
        parameter = stretch.parameter
        shard = local_shard(parameter)
        if exact.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr():
            return
        if not is_exact and self._rounding is not None and exact.dtype != parameter.dtype:
            exact = self._rounding(parameter, exact, stretch.start)
        if shard.is_contiguous():
            self.home.send(exact, shard.view(-1)[stretch.start : stretch.stop])
        else:
            self.home.send(exact.view(shard.shape), shard)

    def _keep(self, stretch: _Stretch, made: dict[str, Any], *, before: dict[str, Tensor]) -> None:
        """Put what the wrapped optimizer made of a stretch's state where it lives."""
        kept = self._state[stretch.parameter]
        length = stretch.stop - stretch.start
        for key, value in made.items():
            if key in before:
                if value.data_ptr() != before[key].data_ptr():
                    before[key].copy_(value)
            elif isinstance(value, Tensor) and value.dim() and value.numel() == length:
                is_new = key not in kept
                local = self._allocate(stretch.parameter, key) if is_new else local_shard(kept[key])
                local.view(-1)[stretch.start : stretch.stop].copy_(value)
            elif stretch.is_last:
                _store(kept, key, value)

    def _follow_weights(self, parameter: nn.Parameter) -> None:
        """Where somebody else wrote weights since the last step, the fp32 copy takes them over."""
        master = self._state.get(parameter, {}).get(MASTER)
        if master is None or self._seen.get(id(parameter)) == _mark(parameter):
            return
        shard, copy = local_shard(parameter), local_shard(master)
        given = shard.to(device=copy.device, dtype=copy.dtype)
        is_same = copy.to(shard.dtype).to(copy.dtype) == given
        copy.copy_(torch.where(is_same, copy, given))
        self._seen[id(parameter)] = _mark(parameter)


def _has_work(stretch: _Stretch) -> bool:
    return stretch.parameter.grad is not None or stretch.start == stretch.stop


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _store(kept: dict[str, Any], key: str, value: Any) -> None:
    """Keep the tensor object that others may have got hold of."""
    old = kept.get(key)
    if isinstance(value, Tensor) and isinstance(old, Tensor) and old.shape == value.shape:
        old.copy_(value)
    else:
        kept[key] = value


def _laid_out_like(parameter: nn.Parameter, local: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _mark(parameter: nn.Parameter) -> tuple[int, int]:
    """Name the values a parameter has: where they lie, and how often that was written."""
    shard = local_shard(parameter)
    return shard.data_ptr(), shard._version
