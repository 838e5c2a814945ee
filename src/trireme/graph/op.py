"""What one operation holds and costs: parameters, multiplications, attention, tensors kept for backward."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from trireme.graph.tensor import Load, Rows, Saved, Tensor, count_rows

OpKind = Literal[
    "linear", "norm", "attention", "elementwise", "router", "experts", "embedding", "convolution", "parameter", "loss"
]
AttentionCount = Literal["unmasked", "full", "causal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter: its name below the operation (``weight``), its exact shape, whether it is trained."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements, exact."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """``times`` products of every row with an ``inner x outer`` matrix."""

    inner: int
    outer: int
    rows: Rows = "tokens"
    times: int = 1

    def flops(self, load: Load) -> int:
        """Forward FLOPs; a multiplication and an addition are two."""
        return 2 * count_rows(self.rows, load) * self.times * self.inner * self.outer


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Heads, widths and mask of one attention.

    ``window``: a query sees that many keys at most, itself included. ``chunk``: it sees only keys of its own
    chunk of that many positions. ``cross``: keys come from the encoder's output. ``cache_width`` is how many
    numbers a decoder keeps per token (key and value of every head, or the latent of multi-head latent attention).
    """

    heads: int
    kv_heads: int
    qk_width: int
    v_width: int
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    cross: bool = False
    cache_width: int = 0

    @property
    def reach(self) -> int | None:
        """The most keys that a query sees, where a window or chunk bounds it."""
        return self.window or self.chunk

    def count_pairs(self, load: Load, *, count: AttentionCount) -> int:
        """Query-key pairs of one sequence.

        ``unmasked``: every pair of positions, what a plain matrix product computes. ``full``: windows and chunks
        bound the keys, causality doesn't halve them (the convention of most published MFU figures). ``causal``:
        exactly the pairs that the mask lets through, T(T+1)/2 without a window.

        Source: Chowdhery et al. 2022, PaLM, appendix B (full); Dao 2023, FlashAttention-2, section 4.1 (causal).
        """
        keys = load.memory_len if self.cross else load.seq_len
        if count == "unmasked" or self.cross:
            return load.seq_len * keys
        if count == "full" or not self.causal:
            return load.seq_len * min(keys, self.reach or keys)
        if self.chunk:
            chunks, rest = divmod(load.seq_len, self.chunk)
            return chunks * _triangle(self.chunk) + _triangle(rest)
        within = min(load.seq_len, self.window or load.seq_len)
        return load.seq_len * within - within * (within - 1) // 2

    def flops(self, load: Load, *, count: AttentionCount) -> int:
        """Forward FLOPs of scores and weighted sum; softmax and mask aren't counted."""
        return 2 * load.seqs * self.count_pairs(load, count=count) * self.heads * (self.qk_width + self.v_width)

    def cache_positions(self, seq_len: int) -> int:
        """Positions that a cache must hold after ``seq_len`` tokens."""
        return min(seq_len, self.reach or seq_len)


def _triangle(side: int) -> int:
    return side * (side + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """How many experts there are and how many work on each token."""

    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a block; ``name`` is its module's path below the block."""

    name: str
    kind: OpKind
    params: tuple[Param, ...] = ()
    matmuls: tuple[Matmul, ...] = ()
    attention: AttentionShape | None = None
    experts: ExpertShape | None = None
    saves: tuple[Saved, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    output: Tensor | None = None

    @property
    def num_params(self) -> int:
        """Parameters, exact."""
        return sum(param.numel for param in self.params)

    @property
    def num_active_params(self) -> int:
        """Parameters that work on one token: all, or the routed share of experts."""
        if self.experts is None:
            return self.num_params
        return self.num_params * self.experts.top_k // self.experts.num_experts

    def flops(self, load: Load, *, count: AttentionCount) -> int:
        """Forward FLOPs of matrix products and attention; elementwise work isn't counted."""
        products = sum(matmul.flops(load) for matmul in self.matmuls)
        return products + (self.attention.flops(load, count=count) if self.attention else 0)
