"""What compiling a block under interpreters needs of torch and torch doesn't promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import _functional_collectives as functional
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

from trireme.errors import LayoutError

__all__ = [
    "FakeTensorMode",
    "TorchDispatchMode",
    "collectives_traced",
    "compile_graph",
    "compiling",
    "graph_only",
    "is_real",
    "is_watched",
    "values_of",
    "without_function_modes",
]

Compiled = Callable[..., Sequence[Any]]
Backend = Callable[[nn.Module, Sequence[Tensor]], Compiled]


def compile_graph(program: nn.Module, flat: Sequence[Tensor]) -> Compiled:
    """Trace forward and backward of a program on tensors and give it compiled by inductor.

    Kernels lie in inductor's cache on disk, so that another process with the same graph doesn't compile again.
    """
    from torch._inductor.compile_fx import compile_fx

    compiled: Compiled = compile_fx(program, list(flat))  # type: ignore[arg-type,assignment]
    return compiled


def graph_only(program: nn.Module, flat: Sequence[Tensor]) -> Compiled:
    """Trace as ``compile_graph`` does, and run the graph as it is: quick to make, no compiler needed."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    def boxed(graph: Any, example: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_module_simplified(program, list(flat), fw_compiler=boxed, bw_compiler=boxed)  # type: ignore[arg-type]


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Run what is inside as if no function mode had been entered."""
    kept = [_pop_mode() for _ in range(len(_get_current_function_mode_stack()))]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for mode in reversed(kept):
            _push_mode(mode)  # type: ignore[no-untyped-call]


@contextmanager
def compiling() -> Iterator[None]:
    """Have ``torch.compiler.is_compiling`` say yes: models then ask for no values. Recomputation sees nothing of it."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextmanager
def collectives_traced() -> Iterator[None]:
    """Have collectives become part of a graph, as operators that give new tensors."""
    traced: dict[str, Callable[..., Any]] = {
        "all_reduce": _all_reduce,
        "all_gather": functional.all_gather_inplace,
        "all_gather_single": functional.all_gather_tensor_inplace,
        "reduce_scatter_single": _reduce_scatter,
        "all_to_all_single": functional.all_to_all_inplace,
        "batch_isend_irecv": _refuse,
    }
    before = {name: getattr(dist, name) for name in traced}
    for name, function in traced.items():
        setattr(dist, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def _all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    functional.all_reduce_inplace(tensor, functional.REDUCE_OP_TO_STR[op], group)


def _reduce_scatter(output: Tensor, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    functional.reduce_scatter_tensor_inplace(output, tensor, functional.REDUCE_OP_TO_STR[op], group)


def _refuse(*args: Any) -> Any:
    raise LayoutError("compile.passes")


def is_real(tensor: Tensor) -> bool:
    """Whether a tensor is one that kernels compute on."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta and tensor.layout == torch.strided


def values_of(tensor: Tensor) -> Any:
    """Give the numbers of a tensor that has some, whatever modes are entered."""
    with unset_fake_temporarily(), _disable_current_modes():
        return tensor.tolist()


def is_watched() -> bool:
    """Whether somebody looks at every operator that runs: a simulation, a count, selective recomputation."""
    return _get_current_dispatch_mode() is not None
