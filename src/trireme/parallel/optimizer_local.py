"""Letting an optimizer step on the plain local tensors behind sharded parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trireme.interpret import is_hollow
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.gather import GatherChain


class LocalParameters:
    """Plain parameters that share memory with the shards they stand for.

    Outside a step everything stays with the model's own parameters: ``param_groups``, the keys of ``state``.
    State tensors are plain ones with the shape of the shard.
    """

    def __init__(self) -> None:
        self._locals: dict[int, nn.Parameter] = {}

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Give the plain parameter for one of the model's, its gradient with it."""
        if not isinstance(parameter, DTensor):
            return parameter
        shard = local_shard(parameter)
        local = self._locals.get(id(parameter))
        if local is None:
            local = self._locals[id(parameter)] = nn.Parameter(shard, requires_grad=parameter.requires_grad)
        if local.shape != shard.shape or not _is_same_memory(local, shard):
            local.data = shard  # a checkpoint was loaded, or FSDP laid its shards out anew
        has_rows = parameter.grad is not None and shard.numel() > 0
        local.grad = local_shard(parameter.grad) if has_rows and parameter.grad is not None else None
        return local

    @contextmanager
    def put_into(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Let the optimizer see plain parameters inside."""
        own = [list(group["params"]) for group in optimizer.param_groups]
        pairs = [(parameter, self.of(parameter)) for members in own for parameter in members]
        pairs = [(parameter, local) for parameter, local in pairs if local is not parameter]
        _rename(optimizer, pairs)
        for group in optimizer.param_groups:
            group["params"] = [self.of(parameter) for parameter in group["params"]]
        try:
            yield
        finally:
            for group, members in zip(optimizer.param_groups, own, strict=True):
                group["params"] = members
            _rename(optimizer, [(local, parameter) for parameter, local in pairs])
            for _, local in pairs:
                local.grad = None


def _is_same_memory(local: Tensor, shard: Tensor) -> bool:
    return is_hollow(shard) or local.data_ptr() == shard.data_ptr()


def _rename(optimizer: torch.optim.Optimizer, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
    for old, new in pairs:
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


class WholeStep:
    """Steps an optimizer on whole tensors, one after the other, and keeps this rank's part of what comes out.

    State laid out like the parameter is kept cut, everything else whole. At no time is more than one parameter
    whole. Every rank computes the whole update; what is saved against keeping wholes is memory, not time.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, like_parameter: dict[int, frozenset[str]]) -> None:
        self._optimizer = optimizer
        self._like_parameter = like_parameter

    def is_like_parameter(self, parameter: nn.Parameter, key: str) -> bool:
        """Tell whether a state entry is cut like its parameter."""
        return key in self._like_parameter.get(min(parameter.dim(), 3), frozenset())

    @torch.no_grad()
    def step(self, gatherers: dict[int, GatherChain]) -> None:
        """Step on every parameter that has a gradient; ranks that share one do so together."""
        optimizer = self._optimizer
        own = [list(group["params"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        try:
            for group, members in zip(optimizer.param_groups, own, strict=True):
                for parameter in members:
                    if parameter.grad is not None:
                        self._step_one(group, parameter, gatherers[id(parameter)])
                group["params"] = []
        finally:
            for group, members in zip(optimizer.param_groups, own, strict=True):
                group["params"] = members

    def _step_one(self, group: dict[str, object], parameter: nn.Parameter, chain: GatherChain) -> None:
        assert parameter.grad is not None
        shard = local_shard(parameter)
        whole = nn.Parameter(chain.gather(shard).clone())
        whole.grad = chain.gather(local_shard(parameter.grad))
        like = self._like_parameter.get(min(parameter.dim(), 3), frozenset())
        state = self._optimizer.state
        if parameter in state:
            kept = state.pop(parameter)
            state[whole] = {key: chain.gather(value) if key in like else value for key, value in kept.items()}
        group["params"] = [whole]
        with torch.enable_grad():
            self._optimizer.step()
        shard.copy_(chain.keep(whole.detach()))
        if whole in state:
            made = state.pop(whole)
            state[parameter] = {key: _own(chain.keep(value)) if key in like else value for key, value in made.items()}


def _own(part: Tensor) -> Tensor:
    """Let go of the whole tensor that a part is a view of."""
    return part.clone()
