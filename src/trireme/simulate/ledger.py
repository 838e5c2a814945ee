"""Memory as it is used: every piece that is alive, of what kind, and the moment at which most of it is."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trireme.interpret import in_backward
from trireme.simulate.torch_private import storage_id

_STRIDED = torch.strided

Part = Literal["parameters", "gathered", "gradients", "optimizer", "activations", "other"]
PARTS: tuple[Part, ...] = ("parameters", "gathered", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory that was alive at once.

    Attributes:
        num_bytes: All together.
        parts: Of what it consisted.
        moment: What was going on.
    """

    num_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    moment: str = ""


class Ledger:
    """Counts bytes of storages from the moment one is seen to the moment the last tensor on it is gone.

    Attributes:
        part: What new memory counts as.
        moment: What is going on.
    """

    def __init__(self) -> None:
        self.part: Part = "other"
        self.moment = "build"
        self._live: dict[int, tuple[weakref.ref[object], int, Part]] = {}
        self._sums: Counter[Part] = Counter()
        self._total = 0
        self._peak = Peak()

    @property
    def total_bytes(self) -> int:
        """What is alive now."""
        return self._total

    @property
    def peak(self) -> Peak:
        """The peak since the last ``restart``."""
        return self._peak

    def restart(self) -> None:
        """Forget the peak."""
        self._peak = Peak(num_bytes=self._total, parts=self._parts(), moment=self.moment)

    def note(self, tensor: Tensor, part: Part | None = None) -> None:
        """See a tensor: its memory counts once, however many tensors lie on it."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        if local.is_meta or local.layout is not _STRIDED:
            return
        key = storage_id(local)
        if key in self._live:
            return
        storage = local.untyped_storage()
        self._enter(key, weakref.ref(storage, lambda _: self._leave(key)), storage.nbytes(), part or self.part)

    def resize(self, tensor: Tensor) -> None:
        """See that memory was given or taken without a new tensor: only FSDP's whole parameters do so."""
        key = storage_id(tensor)
        if key in self._live:
            self._leave(key)
        storage = tensor.untyped_storage()
        self._enter(key, weakref.ref(storage, lambda _: self._leave(key)), storage.nbytes(), "gathered")

    def assign(self, tensors: Iterable[Tensor | None], part: Part) -> None:
        """Say what memory is."""
        for tensor in tensors:
            if tensor is None:
                continue
            self.note(tensor, part)
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            held = self._live.get(storage_id(local))
            if held is not None and held[2] != part:
                self._live[storage_id(local)] = (held[0], held[1], part)
                self._sums[held[2]] -= held[1]
                self._sums[part] += held[1]

    def _enter(self, key: int, reference: weakref.ref[object], num_bytes: int, part: Part) -> None:
        self._live[key] = (reference, num_bytes, part)
        self._sums[part] += num_bytes
        self._total += num_bytes
        if self._total > self._peak.num_bytes:
            self._peak = Peak(num_bytes=self._total, parts=self._parts(), moment=self._now())

    def _leave(self, key: int) -> None:
        held = self._live.pop(key, None)
        if held is not None:
            self._sums[held[2]] -= held[1]
            self._total -= held[1]

    def _now(self) -> str:
        return "backward" if in_backward() else self.moment

    def _parts(self) -> dict[str, int]:
        return {part: self._sums[part] for part in PARTS if self._sums[part]}
