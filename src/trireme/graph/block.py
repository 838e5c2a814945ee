"""A block is a row of operations that runs as one layer, or before or after the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trireme.graph.op import AttentionCount, Op
from trireme.graph.tensor import Kernels, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParam:
    """A parameter by its name below the block."""

    name: str
    shape: tuple[int, ...]
    op: Op


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """Bytes that an operation keeps for backward; the first operation to keep a storage is charged."""

    op: str
    tensor: str
    size_bytes: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Operations in order. ``kind`` says which sort of layer it is; equal layers are one object."""

    kind: str
    ops: tuple[Op, ...] = ()

    @property
    def num_params(self) -> int:
        """Parameters, exact."""
        return sum(op.num_params for op in self.ops)

    @property
    def num_active_params(self) -> int:
        """Parameters that work on one token."""
        return sum(op.num_active_params for op in self.ops)

    def params(self) -> Iterator[BlockParam]:
        """Every parameter with its name below the block."""
        for op in self.ops:
            for param in op.params:
                yield BlockParam(name=".".join(filter(None, (op.name, param.name))), shape=param.shape, op=op)

    def flops(self, load: Load, *, count: AttentionCount) -> int:
        """Forward FLOPs."""
        return sum(op.flops(load, count=count) for op in self.ops)

    def saved_tensors(self, load: Load, kernels: Kernels) -> tuple[SavedTensor, ...]:
        """What is kept for backward, each storage once, in the order of operations."""
        seen: set[str] = set()
        kept: list[SavedTensor] = []
        for op in self.ops:
            for saved in op.saves:
                storage = saved.tensor.storage(kernels)
                if storage.name in seen or not saved.is_kept(load, kernels):
                    continue
                seen.add(storage.name)
                size_bytes = storage.size_bytes(load, kernels)
                kept.append(SavedTensor(op=op.name, tensor=storage.name, size_bytes=size_bytes, shared=storage.shared))
        return tuple(kept)

    def saved_bytes(self, load: Load, kernels: Kernels) -> int:
        """Bytes kept for backward by this block alone, without tables that all layers share."""
        return sum(item.size_bytes for item in self.saved_tensors(load, kernels) if not item.shared)
