"""What a captured tensor is called and which kind of number it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trireme.graph import Kind, Tensor
from trireme.parallel.graph_record import Ran
from trireme.parallel.graph_size import Runs

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_grouped_mm", "mv", "addmv", "dot"})
"""Calls that multiply matrices; autocast gives them 16-bit copies of what they read."""

_COPIES = frozenset({"clone", "repeat", "contiguous"})
_KINDS: dict[torch.dtype, Kind] = {
    torch.float32: "float32",
    torch.float64: "float32",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.bool: "bool",
    torch.uint8: "bool",
}


def is_attention(name: str) -> bool:
    """Whether a call is fused attention."""
    return name.startswith("_scaled_dot_product") and not name.endswith("_math")


@dataclass(slots=True, kw_only=True)
class Kinds:
    """The kind of every piece of memory of a forward that ran in 16 bits.

    What a product made is in the format of products, what came from tables, norms and sums with them in that of the
    residual stream (under autocast 32 bits); 32 bits here are so because the code says so.
    """

    runs: Runs
    kinds: dict[int, Kind] = field(default_factory=dict)
    copied: dict[int, int] = field(default_factory=dict)
    makers: dict[int, Ran] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ran in self.runs.base.ran:
            for seen in ran.outputs:
                self.makers.setdefault(seen.storage, ran)
                if ran.name == "_to_copy" and ran.inputs:
                    self.copied.setdefault(seen.storage, ran.inputs[0].storage)
                if seen.storage not in self.kinds or ran.name.startswith("bernoulli"):
                    self.kinds[seen.storage] = self._kind(ran, seen.storage)

    def of(self, storage: int) -> Kind:
        """Give the kind; what was there before the forward is of the stream's."""
        if storage in self.kinds:
            return self.kinds[storage]
        memory = self.runs.base.memory[storage]
        return _KINDS.get(memory.dtype, "stream")

    def _kind(self, ran: Ran, storage: int) -> Kind:
        dtype = self.runs.base.memory[storage].dtype
        if ran.name.startswith("bernoulli") or (ran.name == "native_dropout" and dtype == torch.bool):
            return "dropout_mask"
        if dtype in _KINDS:
            return _KINDS[dtype]
        if (ran.name in PRODUCTS and ran.name != "_grouped_mm") or is_attention(ran.name):
            return "compute"  # autocast leaves grouped products in the weights' format
        if "norm" in ran.name or "softmax" in ran.name or ran.name == "embedding":
            return "stream"
        read = [self.of(seen.storage) for seen in ran.inputs if seen.numel > 1]
        return "compute" if read and all(kind not in ("stream", "float32") for kind in read) else "stream"

    def origin(self, storage: int) -> int:
        """Follow copies back to what was copied, as long as nothing is computed (heads that are repeated)."""
        maker = self.makers.get(storage)
        while maker is not None and maker.name in _COPIES and maker.inputs:
            storage = maker.inputs[0].storage
            maker = self.makers.get(storage)
        return storage


@dataclass(slots=True, kw_only=True)
class Naming:
    """Names of one section's tensors: by the order in which they are met, so that equal layers are equal.

    ``shared`` is memory that several blocks read; ``began`` is the number of calls before the section.
    """

    kinds: Kinds
    began: int
    shared: frozenset[int]
    known: dict[int, Tensor] = field(default_factory=dict)

    def tensor(self, storage: int) -> Tensor:
        """Give the tensor that a piece of memory is."""
        if storage not in self.known:
            self.known[storage] = self._made(storage)
        return self.known[storage]

    def view(self, storage: int, *, call: int, place: int) -> Tensor:
        """Give it as a call looks at it."""
        whole, size = self.tensor(storage), self.kinds.runs.view(call, place)
        return whole.view(size.width) if size.rows == whole.rows and size.width < whole.width else whole

    def _made(self, storage: int) -> Tensor:
        runs = self.kinds.runs
        size, made = runs.memory(storage), runs.base.memory[storage].made
        is_shared = storage in self.shared
        if is_shared:
            name = f"outer{made}" if made >= 0 else f"given{size.rows}{size.width}"
        elif made < self.began:
            outer = sum(tensor.name.startswith("input") for tensor in self.known.values())
            name = f"input{outer or ''}"
        else:
            name = f"t{len(self.known)}"
        source = self.kinds.copied.get(storage)
        cast_of = None if source is None else self.tensor(source)
        if cast_of is not None and (cast_of.rows != size.rows or cast_of.width != size.width):
            cast_of = None
        return Tensor(
            name=name,
            width=size.width,
            rows=size.rows,
            kind=self.kinds.of(storage),
            cast_of=cast_of,
            shared=is_shared,
        )
