"""What has to happen around a block's own forward: in an instance attribute, so that the module's tree, names and
classes stay the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

Forward = Callable[..., Any]


def wrap_forward(block: nn.Module, wrap: Callable[[Forward], Forward]) -> None:
    """Replace the block's forward on this instance; the signature that others may look at stays."""
    original = block.forward
    block.forward = functools.wraps(original)(wrap(original))


def move_tensors(values: Mapping[str, Any], *, device: Any) -> dict[str, Any]:
    """Give the mapping with its tensors on ``device``."""
    moved: dict[str, Any] = tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), dict(values))
    return moved


def move_real(module: nn.Module, *, device: torch.device) -> None:
    """Move what has values to a device, as ``nn.Module.to``; what is on meta, or is there already, stays."""
    real = (each for each in (*module.parameters(), *module.buffers()) if not each.is_meta)
    if all(each.device == device for each in real):
        return
    module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))  # type: ignore[no-untyped-call]
