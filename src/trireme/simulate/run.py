"""One rank of a layout, run alone on a machine without any of the devices or memory that it would need."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import VerifyError
from trireme.interpret import DATA_DEPENDENT, HollowMode
from trireme.parallel import Borders, ParallelModel, expect_borders, parallel_optimizer, parallelize, watch_borders
from trireme.plan import Layout, coordinate, parse_layout, rank_at, stages_of_rank
from trireme.simulate.collective import CollectiveCounter
from trireme.simulate.ledger import Ledger
from trireme.simulate.measure import Measurement, measure
from trireme.simulate.torch_private import fake_world, instant_sends
from trireme.simulate.world import World
from trireme.verify import DTYPES, Source, Subject, part_of

_LR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What was asked.

    Attributes:
        source: The model.
        layout: How it is spread.
        rank: Of which rank.
        seqs: Samples of the global batch. 0: one a micro-batch.
        seq_len: Of each.
        cuts: Blocks with which stages after the first begin. Default: balanced by cost.
        recompute: What single blocks recompute. Default: what the layout says.
        optimizer: ``adamw`` or ``sgd`` (with momentum).
    """

    source: Source
    layout: Layout | str
    ranks: int = 1
    rank: int = 0
    seqs: int = 0
    seq_len: int = 128
    cuts: tuple[str, ...] = ()
    recompute: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What was found."""

    layout: Layout
    rank: int
    seqs: int
    seq_len: int
    measured: Measurement
    notices: tuple[str, ...]
    parts_s: Mapping[str, float]


def simulate_rank(asked: Simulated) -> Simulation:
    """Run two training steps of one rank, with its own code and nobody else's.

    Raises:
        TriremeError: The rank or the layout doesn't exist, the model can't be built, or its code asks for values
            that nobody has.
    """
    layout, notices = _layout_of(asked)
    clock = _Clock()
    borders: Borders = {}
    if _receives(layout, rank=asked.rank):
        borders = _learn_borders(asked, layout)
        clock.split("borders")
    with _alone(layout, rank=asked.rank) as world:
        subject = _hollow_subject(asked.source, world)
        clock.split("build")
        model = _spread(subject, layout, asked, notices=notices)
        if layout.num_stages > 1:
            expect_borders(model, borders)
        optimizer = parallel_optimizer(build_optimizer(asked.optimizer, model), model, clip_grad_norm=1.0)
        clock.split("spread")
        batch = part_of(subject.make_batch(0, _seqs(asked, layout), asked.seq_len), layout, rank=asked.rank)
        measured = measure(world, model, optimizer, objective=subject.objective, batch=batch)
        clock.split("steps")
    return Simulation(
        layout=layout,
        rank=asked.rank,
        seqs=_seqs(asked, layout),
        seq_len=asked.seq_len,
        measured=measured,
        notices=tuple(notices),
        parts_s=clock.parts_s,
    )


def build_optimizer(name: str, model: ParallelModel) -> torch.optim.Optimizer:
    """Give an optimizer over a rank's parameters."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=_LR, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=_LR)


class _Clock:
    """How long each part took."""

    def __init__(self) -> None:
        self.parts_s: dict[str, float] = {}
        self._since = time.perf_counter()

    def split(self, part: str) -> None:
        """End a part."""
        now = time.perf_counter()
        self.parts_s[part], self._since = now - self._since, now


def _layout_of(asked: Simulated) -> tuple[Layout, list[str]]:
    layout, notices = asked.layout, list[str]()
    if isinstance(layout, str):
        parsed = parse_layout(layout, ranks=asked.ranks)
        layout, notices = parsed.layout, list(parsed.notices)
    if not 0 <= asked.rank < layout.world_size:
        raise VerifyError("simulate.no_rank", rank=asked.rank, last=layout.world_size - 1)
    if layout.ep > 1:
        raise VerifyError("simulate.no_experts", ep=layout.ep)
    return layout, notices


def _receives(layout: Layout, *, rank: int) -> bool:
    """Whether a rank gets anything from a stage before one of its own."""
    own = _stages_of(layout, rank=rank)
    return any(stage > 0 and stage - 1 not in own for stage in own)


