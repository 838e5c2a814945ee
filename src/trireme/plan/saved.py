"""What a rank keeps of a block for its backward pass: the graph's tensors, each with the share that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from trireme.plan.layout import CpKind
from trireme.plan.plan import LayerRecompute
from trireme.plan.rank_param import Once, cuts_experts, share_of
from trireme.plan.state import compute_bytes
from trireme.plan.workload import KernelSet, PrecisionName, Workload

if TYPE_CHECKING:
    from trireme.graph import Block, Kernels, Load, Op, Saved, Section, Tensor
    from trireme.plan.framework import Repeats

_WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes that one micro-batch leaves on a rank.

    ``kept`` from forward to backward, ``all`` what stands while the block is differentiated (more than ``kept`` where
    it is recomputed), ``largest`` its largest tensor, ``shared`` once for all layers (rotary tables, masks), by name.
    """

    kept: int
    all: int
    largest: int
    shared: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All that the bytes of a block depend on beside its operations."""

    load: Load
    kernels: Kernels
    tp: int
    cp: int
    cp_kind: CpKind
    vocab_size: int
    sequence: Fraction
    """Share of the sequence outside of products."""
    read: Fraction
    """Share of it that products keep."""
    experts: Fraction
    """Share of the tokens that a rank's experts see, over those of its own sequence."""
    cuts_experts: bool
    repeats: Repeats


def conditions_of(workload: Workload, section: Section) -> Conditions:
    """Gather the conditions of a section's stack."""
    layout = workload.layout
    sequence = Fraction(1, layout.tp) if layout.sp else _WHOLE
    spread = not cuts_experts(workload)
    return Conditions(
        load=workload.model.load(section.stack, workload.microbatch),
        kernels=kernels_of(workload),
        tp=layout.tp,
        cp=layout.cp,
        cp_kind=layout.cp_kind,
        vocab_size=workload.model.vocab_size,
        sequence=sequence,
        read=sequence if workload.framework.keeps_sequence_cut else _WHOLE,
        experts=Fraction(1, min(layout.tp, layout.ep)) if spread else _WHOLE,
        cuts_experts=not spread,
        repeats=workload.framework.repeats,
    )


def kernels_of(workload: Workload) -> Kernels:
    """The kernels that decide what is kept."""
    framework = workload.framework
    return _kernels(workload.kernels, workload.precision, framework.weights == "master" and framework.autocasts)


@lru_cache(maxsize=64)
def _kernels(kernels: KernelSet, precision: PrecisionName, is_autocast: bool) -> Kernels:
    from trireme.graph import Kernels

    number = compute_bytes(precision)
    is_mixed = precision not in ("fp32", "bf16_pure") and is_autocast
    return Kernels(
        attention="eager" if kernels in ("eager", "unflashed") else "flash",
        fused=kernels in ("fused", "unflashed"),
        dtype_bytes=number,
        stream_bytes=4 if is_mixed else number,
    )


def section_saved(workload: Workload, section: Section, recompute: LayerRecompute = "none") -> SavedBytes:
    """Bytes that one micro-batch leaves of a section on the first rank of its tensor-parallel group."""
    return _saved(
        Once(section.block), section.group == "head", section.stack.width, conditions_of(workload, section), recompute
    )


@lru_cache(maxsize=65536)
def _saved(
    once: Once[Block], is_head: bool, width: int, conditions: Conditions, recompute: LayerRecompute
) -> SavedBytes:
    from trireme.graph import Tensor

    count = _Count(once, conditions, ends_cut=is_head)
    everything = count.storages(count.saves())
    shared = tuple((name, size) for name, (size, is_shared) in everything.items() if is_shared)
    own = {name: size for name, (size, is_shared) in everything.items() if not is_shared}
    total = kept = sum(own.values())
    if recompute == "full":
        entered = Tensor(name="input", width=width, kind="stream").size_bytes(conditions.load, conditions.kernels)
        kept = ceil(entered * conditions.sequence / conditions.cp)
    elif recompute == "selective":
        chosen = count.selected(width)
        kept = min(total, sum(size for size, is_shared in count.storages(chosen).values() if not is_shared))
    return SavedBytes(kept=min(kept, total), all=total, largest=max(own.values(), default=0), shared=shared)


