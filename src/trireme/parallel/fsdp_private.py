"""The private side of torch's ``fully_shard`` (torch 2.13): everything of it that has no public name, here alone.

What Trireme needs and FSDP2 doesn't offer: to know which parameters got a gradient on this rank (it fills in zeros),
reductions in the same order on every rank whatever each rank's backward skips, a reduction by hand where no backward
hook comes (weights computed apart from inputs), unsharded parameters to be marked once, shards of a module
on the meta device to be filled one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from trireme.interpret import marks_of, unseen, with_marks

Forwarded = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword inputs of a forward."""

Mark = Callable[[str, nn.Parameter], None]
"""Hears of a parameter's name and of the whole tensor that forward computes with, once."""


def groups_of(module: nn.Module) -> list[FSDPParamGroup]:
    """Give the parameter groups of one module that ``fully_shard`` was called on (none if it had no parameters)."""
    return list(_state(module)._fsdp_param_groups)


def _state(module: nn.Module) -> FSDPState:
    assert isinstance(module, FSDPModule)
    return module._get_fsdp_state()


def prepare_root(root: nn.Module) -> None:
    """Do now what FSDP would do in the first forward, whichever module of it runs first."""
    _state(root)._lazy_init()


def managed(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Parameter, FSDPParam]]:
    """Yield each sharded parameter with FSDP's record of it."""
    for module in modules:
        for group in groups_of(module):
            for record in group.fsdp_params:
                yield record.sharded_param, record


def mark_gathered(module: nn.Module, mark: Mark, names: dict[tuple[int, str], str]) -> None:
    """Call ``mark`` when a parameter's whole tensor exists for the first time; FSDP keeps the object from then on."""
    for group in groups_of(module):
        for record in group.fsdp_params:
            name = names[id(record._module_info.module), record._module_info.param_name]
            record.init_unsharded_param = functools.partial(  # type: ignore[method-assign]
                _init_and_mark, record, record.init_unsharded_param, functools.partial(mark, name)
            )


def _init_and_mark(record: FSDPParam, original: Callable[[], None], mark: Callable[[nn.Parameter], None]) -> None:
    is_new = not hasattr(record, "_unsharded_param")
    original()
    if is_new:
        mark(record._unsharded_param)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """A unit whose gradients have just been summed over shards; on a device once it has reached ``reduced``."""

    parameters: tuple[nn.Parameter, ...]
    reduced: torch.Event | None


OnReduced = Callable[[int, ShardGroup], None]
"""Hears of a unit's number and of the unit, when its last reduction of the step has been started."""


