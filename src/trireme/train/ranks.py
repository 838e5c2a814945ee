"""A step on the ranks of a layout: what ``Stepper`` asks, answered by a ``ParallelModel``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.checkpoint import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    Checkpoint,
    StatePiece,
    describe_pieces,
    tied_names,
)
from trireme.errors import CheckpointError
from trireme.parallel import ParallelModel, Piece, StepTraffic, local_shard, whole_piece
from trireme.train.engine import OWN_PREFIX, Passes, is_frozen, is_own
from trireme.train.replica import ReplicaProblem, compare_replicas
from trireme.words import say

_SHOWN = 5


class RanksEngine:
    """One rank's part in a step. Satisfies ``Engine``."""

    lockstep = True

    def __init__(self, model: ParallelModel) -> None:
        self.model = model
        self._has_own = False
        layout = model.layout
        self.rank = dist.get_rank()
        self.layout_text = str(layout)
        # A cast that is kept belongs to the first micro-batch's graph: in later backwards its gradient comes only after
        # FSDP has summed the block's, and would be lost.
        self.keeps_casts = layout.zero == 0
        self.parts: int | None = layout.num_microbatches if layout.pp > 1 or layout.microbatches_per_step else None

    def first_row(self, num_seqs: int) -> int:
        """Return where this rank's rows begin: after those of the data-parallel ranks before."""
        return self.model.first_row(num_seqs)

    def num_passes(self, wanted: int) -> int:
        """Return the most that any rank wants."""
        return self._reduced([wanted], op=dist.ReduceOp.MAX)[0]

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts summed over data-parallel ranks; others have the same samples."""
        total = torch.tensor(list(counts), dtype=torch.int64, device=self._device)
        dist.all_reduce(total, group=self.model.axes["dp"].group)
        return [int(each) for each in total.tolist()]

    def divisor(self, count: int, *, total: int) -> int:
        """Return the count of all, or of this replica alone where it trains by itself."""
        return self.model.divisor(count, total=total)

    def prepare(self, *, scale: float) -> None:
        """Have what codes left out of gradients follow their scale."""
        self.model.wires.prepare(scale=scale)

    def settle(self, *, is_updated: bool) -> None:
        """Keep or drop what codes left out; let replicas meet where it is time."""
        self.model.wires.settle(is_updated=is_updated)

    def conclude(self) -> None:
        """Let replicas become one."""
        self.model.wires.conclude()

    def read_traffic(self) -> StepTraffic | None:
        """Return what this rank sent."""
        return self.model.read_traffic()

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what the wire keeps, and where replicas train by themselves also the weights of the others."""
        wires = self.model.wires
        if wires.is_plain:
            return {}
        own = dict(wires.tensors())
        if self._is_other_replica:
            own |= tensors
        return {f"{OWN_PREFIX}rank-{self.model.axes.rank}/{name}": each for name, each in own.items()}

    def own_state(self) -> Any:
        """Return the wire's JSON, of all ranks."""
        wires = self.model.wires
        if wires.is_plain:
            return None
        return {"signature": wires.signature(), "ranks": self.merge(wires.to_json())}

    def restore_own(self, state: Any) -> str | None:
        """Take the wire's state where it is of the same layout and the same settings."""
        wires = self.model.wires
        if state is None:
            return None
        if wires.is_plain or state["signature"] != wires.signature():
            return say("train.wire_left", saved=state["signature"]["layout"], here=self.model.layout)
        wires.restore(state["ranks"][self.model.axes.rank])
        self._has_own = True
        return None

    @property
    def _is_other_replica(self) -> bool:
        """Whether this rank's weights are not those that a checkpoint holds under the model's names."""
        return self.model.wires.asked.is_local and self.model.axes["dp_replicate"].rank > 0

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return each flag as set if it is on any rank."""
        return [bool(each) for each in self._reduced([int(flag) for flag in flags], op=dist.ReduceOp.MAX)]

    def run(self, module: nn.Module, passes: Passes) -> None:
        """Run the step's micro-batches by the layout's schedule."""
        self.model.run(passes.count, prepare=passes.prepare, score=passes.score, done=passes.done, moment=passes.moment)

    def evaluate(self, module: nn.Module, passes: Passes) -> None:
        """Run the forwards."""
        self.model.run_forward(passes.count, prepare=passes.prepare, score=passes.score)

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return sums over the ranks that have outputs."""
        total = self.model.sum_values(torch.tensor(list(values), dtype=torch.float64, device=self._device))
        return [float(each) for each in total.tolist()]

    def grad_norm(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the norm over all ranks' gradients."""
        return self.model.grad_norm()

    def merge(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, value)
        return everyone

    def state_pieces(self, tensors: Mapping[str, Tensor]) -> Mapping[str, StatePiece]:
        """Return this rank's part of each tensor with where it lies in the whole."""
        if self._is_other_replica:
            tensors = {name: each for name, each in tensors.items() if is_own(name)}
        pieces = {name: self._piece(name, tensor) for name, tensor in tensors.items()}
        return {
            name: StatePiece(
                tensor=piece.tensor, shape=piece.global_shape, ranges=piece.ranges, frozen=is_frozen(tensors[name])
            )
            for name, piece in pieces.items()
        }

    def compare_replicas(self) -> ReplicaProblem | None:
        """Return a parameter whose data-parallel copies differ."""
        return compare_replicas(self.model)

    def restore_state(self, module: nn.Module, checkpoint: Checkpoint, targets: Mapping[str, Tensor]) -> None:
        """Fill this rank's parts from whole tensors, whatever layout wrote them.

        Raises:
            CheckpointError: A tensor is claimed by no rank, is missing, or has another shape or format.
        """
        if not self._has_own:
            targets = {name: tensor for name, tensor in targets.items() if not is_own(name)}
        pieces = {name: self._piece(name, tensor) for name, tensor in targets.items()}
        problems = [problem for found in self.merge(_mismatches(checkpoint, pieces)) for problem in found]
        claimed = {name for names in self.merge(list(targets)) for name in names}
        claimed |= set() if self._has_own else {name for name in checkpoint.names if is_own(name)}
        problems += [say("train.unclaimed_tensor", name=name) for name in checkpoint.names if name not in claimed]
        problems += _other_ties(checkpoint, tied_names(self.merge(describe_pieces(self.state_pieces(targets)))))
        if problems:
            shown = "; ".join(list(dict.fromkeys(problems))[:_SHOWN])
            raise CheckpointError("checkpoint.mismatch", path=checkpoint.path, problems=shown)
        with torch.no_grad():
            for name, piece in pieces.items():
                checkpoint.read_into(name, piece.tensor, ranges=piece.ranges)
        if self.model.wires.outer is not None and not self._has_own:
            self.model.wires.outer.start_from()

    def _piece(self, name: str, tensor: Tensor) -> Piece:
        """Describe a tensor of the state: a parameter's part, or something that this or every rank has whole."""
        if is_own(name):
            return whole_piece(name, local_shard(tensor.detach()))
        if name.startswith(MODEL_PREFIX):
            return self.model.piece_of(name.removeprefix(MODEL_PREFIX), tensor, name_as=name)
        owner, _, _ = name.removeprefix(OPTIMIZER_PREFIX).rpartition("/")
        if tensor.dim() == 0:
            return whole_piece(name, tensor.detach())
        return self.model.piece_of(owner, tensor, name_as=name)

    def _reduced(self, values: Sequence[int], *, op: Any) -> list[int]:
        tensor = torch.tensor(list(values), dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=op)
        return [int(each) for each in tensor.tolist()]

    @property
    def _device(self) -> torch.device:
        return self.model.axes.device


def _mismatches(checkpoint: Checkpoint, pieces: Mapping[str, Piece]) -> list[str]:
    found = []
    for name, piece in pieces.items():
        if name not in checkpoint.names:
            found.append(say("train.missing_tensor", name=name))
        elif tuple(checkpoint.shape(name)) != piece.global_shape or checkpoint.dtype(name) != piece.tensor.dtype:
            saved = f"{list(checkpoint.shape(name))} {checkpoint.dtype(name)}"
            here = f"{list(piece.global_shape)} {piece.tensor.dtype}"
            found.append(say("train.other_tensor", name=name, saved=saved, here=here))
    return found


def _other_ties(checkpoint: Checkpoint, here: Mapping[str, str]) -> list[str]:
    """Say which weights are one tensor on one side and two on the other."""
    saved = checkpoint.first_names()
    both = [name for name in saved if name in here and name.startswith(MODEL_PREFIX)]
    first_saved: dict[str, str] = {}
    first_here: dict[str, str] = {}
    wrong = [
        name for name in both if first_saved.setdefault(saved[name], name) != first_here.setdefault(here[name], name)
    ]
    return [say("checkpoint.other_ties", names=", ".join(wrong[:_SHOWN]))] if wrong else []