class _Count:
    """A block under conditions."""

    def __init__(self, once: Once[Block], conditions: Conditions, *, ends_cut: bool) -> None:
        self.ops, self.on = once.value.ops, conditions
        self.share = share_of(
            once.value,
            tp=conditions.tp,
            vocab_size=conditions.vocab_size,
            cuts_experts=conditions.cuts_experts,
            ends_cut=ends_cut,
        )

    def saves(self) -> Iterator[tuple[Op, Saved]]:
        """Everything that autograd keeps."""
        for op in self.ops:
            for saved in op.saves:
                yield op, saved

    def selected(self, width: int) -> Iterator[tuple[Op, Saved]]:
        """What selective recomputation keeps."""
        match self.on.repeats:
            case "attention":
                return self.without_attention()
            case "half":
                return self.every_second_product(width)
            case "between":
                return self.every_product(width)

    def every_product(self, width: int) -> Iterator[tuple[Op, Saved]]:
        """The block's input and the results of products with weights, those within experts as well."""
        from trireme.graph import Saved, Tensor

        yield self.ops[0], Saved(tensor=Tensor(name="input", width=width, kind="stream"))
        for op in self.ops:
            if op.kind in ("linear", "router") and op.output is not None and op.params:
                yield op, Saved(tensor=op.output)
            for place, matmul in enumerate(op.matmuls if op.kind == "experts" else ()):
                wide = Tensor(name=f"{op.name}.result{place}", width=matmul.outer * matmul.times, rows=matmul.rows)
                yield op, Saved(tensor=wide)

    def without_attention(self) -> Iterator[tuple[Op, Saved]]:
        """All but what attention makes inside; its inputs stay, and its result, which the next product reads."""
        from trireme.graph import Saved

        for op, saved in self.saves():
            if op.attention is None:
                yield op, saved
        for op in self.ops:
            if op.attention is not None and op.output is not None:
                yield from ((op, Saved(tensor=tensor)) for tensor in (*op.inputs, op.output))

    def every_second_product(self, width: int) -> Iterator[tuple[Op, Saved]]:
        """The block's input, attention's result and every second product's."""
        from trireme.graph import Saved, Tensor

        yield self.ops[0], Saved(tensor=Tensor(name="input", width=width, kind="stream"))
        products = [op for op in self.ops if op.kind in ("linear", "experts")]
        for op in (*products[1::2], *(op for op in self.ops if op.attention is not None)):
            if op.output is not None:
                yield op, Saved(tensor=op.output)

    def storages(self, saves: Iterable[tuple[Op, Saved]]) -> dict[str, tuple[int, bool]]:
        """Bytes of each distinct storage, and whether all layers share it."""
        found: dict[str, tuple[int, bool]] = {}
        for op, saved in saves:
            storage = saved.tensor.storage(self.on.kernels)
            if storage.name not in found and saved.is_kept(self.on.load, self.on.kernels):
                size = ceil(storage.size_bytes(self.on.load, self.on.kernels) * self._held(op, saved.tensor, storage))
                found[storage.name] = size, storage.shared
        return found

    def _held(self, op: Op, tensor: Tensor, storage: Tensor) -> Fraction:
        """The share of a tensor that this rank holds: of its width by tp, of its rows by cp and sp."""
        if storage.rows == "once":
            return _WHOLE
        held = min(self.share.width_of(tensor), self.share.width_of(storage))
        if op.kind == "experts":
            held *= self.on.experts
        elif held == 1:
            held *= self._row_share(op, storage)
        return held * self._cp_share(op, tensor)

    def _row_share(self, op: Op, storage: Tensor) -> Fraction:
        """Whole rows are this rank's part of the sequence under sp, but for what products read gathered."""
        if storage.rows != "tokens" or storage.shared:
            return _WHOLE
        is_read = op.name in self.share.columns or op.kind in ("router", "attention")
        return self.on.read if is_read else self.on.sequence

    def _cp_share(self, op: Op, tensor: Tensor) -> Fraction:
        is_key = op.attention is not None and tensor.name in {each.name for each in op.inputs[1:]}
        if is_key and self.on.cp_kind == "allgather":
            return _WHOLE  # every rank keeps the keys and values of all
        return Fraction(1, self.on.cp)