class OrderedReduction:
    """Lets groups reduce in one order on every rank, and remembers which parameters had a gradient.

    FSDP reduces a group when backward leaves it. A rank whose loss doesn't reach some block leaves in another order
    than its partners, and their collectives would meet the wrong ones. Here a group waits for its turn. What backward
    never leaves, and what runs several times in one forward, is reduced at backward's end.
    """

    def __init__(self, modules: Sequence[nn.Module], *, on_reduced: OnReduced | None = None) -> None:
        """Take modules in the order in which backward leaves them; the root is the last."""
        self._root = modules[-1]
        self._on_reduced = on_reduced
        self._groups = [group for module in modules for group in groups_of(module)]
        self._originals = {id(group): group.post_backward for group in self._groups}
        self._due: list[FSDPParamGroup] = []
        self._ready: set[int] = set()
        self._entered: set[int] = set()
        self._repeated: set[int] = set()
        self.is_final = False
        self._finished: set[int] = set()
        self.with_grad: set[int] = set()
        for group in self._groups:
            group.post_backward = functools.partial(self._leave, group)  # type: ignore[method-assign]
            group.pre_forward = functools.partial(self._enter, group, group.pre_forward)  # type: ignore[method-assign]
        self._root.register_forward_pre_hook(lambda *_: self._entered.clear(), prepend=True)
        for module in modules:
            state = _state(module)
            ending = functools.partial(self._end_backward, state._root_post_backward_final_callback)
            state._root_post_backward_final_callback = ending  # type: ignore[method-assign]

    def restart(self) -> None:
        """Begin a step."""
        self.with_grad.clear()
        self._finished.clear()
        self.arm([], is_final=False)

    def arm(self, modules: Sequence[nn.Module], *, is_final: bool) -> None:
        """Let these modules reduce in the backward that follows, all others not.

        With copies of shards, only the final reduction of a step goes over the copies; earlier ones add up before.
        """
        self.is_final = is_final
        chosen = {id(group) for module in modules for group in groups_of(module)}
        for group in self._groups:
            group.reduce_grads = id(group) in chosen
            group.all_reduce_grads = is_final
        self._due = [group for group in self._groups if group.reduce_grads]
        self._ready.clear()

    def _enter(self, group: FSDPParamGroup, original: Callable[..., Forwarded], *inputs: Any) -> Forwarded:
        """Stand in for FSDP's own ``pre_forward``; recomputation doesn't come here."""
        if id(group) in self._entered:
            self._repeated.add(id(group))
        self._entered.add(id(group))
        return original(*inputs)

    def _leave(self, group: FSDPParamGroup, *unused: object) -> None:
        """Stand in for FSDP's own ``post_backward``."""
        if group not in self._due:
            if all(hasattr(record, "_unsharded_param") for record in group.fsdp_params):
                self._originals[id(group)]()
            return
        group._training_state = TrainingState.POST_BACKWARD
        if id(group) not in self._repeated:
            self._ready.add(id(group))
            self._advance()

    def _advance(self) -> None:
        while self._due and id(self._due[0]) in self._ready:
            self._reduce(self._due.pop(0))

    def _reduce(self, group: FSDPParamGroup) -> None:
        self.with_grad |= {id(record) for record in group.fsdp_params if _has_gradient(record)}
        self._originals[id(group)]()
        group.reduce_grads = False
        if self.is_final:
            self._finished.add(id(group))
            if self._on_reduced is not None:
                parameters = tuple(record.sharded_param for record in group.fsdp_params)
                unit = ShardGroup(parameters=parameters, reduced=group._post_reduce_event)
                self._on_reduced(self._groups.index(group), unit)

    def is_finished(self, module: nn.Module) -> bool:
        """Tell whether a module's final reduction of the step is under way or done."""
        return all(id(group) in self._finished for group in groups_of(module))

    def _end_backward(self, original: Callable[[], None]) -> None:
        self.flush()
        original()

    def flush(self) -> None:
        """Reduce what has not been, in order; also by hand after weights computed apart from inputs."""
        while self._due:
            self._reduce(self._due.pop(0))

    def conclude(self) -> None:
        """Wait for all reductions and leave every parameter as its shard."""
        for group in self._groups:
            group.reduce_grads = False
            group.reshard_after_backward = True
        state = _state(self._root)
        state._state_ctx.is_last_backward = True
        state._root_post_backward_final_callback()


def _has_gradient(record: FSDPParam) -> bool:
    if not hasattr(record, "_unsharded_param"):
        return False
    return record.unsharded_accumulated_grad is not None or record._unsharded_param.grad is not None


def drop_unfinished(root: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Forget a step that an error ended: its gathers, its unsharded gradients."""
    assert isinstance(root, FSDPModule)
    for _, record in managed(modules):
        record.unsharded_accumulated_grad = None
        if hasattr(record, "_unsharded_param"):
            record._unsharded_param.grad = None
    root.reset_iter_state()


def set_last(root: nn.Module, *, is_last: bool) -> None:
    """Say whether the end of the backward that follows waits for all reductions."""
    assert isinstance(root, FSDPModule)
    root.set_is_last_backward(is_last)


def fill_shard(record: FSDPParam, local: Tensor) -> None:
    """Put a real tensor in the place of a shard on the meta device, wherever the parameter is tied to."""
    whole = record.to_sharded_dtensor(local)
    record._setattr_on_modules(nn.Parameter(whole, requires_grad=record.sharded_param.requires_grad))
    record.reset_sharded_param()  # type: ignore[no-untyped-call]


def local_shard(parameter: Tensor) -> Tensor:
    """Give the part of a tensor that this rank holds, without a copy and outside autograd."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter.detach()


def keep_modes_out(module: nn.Module) -> None:
    """Have FSDP's own forward hooks run unseen by function modes: what it does to parameters is not the user's code."""
    hook_tables: tuple[Any, ...] = (module._forward_pre_hooks, module._forward_hooks)
    for hooks in hook_tables:
        for key, hook in list(hooks.items()):
            if isinstance(getattr(hook, "__self__", None), FSDPState):
                hooks[key] = _unseen(hook)


def _unseen(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def run(module: nn.Module, *args: Any) -> Any:
        with unseen():
            result = hook(module, *args)
            _keep_marks(args, result)
        return result

    return run


def _keep_marks(given: Any, made: Any) -> None:
    """Put what was known about a hook's arguments on the tensors it made of them: aliases are new objects."""
    old, new = ([leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)] for value in (given[:2], made))
    if len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            if after is not before:
                with_marks(after, marks_of(before))
