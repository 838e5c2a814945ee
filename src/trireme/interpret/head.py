"""An output layer and its cross-entropy as one function: logits exist for a few tokens at a time.

Each piece of tokens is multiplied with the matrix, scored and differentiated at once; what stays are the gradients of
the tokens' vectors and of the matrix. Where the vocabulary is cut, ranks exchange two numbers a token.

Source:
    Hsu et al. 2024, "Liger Kernel", section 3.2 (fused linear cross-entropy); Shoeybi et al. 2019, "Megatron-LM",
    section 3 (the cut vocabulary).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from trireme.interpret.call import Call
from trireme.interpret.collective import Line
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import marks_of, shard_of
from trireme.interpret.token_shard import is_token_shard
from trireme.interpret.torch_private import apply_function

_NUM_PIECES = 16
_LEAST_ROWS = 32
"""Fewer tokens at a time leave the matrix unit idle and add to the gradient of the matrix too often."""
_MOST_NUMEL = 1 << 28

Change = Callable[[Tensor], Tensor]
"""What a model does to its logits element by element, as a soft cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInput:
    """What an output layer takes on this rank; ``shard`` is of its vocabulary."""

    hidden: Tensor
    line: Line | None = None
    shard: Shard | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How logits become a loss.

    Attributes:
        ignored: Label of a token that doesn't count.
        smoothing: Share of the target that is spread over all classes.
        z_loss: Weight of the squared logarithm of the sum of exponentials.
        changes: What happens to logits first.
    """

    ignored: int = -100
    smoothing: float = 0.0
    z_loss: float = 0.0
    changes: tuple[Change, ...] = ()


def head_input(hidden: Tensor, weight: Tensor) -> HeadInput | None:
    """Give what an output layer computes with here; None where that isn't a matrix of whole rows."""
    if has_torch_function((hidden, weight)):
        found: HeadInput | None = handle_torch_function(head_input, (hidden, weight), hidden, weight)
        return found
    return HeadInput(hidden=hidden)


def head_rule(call: Call) -> Any:
    """Let the tokens' vectors meet a matrix that is cut by rows, or gather them for a whole one."""
    hidden, weight = call.args
    interpreter, shard = call.interpreter, shard_of(weight)
    cut = shard_of(hidden)
    if interpreter.axis != "tp" or "cp" in marks_of(hidden) or (cut is not None and not is_token_shard(hidden)):
        return None
    if shard is None:
        return HeadInput(hidden=interpreter.gather(hidden))
    if shard.dim or len(shard.split.parts) != 1 or shard.split.keeps_some:
        return None
    met = interpreter.positions_met(hidden) if cut is not None else interpreter.spread(hidden)
    return HeadInput(hidden=met, line=interpreter.line, shard=shard)


