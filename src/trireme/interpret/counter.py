"""Random numbers by counting: element ``i`` of stream ``key`` is a function of the two, and of nothing else.

So any slice of a tensor can be drawn alone, in any order, on any device, with the same bits. Only
operations that IEEE 754 rounds exactly are used (no library ``log`` or ``cos``), each in its own kernel.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIT = 2.0**-24
_CHUNK = 1 << 16
"""Elements drawn at a time: their 64-bit intermediates stay in a core's cache."""


def stream_key(*parts: object) -> int:
    """Give the 64-bit key of the stream called by ``parts``, for example ``(seed, parameter name)``."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hash_index(index: Tensor, key: int) -> Tensor:
    """Turn int64 element numbers into 64 well-mixed bits each (the splitmix64 generator, counted).

    Source:
        Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators", section 5.
    """
    x = (index * signed(_GOLDEN)).add_(signed(key))
    x = x.bitwise_xor_(_shift_right(x, 30)).mul_(signed(_MIX_1))
    x = x.bitwise_xor_(_shift_right(x, 27)).mul_(signed(_MIX_2))
    return x.bitwise_xor_(_shift_right(x, 31))


def uniform_bits(index: Tensor, key: int) -> Tensor:
    """Give 24 random bits for each element number, as int64."""
    return _shift_right(hash_index(index, key), 40)


def uniform(index: Tensor, key: int) -> Tensor:
    """Give an fp32 number in [0, 1) for each element number."""
    return uniform_bits(index, key).to(torch.float32).mul_(_UNIT)


def dropout_key(seed: int, site_key: float, step: int) -> int:
    """Give the key of what is drawn at one place of a model in one step; ``site_key`` is the signed key of its name."""
    return stream_key(seed, site_key, step)


def keep(index: Tensor, *, key: int, p: float) -> Tensor:
    """Say of each element whether dropout with probability ``p`` keeps it."""
    return uniform_bits(index, key).ge(round(p * 2**24))


def normal(index: Tensor, key: int) -> Tensor:
    """Give a standard normal fp32 number for each element number.

    Source:
        Box and Muller 1958, "A Note on the Generation of Random Normal Deviates"; 24 bits a uniform, so
        the largest magnitude is sqrt(2 * 24 * ln 2) = 5.8.
    """
    bits = hash_index(index, key)
    radius = _log(_shift_right(bits, 40).add_(1).to(torch.float32).mul_(_UNIT)).mul_(-2.0).clamp_(min=0.0).sqrt_()
    turn = bits.bitwise_right_shift_(16).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(_UNIT).sub_(0.5)
    return radius.mul_(_sin_of_turn(turn))


def fill_normal(
    target: Tensor, *, key: int, std: float, full_shape: Sequence[int] | None = None, start: Sequence[int] | None = None
) -> None:
    """Fill ``target``, in place, with the numbers of its place in the whole tensor.

    Args:
        target: The whole tensor or a slice of it.
        key: The tensor's stream.
        std: Standard deviation.
        full_shape: Shape of the whole tensor. Default: ``target`` is the whole.
        start: Where the slice begins, per dim. Default: at zero.
    """
    full = tuple(full_shape or target.shape)
    offset = tuple(start or (0,) * target.ndim)
    row_index = _row_index(target, full, offset)
    rows = target.detach().reshape(target.shape[0], -1) if target.is_contiguous() else None
    row_stride = math.prod(full[1:])
    step = max(1, _CHUNK // max(row_index.numel(), 1))
    for first in range(0, target.shape[0], step):
        last = min(first + step, target.shape[0])
        leading = torch.arange(offset[0] + first, offset[0] + last, device=target.device) * row_stride
        values = normal(leading[:, None] + row_index, key).mul_(std)
        if rows is None:
            target.detach()[first:last].copy_(values.view(last - first, *target.shape[1:]))
        else:
            rows[first:last].copy_(values)


def _row_index(target: Tensor, full: tuple[int, ...], offset: tuple[int, ...]) -> Tensor:
    """Give the element numbers of one leading row of the slice, flat, counted from the row's first element."""
    index = torch.zeros(1, dtype=torch.int64, device=target.device)
    for dim in range(1, target.ndim):
        along = torch.arange(offset[dim], offset[dim] + target.shape[dim], device=target.device)
        index = (index[:, None] * full[dim] + along).reshape(-1)
    return index


def signed(value: int) -> int:
    """Give the int64 with the bits of a 64-bit key."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift zeros in from the left; int64's own shift copies the sign."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _log(x: Tensor) -> Tensor:
    """Natural logarithm on (0, 1]: 2 artanh of (m - 1) / (m + 1) for the mantissa m, to 2e-8."""
    mantissa, exponent = torch.frexp(x)
    s = (mantissa - 1.0).div_(mantissa + 1.0)
    square = s * s
    series = torch.full_like(s, 2.0 / 15)
    for odd in (13, 11, 9, 7, 5, 3, 1):
        series.mul_(square).add_(2.0 / odd)
    return series.mul_(s).add_(exponent.to(torch.float32).mul_(math.log(2.0)))


def _sin_of_turn(turn: Tensor) -> Tensor:
    """Sine of 2 pi ``turn`` for turns in [-0.5, 0.5): the Taylor series, to 3e-8 before rounding."""
    angle = turn * (2.0 * math.pi)
    square = angle * angle
    series = torch.full_like(angle, 1.0 / math.factorial(17))
    for odd in (15, 13, 11, 9, 7, 5, 3, 1):
        sign = 1.0 if odd % 4 == 1 else -1.0
        series.mul_(square).add_(sign / math.factorial(odd))
    return series.mul_(angle)
