"""Which number formats a device computes in: in hardware, by emulation, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import torch

from trireme.errors import DeviceError

_FLOAT8 = "float8_e4m3fn"


class FormatSupport(Enum):
    """How a device computes in a number format."""

    NATIVE = "native"
    EMULATED = "emulated"
    MISSING = "missing"


def format_support(device: torch.device) -> Mapping[str, FormatSupport]:
    """Return, by dtype name, how ``device`` multiplies matrices in it."""
    match device.type:
        case "cpu":
            return MappingProxyType(_cpu_support())
        case "cuda":
            return MappingProxyType(_cuda_support(device))
        case _:
            return MappingProxyType(_tried_support(device))


def check_format(device: torch.device, dtype: torch.dtype) -> None:
    """Raise unless ``device`` can compute in ``dtype``.

    Raises:
        DeviceError: It can't; the message names the formats that it can.
    """
    support = format_support(device)
    name = str(dtype).removeprefix("torch.")
    if support.get(name, FormatSupport.MISSING) is FormatSupport.MISSING:
        known = ", ".join(sorted(key for key, value in support.items() if value is not FormatSupport.MISSING))
        raise DeviceError("mesh.format_missing", device=device, dtype=name, known=known)


def _cpu_support() -> dict[str, FormatSupport]:
    flags = torch.cpu.get_capabilities()

    def native_if(*names: str) -> FormatSupport:
        return FormatSupport.NATIVE if any(flags.get(name) for name in names) else FormatSupport.EMULATED

    return {
        "float64": FormatSupport.NATIVE,
        "float32": FormatSupport.NATIVE,
        "bfloat16": native_if("avx512_bf16", "amx_bf16", "bf16", "arm_bf16"),
        "float16": native_if("avx512_fp16", "amx_fp16", "fp16", "fp16_arith", "arm_fp16"),
        _FLOAT8: FormatSupport.MISSING,
    }


def _cuda_support(device: torch.device) -> dict[str, FormatSupport]:
    # ROCm reports itself as this type too; its capability numbers are gfx numbers (9, 4) and up for MI300.
    capability = torch.cuda.get_device_capability(device)
    on_rocm = torch.version.hip is not None

    def native_from(*least: int) -> FormatSupport:
        return FormatSupport.NATIVE if capability >= least else FormatSupport.EMULATED

    return {
        "float64": FormatSupport.NATIVE,
        "float32": FormatSupport.NATIVE,
        "bfloat16": FormatSupport.NATIVE if on_rocm else native_from(8, 0),
        "float16": native_from(5, 3),
        _FLOAT8: FormatSupport.NATIVE if capability >= ((9, 4) if on_rocm else (8, 9)) else FormatSupport.MISSING,
    }


def _tried_support(device: torch.device) -> dict[str, FormatSupport]:
    """Multiply two small matrices in each format: no backend but cuda says what it can."""
    names = ("float64", "float32", "bfloat16", "float16")
    return {name: _tried(device, getattr(torch, name)) for name in names} | {_FLOAT8: FormatSupport.MISSING}


def _tried(device: torch.device, dtype: torch.dtype) -> FormatSupport:
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        correct = bool((ones @ ones == 8).all().item())
    except (RuntimeError, TypeError, NotImplementedError):
        return FormatSupport.MISSING
    return FormatSupport.NATIVE if correct else FormatSupport.MISSING
