"""Number formats of a step, and the choice between them where the device decides.

| policy      | weights | forward, backward           | optimizer state              | loss scale |
| fp32        | fp32    | fp32, TF32 if asked for     | fp32                         | none       |
| bf16        | fp32    | bf16 (autocast)             | fp32                         | none       |
| fp16        | fp32    | fp16 (autocast)             | fp32                         | always     |
| bf16_master | bf16    | bf16                        | fp32, with fp32 weights      | none       |
| fp16_master | fp16    | fp16                        | fp32, with fp32 weights      | always     |
| bf16_pure   | bf16    | bf16                        | bf16; fp32 where rounding is | none       |
|             |         |                             | stochastic                   |            |
| fp8         | fp32    | fp8 (linear layers) in bf16 | fp32                         | none       |

Only parameters are ever cast: buffers (rotary tables among them) keep the format they were built in. Under every
16-bit policy autocast is on, so normalisation statistics, softmax and the loss are computed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from trireme.config import PrecisionSection
from trireme.errors import DeviceError
from trireme.mesh import FormatSupport, allow_tf32, format_support
from trireme.models import mixed_precision
from trireme.train.float8 import convert_linears
from trireme.train.scaler import LossScaler
from trireme.words import say

Policy = Literal["fp32", "bf16", "fp16", "bf16_master", "fp16_master", "bf16_pure", "fp8"]

_COMPUTE_DTYPES: dict[str, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16_master": torch.bfloat16,
    "fp16_master": torch.float16,
    "bf16_pure": torch.bfloat16,
    "fp8": torch.bfloat16,
}
_CAST = ("bf16_master", "fp16_master", "bf16_pure")
"""Policies under which the weights themselves are cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One policy on one device."""

    policy: Policy
    device: torch.device
    init_loss_scale: float = 65536.0
    loss_scale_growth_steps: int = 2000
    stochastic_rounding: bool = False

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """Format of matrix products, or None for the weights' own."""
        return _COMPUTE_DTYPES[self.policy]

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """Format the weights are cast to, or None to leave them."""
        return _COMPUTE_DTYPES[self.policy] if self.policy in _CAST else None

    @property
    def keeps_master(self) -> bool:
        """Whether the optimizer keeps fp32 copies of the weights."""
        return self.policy.endswith("_master")

    @property
    def loses_updates(self) -> bool:
        """Whether updates smaller than the weights' spacing are lost."""
        return self.policy == "bf16_pure" and not self.stochastic_rounding

    def compute_context(self, module: nn.Module, *, keeps_casts: bool = True) -> AbstractContextManager[object]:
        """Return the context that all forwards and backwards of one step run in.

        One for all micro-batches, so that each weight is cast once a step; closed before the weights
        change, and another one for evaluation.
        """
        return mixed_precision(module, self.compute_dtype, keeps_casts=keeps_casts)

    def build_scaler(self) -> LossScaler | None:
        """Return a loss scale for fp16, which always has one, and None for every other format."""
        if self.compute_dtype != torch.float16:
            return None
        return LossScaler(init_scale=self.init_loss_scale, growth_steps=self.loss_scale_growth_steps)


def build_precision(
    policy: Policy,
    *,
    device: torch.device,
    section: PrecisionSection | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> Precision:
    """Return the policy on this device; warns of bf16_pure, falls back to fp32 only if told to.

    Raises:
        DeviceError: The device can't compute in the format and ``fallback`` is ``stop``.
    """
    section = section or PrecisionSection()
    if policy not in _COMPUTE_DTYPES:
        raise DeviceError("train.unknown_precision", policy=policy, known=", ".join(_COMPUTE_DTYPES))
    dtype = torch.float8_e4m3fn if policy == "fp8" else _COMPUTE_DTYPES[policy]
    if dtype is not None and not can_compute(dtype, device=device):
        if section.fallback != "fp32":
            raise DeviceError("train.no_dtype", policy=policy, device=device)
        notice(say("train.dtype_fallback", policy=policy, device=device))
        policy = "fp32"
    precision = Precision(
        policy=policy,
        device=device,
        init_loss_scale=section.init_loss_scale,
        loss_scale_growth_steps=section.loss_scale_growth_steps,
        stochastic_rounding=section.stochastic_rounding and policy == "bf16_pure",
    )
    if precision.loses_updates:
        notice(say("train.bf16_pure"))
    if section.tf32 and not allow_tf32(device):
        notice(say("train.no_tf32", device=device))
    return precision


def can_compute(dtype: torch.dtype, *, device: torch.device) -> bool:
    """Say whether the device multiplies in ``dtype``, in hardware or by emulation."""
    name = str(dtype).removeprefix("torch.")
    return format_support(device).get(name, FormatSupport.MISSING) is not FormatSupport.MISSING


def apply_precision(module: nn.Module, *, precision: Precision) -> nn.Module:
    """Cast the module's parameters where the policy says so, in place, and return it.

    Raises:
        DeviceError: fp8 was asked for and torchao isn't installed.
    """
    dtype = precision.weight_dtype
    if dtype is not None:
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
    if precision.policy == "fp8":
        convert_linears(module)
    return module
