"""A user's module on the ranks of a layout: one step forward and backward, and what each rank holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel.axes import Axes
from trireme.parallel.axis_traffic import AxisTraffic, StepTraffic
from trireme.parallel.compile import BlockCompiler
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.inventory import Inventory
from trireme.parallel.microbatch import split_rows
from trireme.parallel.part import ParameterPart
from trireme.parallel.piece import Piece, gather_whole
from trireme.parallel.share import share_from_last
from trireme.parallel.surroundings import Moment
from trireme.parallel.unit import move_tensors
from trireme.parallel.wires import Wires

Prepare = Callable[[int], Mapping[str, Any]]
Score = Callable[[Any, Mapping[str, Any], int], Tensor]
Done = Callable[[int], None]
MomentOf = Callable[[int], Moment | None]
"""Where in training a micro-batch's forward stands; None where it needn't be known."""
LossFn = Callable[[Any, Mapping[str, Any]], Any]
CountFn = Callable[[Mapping[str, Any]], int]


class Runner(Protocol):
    """Runs the micro-batches of a step on this rank, as many on every rank."""

    def train(self, count: int, *, prepare: Prepare, score: Score, done: Done, moment: MomentOf) -> None:
        """Run all forwards and backwards; ``score`` is called where the outputs are."""
        ...

    def evaluate(self, count: int, *, prepare: Prepare, score: Score) -> None:
        """Run the forwards."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HowItRuns:
    """What was found and chosen on the way.

    Attributes:
        whole: Puts together outputs that are cut.
        compiler: What compiles the blocks, if they are.
    """

    path: str
    notices: tuple[str, ...]
    whole: Callable[[Any], Any] | None = None
    compiler: BlockCompiler | None = None