def _stages_of(layout: Layout, *, rank: int) -> set[int]:
    place = coordinate(layout, rank).pp
    return set(stages_of_rank(place, name=layout.schedule, pp=layout.pp, vp=layout.vp))


def _seqs(asked: Simulated, layout: Layout) -> int:
    return asked.seqs or layout.dp * layout.num_microbatches


@contextmanager
def _alone(layout: Layout, *, rank: int) -> Iterator[World]:
    """Be one rank of a world that isn't there."""
    world = World(ledger=Ledger(), collectives=CollectiveCounter(layout), hollow=HollowMode())
    with fake_world(rank=rank, num_ranks=layout.world_size), instant_sends(), world:
        try:
            yield world
        except DATA_DEPENDENT as error:
            reason = str(error).strip().splitlines()
            raise VerifyError("simulate.asks_shape", reason=(reason or [type(error).__name__])[0]) from error


def _hollow_subject(source: Source, world: World) -> Subject:
    """Build a module whose parameters take no memory; large ones never did."""
    subject = replace(source, has_weights=False).load()
    assert world.hollow is not None
    hollowed: dict[int, nn.Parameter] = {}
    dtype = DTYPES[source.dtype]
    for owner in subject.module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                owner._buffers[name] = buffer.to(dtype)
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = hollowed.setdefault(
                    id(parameter), _hollow(parameter, world.hollow, dtype=dtype)
                )
    return subject


def _hollow(parameter: nn.Parameter, mode: HollowMode, *, dtype: torch.dtype) -> nn.Parameter:
    kept = dtype if parameter.is_floating_point() else parameter.dtype
    with mode, torch.no_grad():
        bare = torch.empty_strided(parameter.shape, parameter.stride(), dtype=kept)
    return nn.Parameter(bare, requires_grad=parameter.requires_grad)


def _spread(subject: Subject, layout: Layout, asked: Simulated, *, notices: list[str]) -> ParallelModel:
    objective = subject.objective
    if objective.loss_reduction is not None or objective.auxiliary is not None:
        what = "loss_reduction" if objective.loss_reduction is not None else "auxiliary"
        raise VerifyError("simulate.no_loss", what=what)
    example = part_of(subject.make_batch(0, layout.dp, min(asked.seq_len, _EXAMPLE_LEN)), layout, rank=asked.rank)
    return parallelize(
        subject.module.train(),
        layout,
        example=example,
        call=objective.call,
        loss_fn=objective.loss_fn,
        cuts=asked.cuts,
        recompute=asked.recompute,
        device=torch.empty(0).device,
        notice=notices.append,
    )


_EXAMPLE_LEN = 64


class _EnoughError(BaseException):
    """All that was wanted is known."""


def _learn_borders(asked: Simulated, layout: Layout) -> Borders:
    """Run one forward of the stages before a rank's last one, and note what passes from each to the next."""
    last = max(_stages_of(layout, rank=asked.rank)) - 1

    def done(stage: int) -> None:
        if stage >= last:
            raise _EnoughError

    place = coordinate(layout, asked.rank)
    whole = replace(layout, pp=1, vp=layout.num_stages, schedule="interleaved", zero=0, microbatches_per_step=1)
    rank = rank_at(whole, replace(place, pp=0))
    with _alone(whole, rank=rank) as world:
        subject = _hollow_subject(asked.source, world)
        model = _spread(subject, whole, replace(asked, rank=rank), notices=[])
        borders = watch_borders(model, done=done)
        seqs = whole.dp * max(1, -(-_seqs(asked, layout) // (layout.dp * layout.num_microbatches)))
        batch = part_of(subject.make_batch(0, seqs, asked.seq_len), whole, rank=rank)
        with suppress(_EnoughError):
            model.run(1, prepare=lambda index: batch, score=_enough)
    return borders


def _enough(outputs: Any, batch: Mapping[str, Any], index: int) -> Tensor:
    raise _EnoughError
