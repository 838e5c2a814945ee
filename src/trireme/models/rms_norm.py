"""RMSNorm: statistics in fp32, result in the format of the matrix products that read it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from trireme.models.precision import compute_dtype, prefers_host_kernel, statistics_dtype, without_autocast


class RMSNorm(nn.Module):
    """Scale each vector to unit root-mean-square, then by a weight per element.

    Source:
        Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
    """

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalise; shape unchanged, dtype that of the matrix products."""
        dtype = compute_dtype(x_BTD)
        if prefers_host_kernel(x_BTD):
            normed: Tensor = cast(Any, _HostRMSNorm).apply(x_BTD, self.weight, self.eps, dtype)
            return normed
        return rms_norm(x_BTD, self.weight, eps=self.eps).to(dtype)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Give the plain formula, in fp32 or better."""
    exact = x.to(statistics_dtype(x))
    scale = torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return exact * scale * weight.to(exact.dtype)


class _HostRMSNorm(torch.autograd.Function):
    """The same formula with one number a vector kept for backward instead of four tensors."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        exact = statistics_dtype(x)
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact).square_()
        scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = (x * scale).mul_(weight.to(exact)).to(dtype)
        return normed

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        exact_grad, exact_weight = grad.to(scale.dtype), weight.to(scale.dtype)
        normed = x * scale
        weighted = exact_grad * normed
        grad_weight = weighted.sum(dim=tuple(range(x.ndim - 1)))
        mean = torch.matmul(weighted, exact_weight).unsqueeze(-1).div_(x.shape[-1])
        grad_x = torch.mul(exact_grad, exact_weight, out=weighted).sub_(normed.mul_(mean)).mul_(scale)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None, None