class ParallelModel:
    """One rank's share of a module under a layout.

    Attributes:
        module: The user's module with this rank's parameters; names are the original ones.
        axes: Ranks of every axis.
        how: What was chosen.
        runner: What runs the micro-batches.
        wires: What gradients travel on, and what of it a checkpoint keeps.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        axes: Axes,
        runner: Runner,
        inventory: Inventory,
        how: HowItRuns,
        wires: Wires,
        traffic: AxisTraffic,
    ) -> None:
        self.module = module
        self.axes = axes
        self.layout = axes.layout
        self.how = how
        self.runner = runner
        self.wires = wires
        self._traffic = traffic
        self._inventory = inventory
        self._spanned: _Span | None = None
        self._step = 0

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under their names in the user's module, tied ones once."""
        yield from self.module.named_parameters()

    def train(self, mode: bool = True) -> ParallelModel:
        """Set training mode, as ``nn.Module.train``."""
        self.module.train(mode)
        return self

    def eval(self) -> ParallelModel:
        """Set evaluation mode."""
        return self.train(False)

    def run(
        self,
        count: int,
        *,
        prepare: Prepare,
        score: Score,
        done: Done = lambda index: None,
        moment: MomentOf = lambda index: None,
    ) -> None:
        """Run ``count`` forwards and backwards; gradients are complete sums over all ranks afterwards.

        ``score(outputs, batch, index)`` gives what is differentiated, already divided by the global count; it is
        called on the ranks that have outputs. ``moment(index)`` says where in training the forward stands: what it
        draws follows from that.
        """
        self.runner.train(count, prepare=prepare, score=score, done=done, moment=moment)

    def run_forward(self, count: int, *, prepare: Prepare, score: Score) -> None:
        """Run ``count`` forwards without gradients and score each."""
        with torch.no_grad():
            self.runner.evaluate(count, prepare=prepare, score=score)

    def train_step(
        self, batch: Mapping[str, Any], loss_fn: LossFn, *, count_fn: CountFn | None = None, scale: float = 1.0
    ) -> Tensor:
        """Run forward and backward of this rank's part of the global batch and return the global mean loss.

        Without ``count_fn`` gradients are divided by a power of two first and by the true count when all ranks have
        returned theirs.

        Args:
            batch: Tensors with samples in dim 0; the same on all ranks of a data-parallel place.
            loss_fn: ``(outputs, batch) -> (loss_sum, count)``.
            count_fn: What a batch's loss is summed over, known before any forward. Default: what ``loss_fn`` returns.
            scale: Gradients are multiplied by it (the loss scale of fp16); the loss returned isn't.

        Raises:
            LayoutError: The loss isn't of that form, or there is nothing to learn from.
        """
        work = self._work(batch)
        total = None if count_fn is None else self._told_count(work, count_fn)
        divisor = self._divisor(work, total=total)
        sums = self._run_scored(work, loss_fn, divisor=divisor / scale)
        loss_sum, counted = self.sum_values(sums).tolist()
        total = total or round(counted)
        if not total:
            raise LayoutError("ranks.nothing_to_learn")
        if self._spanned is not None:
            self._spanned.total += total
        elif divisor != total:
            self.scale_gradients(divisor / total)
        return torch.tensor(loss_sum / total, dtype=self._inventory.sum_dtype, device=self.axes.device)

    def _run_scored(self, work: _Work, loss_fn: LossFn, *, divisor: float) -> Tensor:
        """Run the step; return this rank's loss sum and count."""
        sums = torch.zeros(2, dtype=self._inventory.sum_dtype, device=self.axes.device)

        def score(outputs: Any, tensors: Mapping[str, Any], index: int) -> Tensor:
            loss, count = _loss_and_count(loss_fn(outputs, tensors))
            if not work.rows[index]:
                return torch.nan_to_num(loss, nan=0.0, posinf=0.0, neginf=0.0) * 0.0
            sums[0] += loss.detach()
            sums[1] += count
            return loss / divisor

        self.run(len(work.rows), prepare=lambda index: work.parts[index], score=score, moment=self._moments(work))
        return sums

    def _moments(self, work: _Work) -> MomentOf:
        """Count this step, and say which rows of the global batch its micro-batches have."""
        step, self._step = self._step, self._step + 1
        if not self.module.training:
            return lambda index: None
        own = sum(work.rows)
        first = self.first_row(own)
        starts = [first + sum(work.rows[:index]) for index in range(len(work.rows))]
        return lambda index: Moment(step=step, first_row=starts[index], rows=max(1, work.rows[index]))

    def eval_step(self, batch: Mapping[str, Any], loss_fn: LossFn) -> Tensor:
        """Return the global mean loss of a batch, without gradients."""
        work = self._work(batch)
        sums = torch.zeros(2, dtype=self._inventory.sum_dtype, device=self.axes.device)

        def score(outputs: Any, tensors: Mapping[str, Any], index: int) -> Tensor:
            loss, count = _loss_and_count(loss_fn(outputs, tensors))
            if work.rows[index]:
                sums[0] += loss
                sums[1] += count
            return loss

        self.run_forward(len(work.rows), prepare=lambda index: work.parts[index], score=score)
        summed = self.sum_values(sums)
        return summed[0] / summed[1]

    def outputs(self, batch: Mapping[str, Any]) -> Any:
        """Return the module's outputs for a batch, whole, on every rank; all ranks call with the same batch."""
        found: list[Any] = []
        nothing = torch.zeros((), device=self.axes.device)

        def keep(outputs: Any, tensors: Mapping[str, Any], index: int) -> Tensor:
            found.append(outputs if self.how.whole is None else self.how.whole(outputs))
            return nothing

        moved = move_tensors(batch, device=self.axes.device)
        self.run_forward(1, prepare=lambda index: moved, score=keep)
        return share_from_last(found[0] if found else None, axes=self.axes)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Make one step of the ``train_step`` calls inside: their counts are one denominator.

        Each returned loss is divided by what was counted so far; the gradients are right at the end.
        """
        if self._spanned is not None:
            raise LayoutError("ranks.accumulate_twice")
        self._spanned = span = _Span()
        try:
            yield
        finally:
            self._spanned = None
        if span.first:
            self.scale_gradients(span.first / span.total)

    def scale_gradients(self, factor: float) -> None:
        """Multiply every gradient."""
        gradients = [local_shard(each.grad) for each in self.parameters() if each.grad is not None]
        if gradients and factor != 1.0:
            torch._foreach_mul_(gradients, factor)

    def grad_norm(self) -> Tensor:
        """Return the norm over all gradients of all ranks, each element once."""
        return self._inventory.grad_norm()

    def parts(self) -> list[ParameterPart]:
        """Describe each parameter of this rank once: whose it is, and on how many ranks its elements stand."""
        return self._inventory.parts()

    def first_row(self, num_rows: int) -> int:
        """Return where this rank's rows of the global batch begin: after those of the data-parallel ranks before."""
        line = self.axes["dp"]
        rows = [torch.zeros((), dtype=torch.int64, device=self.axes.device) for _ in range(line.degree)]
        dist.all_gather(rows, torch.tensor(num_rows, device=self.axes.device), group=line.group)
        return sum(int(each) for each in rows[: line.rank])

    def sum_counts(self, count: int) -> int:
        """Return a count summed over data-parallel ranks."""
        total = torch.tensor(count, dtype=torch.int64, device=self.axes.device)
        dist.all_reduce(total, group=self.axes["dp"].group)
        return int(total)

    def sum_values(self, values: Tensor) -> Tensor:
        """Return sums of losses over all ranks that had outputs, on every rank.

        Ranks that share out a tensor or a sequence have the same loss, so one of them speaks.
        """
        speaks = self.axes["tp"].rank == 0 and self.axes["cp"].rank == 0
        spoken = values.clone() if speaks else torch.zeros_like(values)
        dist.all_reduce(spoken)
        return spoken

    def divisor(self, count: int, *, total: int) -> int:
        """Return what a loss is divided by before its backward, where all ranks count ``total`` and this one ``count``.

        Replicas that train by themselves divide by their own count.
        """
        if not self.wires.asked.is_local:
            return total
        own = torch.tensor(count, dtype=torch.int64, device=self.axes.device)
        dist.all_reduce(own, group=self.axes["dp_shard"].group)
        return max(1, int(own))

    def read_traffic(self) -> StepTraffic:
        """Return what this rank has sent since it was last asked; call it once a step."""
        return self._traffic.read()

    def pieces(self) -> dict[str, Piece]:
        """Give what this rank holds of each parameter and saved buffer, in the numbering of the whole."""
        return self._inventory.pieces()

    def piece_of(self, name: str, tensor: Tensor, *, name_as: str | None = None) -> Piece:
        """Describe a tensor that lies as the parameter or buffer ``name`` does, such as its optimizer state."""
        piece = self._inventory.piece_of(name, tensor)
        return piece if name_as is None else piece.with_tensor(piece.tensor, name=name_as)

    def gradient_pieces(self) -> dict[str, Piece]:
        """Give what this rank holds of each gradient."""
        return self._inventory.gradient_pieces()

    def full_parameters(self) -> dict[str, Tensor]:
        """Give all parameters and saved buffers whole, on rank 0's host; elsewhere nothing."""
        return gather_whole(self.pieces())

    def full_gradients(self) -> dict[str, Tensor]:
        """Give all gradients whole, on rank 0's host; elsewhere nothing."""
        return gather_whole(self.gradient_pieces())

    def state_dict(self) -> dict[str, Tensor]:
        """Give the whole module's state under its original names, on rank 0; all ranks must call."""
        return self.full_parameters()

    @property
    def local_param_ratio(self) -> float:
        """Parameters this rank holds over those of the whole module."""
        return self._inventory.local_param_ratio()

    def _work(self, batch: Mapping[str, Any]) -> _Work:
        moved = move_tensors(batch, device=self.axes.device)
        parts = split_rows(moved, count=self.layout.num_microbatches)
        return _Work(parts=[part for part, _ in parts], rows=[rows for _, rows in parts])

    def _told_count(self, work: _Work, count_fn: CountFn) -> int:
        own = sum(int(count_fn(part)) for part, rows in zip(work.parts, work.rows, strict=True) if rows)
        total = self.sum_counts(own)
        if not total:
            raise LayoutError("ranks.nothing_to_learn")
        return total

    def _divisor(self, work: _Work, *, total: int | None) -> float:
        """Return what losses are divided by at first: the count, or a power of two of its order."""
        span = self._spanned
        if span is not None and span.first:
            return span.first
        rows = self.sum_counts(sum(work.rows))
        divisor = float(total) if total else 2.0 ** math.ceil(math.log2(max(1, rows * _places(work.parts[0]))))
        if span is not None:
            span.first = divisor
        return divisor


@dataclass(slots=True)
class _Span:
    """Counts of several train_steps that are one: the first divides, the total is put right at the end."""

    first: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    parts: list[dict[str, Any]]
    rows: list[int]


def _loss_and_count(result: Any) -> tuple[Tensor, Any]:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise LayoutError("ranks.bare_loss", returned=type(result).__name__)
    if result[0].numel() != 1:
        raise LayoutError("ranks.loss_shape", shape=tuple(result[0].shape))
    return result[0].reshape(()), result[1]


def _places(batch: Mapping[str, Any]) -> int:
    """Return how many places a sample has, the length of dim 1."""
    return max(value.shape[1] if value.ndim > 1 else 1 for value in batch.values() if isinstance(value, Tensor))
