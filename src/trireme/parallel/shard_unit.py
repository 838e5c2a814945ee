"""Which parameters are gathered together: one unit a block, the root's own, and those that can't be cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """A module's parameters, divided.

    Attributes:
        blocks: Modules with a unit of their own, in order of execution.
        kept_whole: Parameters that stay whole on every rank.
        apart: Parameters nobody here deals with.
        num_merged: Blocks that belong to the root's unit because they share parameters.
    """

    root: nn.Module
    blocks: tuple[nn.Module, ...]
    kept_whole: tuple[tuple[str, nn.Parameter], ...]
    apart: frozenset[nn.Parameter]
    num_merged: int

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield every parameter dealt with."""
        return (parameter for parameter in self.root.parameters() if parameter not in self.apart)


def divide_into_units(root: nn.Module, blocks: Sequence[nn.Module], *, apart: frozenset[nn.Parameter]) -> Units:
    """Divide a module's parameters; a module that stands twice among the blocks is one."""
    users: Counter[nn.Parameter] = Counter()
    for owner in root.modules():
        users.update({parameter for parameter in owner.parameters(recurse=False) if parameter not in apart})
    once = [block for block in _outermost(blocks) if set(block.parameters()) - apart]
    separate = tuple(block for block in once if _shares_nothing(block, users, apart=apart))
    _make_contiguous(root, apart=apart)
    in_blocks = {parameter for block in separate for parameter in block.parameters()}
    members = [list(block.parameters()) for block in separate]
    members.append([parameter for parameter in root.parameters() if parameter not in in_blocks])
    whole = {parameter for unit in members for parameter in _uncut([each for each in unit if each not in apart])}
    return Units(
        root=root,
        blocks=separate,
        kept_whole=tuple((name, parameter) for name, parameter in root.named_parameters() if parameter in whole),
        apart=apart,
        num_merged=len(once) - len(separate),
    )


def _outermost(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    inside = {each for block in blocks for each in block.modules() if each is not block}
    return [block for block in dict.fromkeys(blocks) if block not in inside]


def _shares_nothing(block: nn.Module, users: Counter[nn.Parameter], *, apart: frozenset[nn.Parameter]) -> bool:
    inside: Counter[nn.Parameter] = Counter()
    for owner in block.modules():
        inside.update({parameter for parameter in owner.parameters(recurse=False) if parameter not in apart})
    return all(users[parameter] == count for parameter, count in inside.items())


def _uncut(unit: Sequence[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Yield what is no matrix (scalars, empty ones) and trained parameters of another format than most (by bytes)."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in unit:
        if parameter.requires_grad and parameter.dim():
            sizes[parameter.dtype] += parameter.numel() * parameter.element_size()
    main = sizes.most_common(1)[0][0] if sizes else None
    for parameter in unit:
        if parameter.numel() == 0 or parameter.dim() == 0 or (parameter.requires_grad and parameter.dtype != main):
            yield parameter


def _make_contiguous(root: nn.Module, *, apart: frozenset[nn.Parameter]) -> None:
    for parameter in root.parameters():
        if parameter not in apart and not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()
