"""Experts stacked in one module: parameters with an expert in each place of dim 0, called with tokens and choices.

The module keeps its class and its own code, which computes with the experts of this rank on the tokens sent to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.interpret import run_experts
from trireme.parallel.expert_route import Incoming, Router, joined

_STATE = "_trireme_experts"


class StackedDispatch:
    """One module's way of running: choices go out, rows come in, the module's own code computes."""

    def __init__(self, module: nn.Module, router: Router, *, takes: Sequence[str]) -> None:
        self.module, self.router, self.takes = module, router, tuple(takes)

    def __deepcopy__(self, memo: Any) -> StackedDispatch:
        # Process groups can't be copied.
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run what the user called as one operation."""
        given = [*args, *(kwargs[name] for name in self.takes[len(args) :])]
        return run_experts(self, *given)

    def traced(self, hidden: Tensor) -> Tensor:
        """Give a result like the tokens."""
        return hidden.clone()

    def __call__(self, hidden: Tensor, *choice: Tensor, tokens_cut: bool) -> Tensor:
        """Send the tokens and give the weighted sums."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        if choice:
            index, weights = (each.reshape(rows.shape[0], _last(each)) for each in choice)
            out = self.router.run(rows, index, weights, compute=self._chosen, tokens_cut=tokens_cut)
        else:
            experts = self.router.share.num_experts
            index = torch.arange(experts, device=rows.device).repeat_interleave(rows.shape[0] // experts)
            out = self.router.run(rows, index[:, None], None, compute=self._blocks, tokens_cut=tokens_cut)
        return out.to(hidden.dtype).reshape(*hidden.shape[:-1], out.shape[-1])

    def _chosen(self, incoming: Incoming) -> Tensor:
        rows = incoming.rows
        weights = torch.ones_like(incoming.experts, dtype=rows.dtype)
        weights = weights if incoming.weights is None else incoming.weights
        return self._own(rows, incoming.experts[:, None], weights[:, None])

    def _blocks(self, incoming: Incoming) -> Tensor:
        """Run code that takes equally many rows for each expert, one expert after another."""
        order = torch.argsort(incoming.experts, stable=True)
        results = self._own(incoming.rows[order])
        return torch.zeros_like(results).index_copy(0, order, results)

    def _own(self, rows: Tensor, *choice: Tensor) -> Tensor:
        if rows.shape[0] == 0:
            # As on one device, experts that nobody chose have a gradient of zero, for they share a parameter.
            return joined(rows, *self.module.parameters(recurse=False))
        with as_local(self.module, self.router.share.num_experts, self.router.share.length):
            result = self._whole_forward(rows, *choice)
            return result.reshape(rows.shape[0], result.shape[-1])

    def _whole_forward(self, *args: Tensor) -> Tensor:
        result: Tensor = super(StackedDealt, self.module).forward(*args)  # type: ignore[misc]
        return result


class StackedDealt:
    """Comes before a module's class in its order of methods."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Send tokens to the experts they chose, wherever those are."""
        dispatch: StackedDispatch = self.__dict__[_STATE]
        # A copy of the module has the same way of running with its own parameters.
        if dispatch.module is not self:  # type: ignore[comparison-overlap]
            dispatch = self.__dict__[_STATE] = StackedDispatch(self, dispatch.router, takes=dispatch.takes)  # type: ignore[arg-type]
        return dispatch.forward(*args, **kwargs)


def deal_stacked(module: nn.Module, router: Router) -> None:
    """Keep this rank's experts of a module and let it run with those of all ranks."""
    owned = router.share.owned
    for name, parameter in list(module._parameters.items()):
        if parameter is not None:
            local = parameter.detach()[owned.start : owned.stop].clone()
            module._parameters[name] = nn.Parameter(local, requires_grad=parameter.requires_grad)
    for name, buffer in list(module._buffers.items()):
        if buffer is not None and buffer.ndim and buffer.shape[0] == router.share.num_experts:
            module._buffers[name] = buffer[owned.start : owned.stop].clone()
    module.__dict__[_STATE] = StackedDispatch(module, router, takes=taken_by(module))
    swap_class(module, StackedDealt)


def swap_class(module: nn.Module, mixin: type) -> None:
    """Put a mixin before the module's class; its name stays."""
    kind = type(module)
    place = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    module.__class__ = type(kind.__name__, (mixin, kind), place)


def taken_by(module: nn.Module) -> tuple[str, ...]:
    """Give the names of what a module's forward takes."""
    return tuple(inspect.signature(type(module).forward).parameters)[1:]


def _last(choice: Tensor) -> int:
    return choice.shape[-1] if choice.ndim > 1 else 1


@contextmanager
def as_local(module: nn.Module, whole: int, local: int) -> Iterator[None]:
    """Let the module's code see as many experts as this rank has."""
    counts = {name for name, value in module.__dict__.items() if _counts_experts(name, value, whole)}
    module.__dict__.update(dict.fromkeys(counts, local))
    try:
        yield
    finally:
        module.__dict__.update(dict.fromkeys(counts, whole))


def _counts_experts(name: str, value: Any, whole: int) -> bool:
    return type(value) is int and value == whole and "expert" in name.lower()
