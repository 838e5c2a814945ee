"""Tensors that are one: a tied embedding and head are stored once and must stay one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def first_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return for every name the first name that is the very same memory seen the same way, often itself."""
    first: dict[tuple[object, ...], str] = {}
    return {name: first.setdefault(_place(name, tensor), name) for name, tensor in tensors.items()}


def _place(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.numel() == 0:
        return (name,)  # nothing to share; all empty tensors have the same address
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj())
