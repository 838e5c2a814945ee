"""How fast a matrix product runs, by its shape: compute or memory, whole tiles, whole waves.

A kernel cuts the result into tiles and hands them to the processors in waves; a tile cut by the edge or a
last wave half full costs as much as a whole one. What is left of the peak when nothing is lost that way is
the ceiling, measured once per accelerator and number format.

What a tile size costs, the memory's share and the launch are assumptions until a probe has measured them.

Source:
    NVIDIA, "Matrix Multiplication Background User's Guide", DU-09799-001, February 2023, section 3 (tile and wave
    quantization). Ceilings: the highest rates over many shapes in "Maximum Achievable Matmul FLOPS",
    https://github.com/stas00/ml-engineering/blob/744d01e/compute/accelerator/README.md, read 2026-11-30.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trireme.cluster.catalog import DeviceSpec

DEFAULT_CEILING_RATIO = 0.75
"""Share of the peak that large products reach where nobody published it; said to be a guess by ``ceiling_of``."""

LAUNCH_S = 3e-6
"""From one kernel to the next inside a stream; no product is faster. Assumed, not published."""

_PEAK_TFLOPS = MappingProxyType(
    {  # family: (measured, peak) in bfloat16, (measured, peak) in float8
        "A100": ((271.0, 312.0), None),
        "A800": ((271.0, 312.0), None),
        "H100": ((794.5, 989.0), (1402.6, 1979.0)),
        "H800": ((794.5, 989.0), (1402.6, 1979.0)),
        "H200": ((794.5, 989.0), (1453.0, 1979.0)),
        "B200": ((1745.0, 2250.0), (3432.5, 4500.0)),
        "B300": ((1769.0, 2250.0), None),
        "GB200": ((1822.0, 2500.0), (3615.6, 5000.0)),
        "MI300X": ((668.0, 1300.0), None),
    }
)

PROCESSORS: Mapping[str, int] = MappingProxyType(
    {
        "V100": 80,
        "A100": 108,
        "A800": 108,
        "H100": 132,
        "H800": 132,
        "H200": 132,
        "H20": 78,
        "B200": 148,
        "B300": 148,
        "GB200": 152,
        "GB300": 152,
        "L40S": 142,
        "4090": 128,
        "MI300X": 304,
        "H100 PCIe 80GB": 114,
    }
)
"""Streaming multiprocessors (compute units on MI300X) that take tiles.

Source:
    A100: the guide above. H200: https://github.com/stas00/ml-engineering/blob/c53741b/network/benchmarks/results/
    all-reduce-8xH200.md. B200: https://github.com/pytorch/ao/pull/4002. The others are known, but no page that we
    read prints them: secondary.
"""

_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_TILE_RATIOS = (1.0, 1.0, 0.95, 0.8, 0.8, 0.65)
"""Smaller tiles load more per product (the guide's section 2.3 shows the order); the figures are assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTime:
    """Time of one product and what holds it up.

    Attributes:
        time_s: In all.
        flops: Of the product, two for each multiply-add.
        ratio: Share of the accelerator's peak that it reaches.
        bound: ``compute``, ``memory`` or ``launch``.
    """

    time_s: float
    flops: float
    ratio: float
    bound: str


def family_of(accelerator: DeviceSpec) -> str | None:
    """Return the chip's name in the tables here, None for a chip that they lack."""
    return next((word for word in accelerator.name.split() if word in PROCESSORS), None)


def processors_of(accelerator: DeviceSpec) -> int | None:
    """Return how many tiles the accelerator works on at once, None where nobody said."""
    return PROCESSORS.get(accelerator.name) or PROCESSORS.get(family_of(accelerator) or "")


def ceiling_of(accelerator: DeviceSpec, *, dtype: str) -> tuple[float, bool]:
    """Give the share of the peak that large products reach, and whether it was measured on this chip.

    16-bit formats share one figure, measured in bfloat16.
    """
    row = _PEAK_TFLOPS.get(family_of(accelerator) or "")
    pair = row[1] if row and dtype == "float8" else row[0] if row and dtype in ("bfloat16", "float16") else None
    if pair is None:
        return DEFAULT_CEILING_RATIO, False
    measured, peak = pair
    return measured / peak, True


def estimate_matmul(
    *, m: int, n: int, k: int, accelerator: DeviceSpec, dtype: str = "bfloat16", batch: int = 1
) -> MatmulTime:
    """Give the time of ``batch`` products of m x k by k x n.

    Raises:
        KeyError: The catalogue has no peak of this accelerator in this format.
    """
    peak = accelerator.peak_flops_per_s[dtype]
    ceiling, _ = ceiling_of(accelerator, dtype=dtype)
    flops = 2.0 * m * n * k * batch
    compute_s = flops / (peak * ceiling * quantisation_ratio(m=m, n=n, accelerator=accelerator, batch=batch))
    moved_bytes = batch * (m * k + k * n + m * n) * _WIDTHS[dtype]
    memory_s = moved_bytes / (accelerator.memory_bytes_per_s * MEMORY_RATIO)
    time_s = max(compute_s, memory_s) + LAUNCH_S
    bound = "launch" if max(compute_s, memory_s) < LAUNCH_S else "compute" if compute_s >= memory_s else "memory"
    return MatmulTime(time_s=time_s, flops=flops, ratio=flops / (time_s * peak), bound=bound)


MEMORY_RATIO = 0.85
"""Share of the memory's nominal bandwidth that a long stream reaches. Assumed, not published."""

_WIDTHS = MappingProxyType(
    {"float32": 4, "tfloat32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "float4": 0.5, "float64": 8}
)


def quantisation_ratio(*, m: int, n: int, accelerator: DeviceSpec, batch: int = 1) -> float:
    """Give the share of the ceiling that whole tiles and whole waves leave, with the best tile for the shape.

    1.0 on a chip whose number of processors is unknown.
    """
    processors = processors_of(accelerator)
    if processors is None:
        return 1.0
    return max(
        ratio * _filled(m=m, n=n, tile=tile, processors=processors, batch=batch)
        for tile, ratio in zip(_TILES, _TILE_RATIOS, strict=True)
    )


def _filled(*, m: int, n: int, tile: tuple[int, int], processors: int, batch: int) -> float:
    tiles = math.ceil(m / tile[0]) * math.ceil(n / tile[1]) * batch
    waves = math.ceil(tiles / processors)
    return m * n * batch / (waves * processors * tile[0] * tile[1])
