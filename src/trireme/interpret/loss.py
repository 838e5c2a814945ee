"""Cross-entropy over a cut vocabulary: two small all-reduces instead of gathered logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.collective import Line
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import shard_of
from trireme.interpret.torch_private import apply_function


def cross_entropy(call: Call) -> Any:
    """``F.cross_entropy`` on logits whose classes are sharded; ignored targets and smoothing included.

    Source:
        Shoeybi et al. 2019, "Megatron-LM", section 3, on the output embedding.
    """
    logits, target = call.get(0, "input"), call.get(1, "target")
    shard = shard_of(logits)
    class_dim = 1 if logits.ndim > 1 else 0
    old_names = call.get(3, "size_average") is not None or call.get(5, "reduce") is not None
    if shard is None or shard.dim != class_dim or len(shard.split.parts) != 1 or shard.split.keeps_some or old_names:
        raise call.refuse(logits, target)
    if target.is_floating_point() or call.get(2, "weight") is not None:
        raise call.refuse(logits, target)
    ignored = call.get(4, "ignore_index", default=-100)
    rows = logits.movedim(class_dim, -1).reshape(-1, logits.shape[class_dim])
    smoothing = call.get(7, "label_smoothing", default=0.0)
    flat = target.reshape(-1)
    losses: Tensor = apply_function(_CutCrossEntropy, rows, flat, call.interpreter.line, shard, ignored, smoothing)
    return _reduced(losses, flat != ignored, call.get(6, "reduction", default="mean"), target.shape)


def _reduced(losses: Tensor, counted: Tensor, reduction: str, shape: torch.Size) -> Tensor:
    if reduction == "none":
        return losses.view(shape)
    return losses.sum() if reduction == "sum" else losses.sum() / counted.sum()


class _CutCrossEntropy(torch.autograd.Function):
    """``[N, V/degree]`` logits and ``[N]`` targets to ``[N]`` losses, 0 where ignored."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, line: Line, shard: Shard, ignored: int, smoothing: float
    ) -> Tensor:
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        ((start, length),) = shard.split.ranges(line.rank)
        place = target - start
        counted = target != ignored
        mine = (place >= 0) & (place < length) & counted
        place = torch.where(mine, place, 0)
        highest = line.all_reduce(exact.amax(-1), where="forward", op=dist.ReduceOp.MAX)
        shifted = exact - highest[:, None]
        exps = shifted.exp()
        picked = torch.where(mine, shifted.gather(-1, place[:, None])[:, 0], 0.0)
        parts = [exps.sum(-1), picked, shifted.sum(-1)] if smoothing else [exps.sum(-1), picked]
        total, right, *everything = line.all_reduce(torch.stack(parts), where="forward").unbind(0)
        losses = (1.0 - smoothing) * (total.log() - right)
        if smoothing:
            losses = losses + smoothing * (total.log() - everything[0] / shard.split.total)
        ctx.save_for_backward(exps / total[:, None], place, mine, counted)
        ctx.smoothing, ctx.num_classes, ctx.dtype = smoothing, shard.split.total, logits.dtype
        return torch.where(counted, losses, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, place, mine, counted = ctx.saved_tensors
        weight = torch.where(counted, grads[0], 0.0)[:, None]
        grad = (probabilities - ctx.smoothing / ctx.num_classes) * weight
        right = torch.where(mine[:, None], -(1.0 - ctx.smoothing) * weight, 0.0)
        return grad.scatter_add_(1, place[:, None], right).to(ctx.dtype), None, None, None, None, None
