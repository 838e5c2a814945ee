"""Rotary positions: tables in fp32 from float64 phases, rotation in fp32, whatever the precision policy.

The tables are no buffers, so no cast of the module reaches them; the rotation itself is fp32 too, and
only its result is rounded to the format of queries and keys. A large base makes the slow frequencies tiny,
and rotating in bf16 would blur neighbouring positions: that choice is this file's, and a test measures it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from trireme.models.precision import prefers_host_kernel, statistics_dtype, without_autocast


class RotaryTable:
    """Cosines and sines of every position up to ``max_seq_len``, made once per device.

    Source:
        Su et al. 2021, "RoFormer", section 3.2.2; halves are paired as in the released Llama weights.
    """

    def __init__(self, *, head_width: int, max_seq_len: int, theta: float) -> None:
        self.head_width = head_width
        self.max_seq_len = max_seq_len
        self.theta = theta
        self._by_device: dict[torch.device, Tensor] = {}

    def at(self, position_ids: Tensor) -> Tensor:
        """Give the table at each position.

        Shapes:
            position_ids: ``[..., T]``; result: ``[2, ..., T, 1, K]``, ready to meet ``q_BTHK``.
        """
        return self.table(position_ids.device)[:, position_ids].unsqueeze(-2)

    def first(self, num_positions: int, *, device: torch.device) -> Tensor:
        """Give the table at positions ``0..num_positions``; result ``[2, T, 1, K]``."""
        return self.table(device)[:, :num_positions].unsqueeze(-2)

    def table(self, device: torch.device) -> Tensor:
        """Return ``[2, max_seq_len, K]`` in fp32: cosines, and sines whose first half is negative.

        Phases are float64 until the cosine is taken.
        """
        if device in self._by_device:
            return self._by_device[device]
        with torch.device("meta" if device.type == "meta" else "cpu"):
            exponent = torch.arange(0, self.head_width, 2, dtype=torch.float64) / self.head_width
            positions = torch.arange(self.max_seq_len, dtype=torch.float64)
            phase = torch.outer(positions, self.theta**-exponent)
            cos, sin = phase.cos(), phase.sin()
            table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))).float().to(device)
        if type(table) is Tensor:  # one that an export traces is no table
            self._by_device[device] = table
        return table


def rotate(x_BTHK: Tensor, table: Tensor) -> Tensor:
    """Rotate each head's vector by its position; dtype unchanged, arithmetic in fp32 or better."""
    if prefers_host_kernel(x_BTHK):
        rotated: Tensor = cast(Any, _HostRotation).apply(x_BTHK, table)
        return rotated
    exact = x_BTHK.to(statistics_dtype(x_BTHK))
    return (exact * table[0] + _swap_halves(exact) * table[1]).to(x_BTHK.dtype)


class _HostRotation(torch.autograd.Function):
    """The same rotation; its gradient is the rotation back, so nothing but the table is kept."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return _turn(x, table[0], table[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (table,) = ctx.saved_tensors
        return _turn(grad, table[0], -table[1]), None


def _turn(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    exact = x.to(statistics_dtype(x))
    return _swap_halves(exact).mul_(signed_sin).add_(exact * cos).to(x.dtype)


def _swap_halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((b, a), dim=-1)