def head_loss(given: HeadInput, weight: Tensor, bias: Tensor | None, target: Tensor, scoring: Scoring) -> Tensor:
    """Give the summed cross-entropy of ``[N, D]`` vectors with ``[V, D]`` rows, in fp32 at least.

    Met by no interpreter: what is given is this rank's own.
    """
    loss: Tensor = apply_function(_HeadLoss, given.hidden, weight, bias, target, given.line, given.shard, scoring)
    return loss


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        line: Line | None,
        shard: Shard | None,
        scoring: Scoring,
    ) -> Tensor:
        device = hidden.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            pieces = _Pieces(hidden, weight, bias, low=low, line=line, shard=shard, scoring=scoring, needs=ctx)
            loss = pieces.run(target)
        ctx.save_for_backward(pieces.grad_hidden, pieces.grad_weight, pieces.grad_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (*(_scaled(each, grads[0]) for each in ctx.saved_tensors), None, None, None, None)


def _scaled(gradient: Tensor | None, factor: Tensor) -> Tensor | None:
    return None if gradient is None else gradient * factor.to(gradient.dtype)


class _Pieces:
    """One pass over the tokens, some at a time."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        low: torch.dtype,
        line: Line | None,
        shard: Shard | None,
        scoring: Scoring,
        needs: Any,
    ) -> None:
        self.hidden, self.matrix = hidden, weight.to(low)
        self.bias = None if bias is None else bias.to(low)
        self.low, self.line, self.scoring = low, line, scoring
        self.exact = torch.promote_types(low, torch.float32)
        total, own = weight.shape[0], (0, weight.shape[0])
        if line is not None and shard is not None:
            total, (own,) = shard.split.total, shard.split.ranges(line.rank)
        self.num_classes, (self.start, self.length) = total, own
        wanted = needs.needs_input_grad
        self.grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        self.grad_weight = torch.zeros_like(weight) if wanted[1] else None
        self.grad_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None

    def run(self, target: Tensor) -> Tensor:
        """Give the loss; gradients of what is wanted lie in this object then."""
        loss = torch.zeros((), dtype=self.exact, device=self.hidden.device)
        for rows in _rows_of(len(target), self.length):
            given = self.hidden[rows].to(self.low)
            logits = F.linear(given, self.matrix, self.bias)
            part, grad = self._scored(logits, target[rows])
            loss += part
            if grad is not None:
                self._add(rows, given, grad)
        return loss

    def _scored(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give the loss of some tokens and the gradient of their logits."""
        wanted = self.grad_hidden is not None or self.grad_weight is not None
        if not self.scoring.changes:
            loss, grad = self._cross_entropy(logits, target, wanted=wanted)
            return loss, None if grad is None else grad.to(self.low)
        with torch.enable_grad():
            raw = logits.detach().requires_grad_(wanted)
            changed = raw
            for change in self.scoring.changes:
                changed = change(changed)
        loss, grad = self._cross_entropy(changed.detach(), target, wanted=wanted)
        if grad is None:
            return loss, None
        return loss, torch.autograd.grad(changed, raw, grad.to(changed.dtype))[0]

    def _cross_entropy(self, logits: Tensor, target: Tensor, *, wanted: bool) -> tuple[Tensor, Tensor | None]:
        scoring, counted = self.scoring, target != self.scoring.ignored
        place = target - self.start
        mine = (place >= 0) & (place < self.length) & counted
        place = torch.where(mine, place, 0)[:, None]
        highest = self._reduced(logits.amax(-1).to(self.exact), largest=True)
        shifted = logits.to(self.exact, copy=bool(scoring.changes)).sub_(highest[:, None])
        sums = [torch.where(mine, shifted.gather(-1, place)[:, 0], 0.0)]
        if scoring.smoothing:
            sums.append(shifted.sum(-1))
        chances = shifted.exp_()
        right, *everything, total = self._reduced(torch.stack([*sums, chances.sum(-1)])).unbind(0)
        lse = total.log()
        losses = (1.0 - scoring.smoothing) * (lse - right)
        if scoring.smoothing:
            losses += scoring.smoothing * (lse - everything[0] / self.num_classes)
        absolute = lse + highest
        if scoring.z_loss:
            losses += scoring.z_loss * absolute.square()
        loss = torch.where(counted, losses, 0.0).sum()
        if not wanted:
            return loss, None
        grow = 1.0 + 2.0 * scoring.z_loss * absolute if scoring.z_loss else 1.0
        grad = chances.mul_(torch.where(counted, grow / total, 0.0)[:, None])
        if scoring.smoothing:
            grad -= counted.to(grad.dtype)[:, None] * (scoring.smoothing / self.num_classes)
        return loss, grad.scatter_add_(1, place, mine.to(grad.dtype)[:, None] * (scoring.smoothing - 1.0))

    def _reduced(self, values: Tensor, *, largest: bool = False) -> Tensor:
        if self.line is None:
            return values
        kind = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return self.line.all_reduce(values, where="forward", op=kind)

    def _add(self, rows: slice, given: Tensor, grad: Tensor) -> None:
        if self.grad_hidden is not None:
            self.grad_hidden[rows] = (grad @ self.matrix).to(self.grad_hidden.dtype)
        if self.grad_weight is not None:
            if self.grad_weight.dtype == self.low:
                self.grad_weight.addmm_(grad.T, given)
            else:
                self.grad_weight += grad.T @ given
        if self.grad_bias is not None:
            self.grad_bias += grad.sum(0)


def _rows_of(count: int, width: int) -> Iterator[slice]:
    step = min(max(-(-count // _NUM_PIECES), _LEAST_ROWS), max(_MOST_NUMEL // max(width, 1), 1))
    for first in range(0, count, step):
        yield slice(first, first + step)
