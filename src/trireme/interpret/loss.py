"""Cross-entropy over a cut vocabulary: two small all-reduces instead of gathered logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from trireme.interpret.across import check_whole_runs, log_softmax, pick
from trireme.interpret.call import Call
from trireme.interpret.collective import Line, exchange
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import shard_of


def cross_entropy(call: Call) -> Any:
    """``F.cross_entropy`` on logits whose classes are sharded, by number of the right class or by probabilities.

    Source:
        Shoeybi et al. 2019, "Megatron-LM", section 3, on the output embedding.
    """
    logits, target = call.get(0, "input"), call.get(1, "target")
    class_dim = 1 if logits.ndim > 1 else 0
    shard = _shard_of_classes(call, logits, target, class_dim)
    smoothing = call.get(7, "label_smoothing", default=0.0)
    weight, ignored = call.get(2, "weight"), call.get(4, "ignore_index", default=-100)
    reduction = call.get(6, "reduction", default="mean")
    if target.is_floating_point():
        return _by_probabilities(call, logits, target, weight, reduction, smoothing)
    if weight is not None:
        losses, weights = _weighted(call, logits, target, weight, ignored, smoothing)
        return _reduced(losses, weights, reduction, target.shape)
    rows = logits.movedim(class_dim, -1).reshape(-1, logits.shape[class_dim])
    flat = target.reshape(-1)
    found = cut_cross_entropy(rows, flat, call.interpreter.line, shard, ignored, smoothing)
    return _reduced(found, (flat != ignored).to(found.dtype), reduction, target.shape)


def cut_cross_entropy(rows: Tensor, target: Tensor, line: Line, shard: Shard, ignored: int, smoothing: float) -> Tensor:
    """Give ``[N]`` losses of ``[N, V/degree]`` logits; met by an interpreter outside, for rows may be positions."""
    if has_torch_function((rows, target)):
        given = (rows, target, line, shard, ignored, smoothing)
        outside: Tensor = handle_torch_function(cut_cross_entropy, (rows, target), *given)
        return outside
    return exchange(_CutCrossEntropy, rows, target, line, shard, ignored, smoothing)


def nll_loss(call: Call) -> Any:
    """``F.nll_loss`` on log-probabilities whose classes are sharded."""
    chances, target = call.get(0, "input"), call.get(1, "target")
    class_dim = 1 if chances.ndim > 1 else 0
    _shard_of_classes(call, chances, target, class_dim)
    weight, ignored = call.get(2, "weight"), call.get(4, "ignore_index", default=-100)
    counted = target != ignored
    safe = torch.where(counted, target, 0)
    losses = -pick(call, chances, safe.unsqueeze(class_dim)).squeeze(class_dim)
    weights = counted.to(losses.dtype) if weight is None else _class_weight(call, weight, safe) * counted
    reduction = call.get(6, "reduction", default="mean")
    return _reduced((losses * weights).reshape(-1), weights.reshape(-1), reduction, target.shape)


def kl_div(call: Call) -> Any:
    """``F.kl_div`` of sharded log-probabilities: elements, then the reduction it names."""
    chances, target = call.get(0, "input"), call.get(1, "target")
    reduction = call.get(4, "reduction", default="mean")
    log_target = call.get(5, "log_target", default=False)
    if call.get(2, "size_average") is not None or call.get(3, "reduce") is not None:
        raise call.refuse(chances, target)
    with call.interpreter:
        losses = target.exp() * (target - chances) if log_target else torch.xlogy(target, target) - target * chances
        if reduction == "none":
            return losses
        if reduction == "batchmean":
            return losses.sum() / chances.shape[0]
        return losses.sum() if reduction == "sum" else losses.mean()


def _shard_of_classes(call: Call, scores: Tensor, target: Tensor, class_dim: int) -> Shard:
    shard = shard_of(scores)
    old_names = call.get(3, "size_average") is not None or call.get(5, "reduce") is not None
    probable = target.is_floating_point()
    if shard is None or shard.dim != class_dim or old_names or (shard_of(target) is not None and not probable):
        raise call.refuse(scores, target)
    return check_whole_runs(call, scores, always_pays=True)


def _class_weight(call: Call, weight: Tensor, target: Tensor) -> Tensor:
    """Give the weight of every target's class."""
    whole: Tensor = call.interpreter.gather(weight)
    return whole[target]


def _weighted(
    call: Call, logits: Tensor, target: Tensor, weight: Tensor, ignored: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Give the losses where classes weigh differently, and what they weigh."""
    class_dim = 1 if logits.ndim > 1 else 0
    shard = shard_of(logits)
    assert shard is not None
    chances = log_softmax(call, logits, class_dim)
    counted = target != ignored
    safe = torch.where(counted, target, 0)
    weights = _class_weight(call, weight, safe) * counted
    losses = -(1.0 - smoothing) * pick(call, chances, safe.unsqueeze(class_dim)).squeeze(class_dim) * weights
    if smoothing:
        whole = call.interpreter.gather(weight)
        own = call.interpreter.share(whole, 0, shard.split).view([-1, *[1] * (logits.ndim - 1 - class_dim)])
        everything = call.interpreter.sum_partial((chances * own).sum(class_dim))
        losses = losses - smoothing / shard.split.total * everything * counted
    return losses.reshape(-1), weights.reshape(-1)


def _by_probabilities(
    call: Call, logits: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """Give the loss against a distribution over the classes."""
    class_dim = 1 if logits.ndim > 1 else 0
    shard = shard_of(logits)
    assert shard is not None
    known = shard_of(target)
    if known is not None and (known.dim, known.split) != (shard.dim, shard.split):
        raise call.refuse(target)
    own = target if known is not None else call.interpreter.share(target, class_dim, shard.split)
    own = own * (1.0 - smoothing) + smoothing / shard.split.total
    if weight is not None:
        share = call.interpreter.share(call.interpreter.gather(weight), 0, shard.split)
        own = own * share.view([-1, *[1] * (logits.ndim - 1 - class_dim)])
    losses = -call.interpreter.sum_partial((log_softmax(call, logits, class_dim) * own).sum(class_dim))
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / max(1, losses.numel())


def _reduced(losses: Tensor, weights: Tensor, reduction: str, shape: torch.Size) -> Tensor:
    if reduction == "none":
        return losses.view(shape)
    return losses.sum() if reduction == "sum" else losses.sum() / weights.sum()


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
