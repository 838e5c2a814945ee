"""A module under a layout, by the room ``parallel``: what users run is what is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trireme.errors import VerifyError
from trireme.parallel import ParallelModel, Piece, assemble, parallel_optimizer, parallelize
from trireme.plan import Layout
from trireme.train import Objective
from trireme.verify.candidate import Candidate
from trireme.verify.reference import Recipe
from trireme.verify.subject import Subject, summed_loss


def build(subject: Subject, layout: Layout, *, example: Mapping[str, Any], recipe: Recipe) -> Candidate:
    """Spread the subject over the ranks.

    Raises:
        LayoutError: The layout doesn't fit the module.
        VerifyError: Its loss is of a kind that no layout can take apart.
    """
    objective = subject.objective
    if objective.loss_reduction == "batch" and layout.dp * layout.num_microbatches > 1:
        raise VerifyError("verify.whole_batch", layout=layout, dp=layout.dp, micro=layout.num_microbatches)
    notices: list[str] = []
    names = frozenset(name for name, _ in subject.module.named_parameters(remove_duplicate=False))
    model = parallelize(
        subject.module.train(),
        layout,
        example=example,
        call=objective.call,
        loss_fn=summed_loss(objective),
        seed=subject.seed,
        notice=notices.append,
    )
    return LayoutCandidate(model, objective, recipe=recipe, notices=notices, names=names)


class LayoutCandidate:
    """A parallel model with its optimizer."""

    def __init__(
        self,
        model: ParallelModel,
        objective: Objective,
        *,
        recipe: Recipe,
        notices: list[str],
        names: frozenset[str],
    ) -> None:
        self._model = model
        self._names = names
        self._count = objective.count
        self._loss_fn = summed_loss(objective)
        self._notices = notices
        inner = recipe.build(model.parameters())
        self._optimizer = parallel_optimizer(inner, model, clip_grad_norm=recipe.clip_grad_norm)

    @property
    def path(self) -> str:
        """How the module was brought to run this way."""
        return self._model.how.path

    @property
    def notices(self) -> tuple[str, ...]:
        """What was told on the way."""
        return tuple(self._notices)

    def train_step(self, batch: Mapping[str, Any]) -> float:
        """Run forward and backward of this rank's part; return the global mean loss."""
        return float(self._model.train_step(batch, self._loss_fn, count_fn=self._count))

    def gradients(self) -> Mapping[str, Tensor]:
        """Give every gradient whole on rank 0."""
        return _whole(self._model.gradient_pieces())

    def grad_norm(self) -> float:
        """Give the norm over all gradients of all ranks."""
        return float(self._model.grad_norm())

    def step(self) -> None:
        """Clip, update, and drop the gradients."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def parameters(self) -> Mapping[str, Tensor]:
        """Give every parameter whole on rank 0; saved buffers are not compared."""
        whole = _whole(self._model.pieces())
        return {name: tensor for name, tensor in whole.items() if name in self._names}

    def local_parameters(self) -> Iterable[Tensor]:
        """Give what this rank holds."""
        return self._model.parameters()


def _whole(pieces: Mapping[str, Piece]) -> dict[str, Tensor]:
    """Put all tensors together on rank 0, in one message of each rank: those compared are small and many."""
    host = {name: piece.with_tensor(piece.tensor.detach().to("cpu", copy=True)) for name, piece in pieces.items()}
    everyone: list[dict[str, Piece]] | None = [{}] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(host, everyone)
    by_name: dict[str, list[Piece]] = {}
    for found in everyone or ():
        for name, piece in found.items():
            by_name.setdefault(name, []).append(piece)
    return {name: assemble(parts) for name, parts in by_name.items()}
