"""How long a matrix product takes forward and in both halves of its backward."""

from __future__ import annotations

from trireme.cluster import estimate_matmul
from trireme.plan.time_place import Place
from trireme.plan.time_work import Passes, Work

_ALIGNED = 64
_MISALIGNED_RATIO = 1.15
_ODD = 8
_ODD_RATIO = 1.7
"""Lines of memory hold 64 16-bit numbers and tensor cores take 8 at a time: other lengths load what they don't use.

Source:
    NVIDIA, "Matrix Multiplication Background User's Guide", DU-09799-001, section 2.1 (alignment); the two ratios are
    ours, of the size that its figure 2 shows.
"""


def product_work(
    rows: int, inner: int, outer: int, place: Place, *, narrow: bool, batch: int = 1, is_weight: bool = True
) -> Passes:
    """Give the passes of ``batch`` products of rows x inner by inner x outer.

    The gradient of a weight is added to what is there, so it moves that as well; where both factors are
    activations (``is_weight`` False) neither is.
    """
    dtype = place.narrow if narrow else place.wide
    forward = _one(rows, inner, outer, dtype, place, batch=batch)
    input_grad = _one(rows, outer, inner, dtype, place, batch=batch)
    added_bytes = 2 * place.gradient_bytes * inner * outer * batch if is_weight else 0
    weight_grad = _one(inner, rows, outer, dtype, place, batch=batch, added_bytes=added_bytes)
    casts = Work(kernels=1)
    if narrow:  # each factor is read once to find its scale and once to be written in the narrow format, twice over
        moved = 5.0 * rows * inner * batch / place.device.memory_bytes_per_s
        casts = Work(traffic_s=moved, kernels=3)
    return Passes(forward=forward.plus(casts), input_grad=input_grad.plus(casts), weight_grad=weight_grad.plus(casts))


def _one(m: int, k: int, n: int, dtype: str, place: Place, *, batch: int, added_bytes: float = 0.0) -> Work:
    time = estimate_matmul(m=m, n=n, k=k, accelerator=place.device, dtype=dtype, batch=batch)
    seconds = time.time_s * _alignment_ratio(k, n)
    seconds = max(seconds, added_bytes / place.device.memory_bytes_per_s)
    is_narrow = dtype in ("float8", "float4")
    return Work(
        products_s=0.0 if is_narrow else seconds,
        narrow_s=seconds if is_narrow else 0.0,
        ramps_s=seconds * 1000 / k,
    )


def _alignment_ratio(*lengths: int) -> float:
    if any(length % _ODD for length in lengths):
        return _ODD_RATIO
    return _MISALIGNED_RATIO if any(length % _ALIGNED for length in lengths) else 1.0
