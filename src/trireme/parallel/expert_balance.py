"""What keeps experts evenly used, from the numbers of all ranks: balance loss, z-loss, selection biases.

A balance loss is a product of two means over tokens, so the mean of the ranks' losses is not the loss of their
tokens together. Here the statistics are those of all ranks' tokens of one micro-batch, each token once. Every rank
gets the same value; a step weights it by the rank's share of what the main loss counts, and shares add up to one, so
it enters the gradient once. Over micro-batches it is the mean weighted the same way, as on one device that is given
the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.interpret import Line, apply_function
from trireme.parallel.expert import DealtExperts

_BIAS = "e_score_correction_bias"
_CHOICE_COUNTS = ("num_experts_per_tok", "moe_k", "top_k")


def balance_loss(router_logits: Sequence[Tensor], *, top_k: int, line: Line, mask: Tensor | None = None) -> Tensor:
    """Give the load-balancing loss over the tokens of all ranks of ``line`` and all layers.

    Args:
        router_logits: One tensor for each layer, (tokens, experts).
        top_k: Experts chosen for each token.
        line: The ranks that hold different tokens.
        mask: Ones for tokens that count, zeros for padding. Default: all count.

    Source:
        Fedus, Zoph, Shazeer 2021, "Switch Transformers", equations 4 to 6.
    """
    experts = router_logits[0].shape[-1]
    weight = _weight_of(router_logits[0], mask)
    chosen = torch.zeros(experts, dtype=weight.dtype, device=weight.device)
    probability = torch.zeros_like(chosen)
    for logits in router_logits:
        probabilities = logits.to(weight.device).softmax(-1)
        index = probabilities.topk(top_k, dim=-1).indices
        chosen = chosen.index_add(0, index.reshape(-1), weight.repeat_interleave(top_k))
        probability = probability + (probabilities.to(weight.dtype) * weight[:, None]).sum(0)
    rows = weight.sum() * len(router_logits)
    # One collective: the counts have no gradient, but travel with what has.
    summed = sum_over_ranks(torch.cat((chosen, probability, rows[None])), line)
    chosen, probability, rows = summed[:experts], summed[experts:-1], summed[-1].clamp_min(1.0)
    loss: Tensor = experts * (chosen.detach() / rows.detach() * (probability / rows.detach())).sum()
    return loss


def z_loss(router_logits: Sequence[Tensor], *, line: Line, mask: Tensor | None = None) -> Tensor:
    """Give the mean squared log-sum-exp of router logits over the tokens of all ranks and all layers.

    Source:
        Zoph et al. 2022, "ST-MoE", equation 5.
    """
    weight = _weight_of(router_logits[0], mask)
    squares = [(logits.to(weight).logsumexp(-1).square() * weight).sum() for logits in router_logits]
    summed = sum_over_ranks(torch.stack((torch.stack(squares).sum(), weight.sum() * len(squares))), line)
    return summed[0] / summed[1].detach().clamp_min(1.0)


def _weight_of(logits: Tensor, mask: Tensor | None) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if mask is None:
        return torch.ones(logits.shape[0], dtype=dtype, device=logits.device)
    return mask.reshape(-1).to(logits.device, dtype)


def balance_term(module: nn.Module, *, line: Line) -> Callable[[Any, Mapping[str, Any]], Tensor] | None:
    """Give the balance loss that a model of transformers is configured for, as a term of the objective.

    None for models without one. The model must be configured to return its router logits, as it must to have the
    loss at all.
    """
    config = getattr(module, "config", None)
    coefficient = getattr(config, "router_aux_loss_coef", None)
    top_k = next((getattr(config, name) for name in _CHOICE_COUNTS if hasattr(config, name)), None)
    if not coefficient or top_k is None or not getattr(config, "output_router_logits", False):
        return None

    def term(outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        logits = [each for each in outputs.router_logits if each is not None]
        loss = balance_loss(logits, top_k=top_k, line=line, mask=batch.get("attention_mask"))
        weighted: Tensor = coefficient * loss
        return weighted

    return term


def sum_over_ranks(tensor: Tensor, line: Line) -> Tensor:
    """Sum over ranks that each use the sum in their own part of the loss: gradients are summed as well."""
    summed: Tensor = apply_function(_SumOverRanks, tensor, line)
    return summed


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        ctx.line = line
        return line.all_reduce(tensor.clone(), where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.line.all_reduce(grads[0].clone(), where="backward"), None


@torch.no_grad()
def update_selection_biases(
    module: nn.Module, dealt: DealtExperts, *, rate: float, lines: Sequence[Line]
) -> dict[str, Tensor]:
    """Move the biases by which routers select experts towards an even load, and begin to count anew.

    Call it once after each optimizer step, on every rank.

    Args:
        module: The model; layers whose router has no such bias are left alone.
        dealt: What counted the load.
        rate: How far a bias moves.
        lines: Axes whose ranks hold different tokens or different experts: those of ``ep`` and of its copies.

    Returns:
        The load of each layer that was counted, by path: tokens that chose each expert on all ranks.

    Source:
        DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.1.2.
    """
    loads: dict[str, Tensor] = {}
    for path, traffic in dealt.traffic.items():
        if traffic.load is None:
            continue
        load = traffic.load.clone()
        for line in lines:
            if line.group is not None:
                dist.all_reduce(load, group=line.group)
        traffic.load, loads[path] = None, load
        bias = _bias_of(module, path, load.numel())
        if bias is not None:
            mean = load.to(torch.float64).mean()
            bias.add_(torch.sign(mean - load).to(bias).view_as(bias), alpha=rate)
    return loads


def _bias_of(module: nn.Module, path: str, num_experts: int) -> Tensor | None:
    around = module.get_submodule(path.rpartition(".")[0])
    for name, tensor in (*around.named_buffers(), *around.named_parameters()):
        if name.rpartition(".")[2] == _BIAS and tensor.numel() == num_experts:
            return tensor
    return None
