"""Which parameters a rank holds, by name and shape: the stage's, cut by tensor and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

from trireme.plan.placement import coordinate
from trireme.plan.share import BlockShare, share_block
from trireme.plan.workload import Workload

if TYPE_CHECKING:
    from trireme.graph import Block, ModelGraph, Op, Section


_Value = TypeVar("_Value")


class Once(Generic[_Value]):
    """A key by identity: equal layers are one object, and hashing all of their operations would cost more."""

    __slots__ = ("value",)

    def __init__(self, value: _Value) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Once) and other.value is self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParam:
    """A parameter as one rank holds it, before ZeRO shards it.

    ``layer`` is the module path of its layer, empty outside of layers. ``shards`` is over how many ranks ZeRO would
    spread it.
    """

    name: str
    shape: tuple[int, ...]
    group: str
    layer: str
    is_expert: bool
    shards: int

    @property
    def numel(self) -> int:
        """Elements on this rank."""
        return prod(self.shape)

    @property
    def shard_numel(self) -> int:
        """Elements of the largest shard: the first dim that is long enough is dealt out, padded to equal parts."""
        length = next((size for size in self.shape if size >= self.shards), None)
        if length is None:
            return -(-self.numel // self.shards)
        return -(-length // self.shards) * (self.numel // length)


def rank_params(workload: Workload, rank: int) -> tuple[RankParam, ...]:
    """Give every parameter that a rank holds; tied ones once, and again on each further stage that reads them."""
    layout = workload.layout
    place = coordinate(layout, rank)
    found: dict[str, RankParam] = {}
    for stage in stages_of_pipeline_rank(workload, place.pp):
        for param in stage_params(workload, stage, tp_rank=place.tp):
            found.setdefault(param.name, param)
    return tuple(found.values())


def stages_of_pipeline_rank(workload: Workload, pp_rank: int) -> tuple[int, ...]:
    """Stages that a pipeline rank holds, in the order of the model."""
    from trireme.plan.schedule import stages_of_rank

    layout = workload.layout
    return stages_of_rank(pp_rank, name=layout.schedule, pp=layout.pp, vp=layout.vp)


def stage_params(workload: Workload, stage: int, *, tp_rank: int = 0) -> Iterator[RankParam]:
    """Yield the parameters of one stage, a tied one under the owner's name."""
    seen: set[str] = set()
    for section in stage_sections(workload, stage):
        for param in section_params(workload, section, tp_rank=tp_rank):
            if param.name not in seen:
                seen.add(param.name)
                yield param


def section_params(workload: Workload, section: Section, *, tp_rank: int = 0) -> Iterator[RankParam]:
    """Yield the parameters of one section as a rank holds them."""
    owners = {tie.alias: tie.owner for tie in workload.model.ties}
    tied = set(owners.values())
    share = section_share(workload, section)
    for param in section.block.params():
        name = f"{section.path}.{param.name}" if section.path else param.name
        name = owners.get(name, name)
        shape = share.local_shape(param.name, param.shape, rank=tp_rank)
        group = "embedding" if name in tied else section.group
        yield _rank_param(name, shape, param.op, workload, group=group, layer=section.path)


def _rank_param(name: str, shape: tuple[int, ...], op: Op, workload: Workload, *, group: str, layer: str) -> RankParam:
    layout = workload.layout
    is_expert = op.experts is not None
    shards = layout.dp_shard * layout.cp
    if is_expert and layout.ep > 1:
        shape = (shape[0] // layout.ep, *shape[1:])
    if is_expert:
        is_spread = layout.ep == 1 or workload.framework.shards_experts
        shards = expert_ranks(workload) if is_spread else 1
    return RankParam(name=name, shape=shape, group=group, layer=layer, is_expert=is_expert, shards=shards)


def stage_sections(workload: Workload, stage: int) -> Iterator[Section]:
    """Yield the blocks of a stage; what stands between two layers belongs to the stage of the earlier one."""
    ordered = _ordered(Once(workload.model))
    if stage == 0:
        yield from ordered.first
    for layer in workload.stage_layers(stage):
        yield from ordered.layers[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ordered:
    """Sections before the first layer, and each layer with what stands between it and the next."""

    first: tuple[Section, ...]
    layers: tuple[tuple[Section, ...], ...]


@lru_cache(maxsize=64)
def _ordered(once: Once[ModelGraph]) -> _Ordered:
    first: list[Section] = []
    layers: list[list[Section]] = []
    for section in once.value.sections():
        if section.group == "layers":
            layers.append([])
        (layers[-1] if layers else first).append(section)
    return _Ordered(first=tuple(first), layers=tuple(map(tuple, layers)))


def head_section(model: ModelGraph) -> Section:
    """Give the head with the loss behind it, which takes its logits cut."""
    return _head_section(Once(model))


@lru_cache(maxsize=64)
def _head_section(once: Once[ModelGraph]) -> Section:
    model = once.value
    *_, last = model.sections()
    return replace(last, block=replace(model.head, ops=(*model.head.ops, *model.loss.ops)))


def section_share(workload: Workload, section: Section) -> BlockShare:
    """How tensor parallelism cuts a section; the head may give cut logits."""
    layout = workload.layout
    return share_of(
        section.block,
        tp=layout.tp,
        vocab_size=workload.model.vocab_size,
        cuts_experts=cuts_experts(workload),
        ends_cut=section.group == "head",
    )


def cuts_experts(workload: Workload) -> bool:
    """Whether tensor parallelism cuts each expert's matrices."""
    return workload.layout.ep == 1 or workload.framework.cuts_experts


def expert_ranks(workload: Workload) -> int:
    """Ranks of a stage that hold the same part of the same experts, replicas aside."""
    layout = workload.layout
    tp = 1 if cuts_experts(workload) else layout.tp
    return max(1, layout.dp_shard * layout.cp * tp // layout.ep)


def share_of(block: Block, *, tp: int, vocab_size: int, cuts_experts: bool, ends_cut: bool) -> BlockShare:
    """As ``share_block``, each block walked through once."""
    return _share(Once(block), tp=tp, vocab_size=vocab_size, cuts_experts=cuts_experts, ends_cut=ends_cut)


@lru_cache(maxsize=4096)
def _share(once: Once[Block], *, tp: int, vocab_size: int, cuts_experts: bool, ends_cut: bool) -> BlockShare:
    return share_block(once.value, tp=tp, vocab_size=vocab_size, cuts_experts=cuts_experts, ends_cut=ends_cut)
