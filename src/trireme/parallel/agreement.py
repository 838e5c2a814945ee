"""What every rank must have alike before anything is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trireme.errors import LayoutError
from trireme.interpret import is_hollow
from trireme.words import say

_SHOWN = 3


def make_equal(module: nn.Module, *, notice: Callable[[str], None]) -> None:
    """Make parameters and buffers those of rank 0, and tell whose ones differed.

    Raises:
        LayoutError: The modules have other parameters, of other names, shapes or formats.
    """
    _check_same_names(module)
    differing = [
        name for name, tensor in _tensors(module) if not (tensor.is_meta or is_hollow(tensor)) and _take_first(tensor)
    ]
    if differing:
        shown = ", ".join(differing[:_SHOWN])
        notice(say("ranks.made_equal", count=len(differing), names=shown))


def check_statistics(module: nn.Module, *, num_parts: int) -> None:
    """Refuse statistics over a batch that is cut: each part would have its own.

    Raises:
        LayoutError: A batch norm would see a part of the batch; it is named, with what works.
    """
    for path, each in module.named_modules():
        if num_parts > 1 and isinstance(each, _BatchNorm) and not isinstance(each, nn.SyncBatchNorm):
            raise LayoutError("ranks.batch_norm", path=path, kind=type(each).__name__, parts=num_parts)


def check_kept(names: Sequence[str], *, num_parts: int) -> None:
    """Refuse buffers that keep something of activations, where each part of the batch would have its own.

    Raises:
        LayoutError: There are some; the first is named, with what works.
    """
    if names and num_parts > 1:
        raise LayoutError("ranks.kept_activations", name=names[0], parts=num_parts)


def check_carried(names: Sequence[str], *, num_parts: int, num_stages: int) -> None:
    """Refuse activations that go from one forward into the next, where a step is more than one forward.

    Raises:
        LayoutError: There are some; the first is named, with what works.
    """
    if names and num_parts * num_stages > 1:
        raise LayoutError("ranks.carried_activations", name=names[0], parts=num_parts, stages=num_stages)


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _check_same_names(module: nn.Module) -> None:
    own = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in _tensors(module)]
    everyone: list[list[tuple[str, tuple[int, ...], str]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    for rank, other in enumerate(everyone):
        different = sorted({str(each) for each in set(other) ^ set(everyone[0])})
        if different:
            raise LayoutError("ranks.other_module", rank=rank, names="; ".join(different[:_SHOWN]))


@torch.no_grad()
def _take_first(tensor: torch.Tensor) -> bool:
    """Overwrite with rank 0's; return whether it was another one on any rank."""
    first = tensor.detach().clone().contiguous()
    dist.broadcast(first, src=0)
    differs = torch.tensor(not torch.equal(first, tensor.detach()), device=tensor.device, dtype=torch.int32)
    dist.all_reduce(differs)
    if bool(differs):
        tensor.copy_(first)
    return bool(differs)
