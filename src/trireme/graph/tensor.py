"""A tensor by what decides its bytes: how many rows, how wide, which kind of number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Rows = Literal[
    "tokens",
    "memory",
    "pairs",
    "memory_pairs",
    "mask",
    "positions",
    "position_pairs",
    "memory_position_pairs",
    "seqs",
    "once",
]
Kind = Literal["compute", "stream", "float32", "int64", "int32", "bool", "dropout_mask"]
AttentionKernel = Literal["eager", "sdpa", "flash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One micro-batch as a stack of layers sees it.

    ``memory_len`` is the length of the sequence that cross attention reads (an encoder's output).
    """

    seqs: int
    seq_len: int
    memory_len: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Which code runs, as far as it decides what is kept for the backward pass.

    ``attention``: ``eager`` keeps the score matrices; ``flash`` keeps queries, keys, values, output and one
    number per row; ``sdpa`` is flash where torch can use it, and repeats key/value heads and keeps a mask where
    a sliding window forces one. ``fused`` norms and gated products keep their inputs and no intermediate.
    ``dtype_bytes`` is the format of matrix products. Under autocast weights and the residual stream keep their own,
    ``stream_bytes`` (4): every product casts its input for itself, and norms compute on the stream as it is.
    ``dropout_mask_bytes`` is 1 on accelerators; torch on CPU keeps the mask in the number format of the input.
    """

    attention: AttentionKernel = "flash"
    fused: bool = False
    dtype_bytes: int = 2
    stream_bytes: int | None = None
    dropout_mask_bytes: int = 1

    def bytes_of(self, kind: Kind) -> int:
        """Bytes of one number of that kind."""
        match kind:
            case "compute":
                return self.dtype_bytes
            case "stream":
                return self.stream_bytes or self.dtype_bytes
            case "float32" | "int32":
                return 4
            case "int64":
                return 8
            case "bool":
                return 1
            case "dropout_mask":
                return self.dropout_mask_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A value inside a block; equal names are one piece of memory.

    A view keeps the name of the storage it looks into and that storage's width. ``cast_of`` is the tensor that
    this one is a copy of in another format: where both formats are one, no copy is made. ``shared`` tensors
    (rotary tables, masks) exist once for all layers.
    """

    name: str
    width: int
    rows: Rows = "tokens"
    kind: Kind = "compute"
    storage_width: int = 0
    cast_of: Tensor | None = None
    shared: bool = False

    def view(self, width: int) -> Tensor:
        """The same memory looked at through fewer or other columns."""
        return replace(self, width=width, storage_width=self.storage_width or self.width)

    def storage(self, kernels: Kernels) -> Tensor:
        """The tensor whose memory this one occupies under these kernels."""
        original = self.cast_of
        if original is not None and kernels.bytes_of(self.kind) == kernels.bytes_of(original.kind):
            return original.storage(kernels)
        return self

    def size_bytes(self, load: Load, kernels: Kernels) -> int:
        """Bytes of the storage."""
        storage = self.storage(kernels)
        width = storage.storage_width or storage.width
        return count_rows(storage.rows, load) * width * kernels.bytes_of(storage.kind)


def count_rows(rows: Rows, load: Load) -> int:
    """How many rows of that sort one micro-batch has."""
    tokens = load.seqs * load.seq_len
    match rows:
        case "tokens":
            return tokens
        case "memory":
            return load.seqs * load.memory_len
        case "pairs" | "mask":
            return tokens * load.seq_len
        case "memory_pairs":
            return tokens * load.memory_len
        case "position_pairs":
            return load.seq_len**2
        case "positions":
            return load.seq_len
        case "memory_position_pairs":
            return load.seq_len * load.memory_len
        case "seqs":
            return load.seqs
        case "once":
            return 1


def float32_copy(tensor: Tensor) -> Tensor:
    """The copy that ``tensor.float()`` makes where computation is in 16 bits."""
    return Tensor(name=f"{tensor.name}@float32", width=tensor.width, rows=tensor.rows, kind="float32", cast_of=tensor)


def stream(width: int, *, name: str = "input") -> Tensor:
    """The residual stream as a block receives it."""
    return Tensor(name=name, width=width, kind="stream")


def compute_copy(tensor: Tensor, *, name: str) -> Tensor:
    """The copy that a matrix product makes of an input in another format than its own."""
    return Tensor(name=name, width=tensor.width, rows=tensor.rows, cast_of=tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor kept for the backward pass, and under which kernels and lengths it is."""

    tensor: Tensor
    attention: tuple[AttentionKernel, ...] = ("eager", "sdpa", "flash")
    fused: bool | None = None
    longer_than: int = 0
    up_to: int | None = None

    def is_kept(self, load: Load, kernels: Kernels) -> bool:
        """Whether these kernels keep it at this length."""
        return (
            kernels.attention in self.attention
            and self.fused in (None, kernels.fused)
            and load.seq_len > self.longer_than
            and (self.up_to is None or load.seq_len <= self.up_to)
        )
