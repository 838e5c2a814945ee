"""Published figures of accelerators: dense peaks, memory, links; a source and a date for every row.

Peaks are *dense*: vendors' sheets often print the sparse figure, twice as large. A figure that no
source gives is absent, never derived from a neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_TERA = 1e12
_GB = 1e9
_GIB = 1024**3

_SURVEY = "https://github.com/stas00/ml-engineering/blob/744d01e/compute/accelerator/README.md"
_TITAN = "https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan/tools/utils.py"
_AMPERE = "https://glennklockwood.com/garden/processors/A100"  # quotes the vendor's data sheet
_READ = "2026-11-30"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator as its vendor sells it.

    Attributes:
        name: What we call it.
        words: Words that the name reported by the driver must hold for this row to match.
        allowed: Words that it may hold besides (form factor, memory); any other word means another product.
        peak_flops_per_s: Dense peak by dtype: ``float32`` (without TF32), ``tfloat32``, ``float16``, ``bfloat16``,
            ``float8``, ``float4``.
        memory_bytes: Device memory as sold (GB of marketing are taken as GiB, which drivers report a little under).
        memory_bytes_per_s: Peak bandwidth of that memory.
        link_bytes_per_s: Scale-up link per direction, None where there is none or no source gives it.
        source: Address of the page the figures come from.
        date: Day it was read.
        confidence: ``primary``, ``secondary``, or ``low`` where sources disagree.
    """

    name: str
    words: frozenset[str]
    allowed: frozenset[str] = frozenset()
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float | None
    source: str
    date: str = _READ
    confidence: str = "primary"


def _peaks(**tera_flops_per_s: float) -> Mapping[str, float]:
    return MappingProxyType({dtype: value * _TERA for dtype, value in tera_flops_per_s.items()})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_A100 = _peaks(float32=19.5, tfloat32=156, float16=312, bfloat16=312)
_H100 = _peaks(tfloat32=494.5, float16=989, bfloat16=989, float8=1979)
_V100 = _peaks(float16=125)

CATALOG: tuple[DeviceSpec, ...] = (
    DeviceSpec(
        name="V100 SXM2 16GB", words=_words("v100 16gb"), allowed=_words("sxm2 sxm3"),
        peak_flops_per_s=_V100, memory_bytes=16 * _GIB, memory_bytes_per_s=900 * _GB, link_bytes_per_s=150 * _GB,
        source=_SURVEY,
    ),
    DeviceSpec(
        name="V100 SXM2 32GB", words=_words("v100 32gb"), allowed=_words("sxm2 sxm3"),
        peak_flops_per_s=_V100, memory_bytes=32 * _GIB, memory_bytes_per_s=900 * _GB, link_bytes_per_s=150 * _GB,
        source=_SURVEY,
    ),
    DeviceSpec(
        name="A100 SXM4 40GB", words=_words("a100 40gb"), allowed=_words("sxm4"),
        peak_flops_per_s=_A100, memory_bytes=40 * _GIB, memory_bytes_per_s=1555 * _GB, link_bytes_per_s=300 * _GB,
        source=_AMPERE,
    ),
    DeviceSpec(
        name="A100 PCIe 40GB", words=_words("a100 40gb pcie"),
        peak_flops_per_s=_A100, memory_bytes=40 * _GIB, memory_bytes_per_s=1555 * _GB, link_bytes_per_s=31 * _GB,
        source=_AMPERE,
    ),
    DeviceSpec(
        name="A100 SXM4 80GB", words=_words("a100 80gb"), allowed=_words("sxm4"),
        peak_flops_per_s=_A100, memory_bytes=80 * _GIB, memory_bytes_per_s=2039 * _GB, link_bytes_per_s=300 * _GB,
        source=_AMPERE,
    ),
    DeviceSpec(
        name="A100 PCIe 80GB", words=_words("a100 80gb pcie"),
        peak_flops_per_s=_A100, memory_bytes=80 * _GIB, memory_bytes_per_s=1940 * _GB, link_bytes_per_s=31 * _GB,
        source=_AMPERE,
    ),
    DeviceSpec(
        name="A800 SXM4 80GB", words=_words("a800 80gb"), allowed=_words("sxm4"),
        peak_flops_per_s=_A100, memory_bytes=80 * _GIB, memory_bytes_per_s=2039 * _GB, link_bytes_per_s=200 * _GB,
        source="https://hmc-tech.com/gpu/nvidia-a800-vs-nvidia-t40", confidence="secondary",
    ),
    DeviceSpec(
        name="H100 SXM 80GB", words=_words("h100 80gb"), allowed=_words("sxm5 hbm3"),
        peak_flops_per_s=_H100, memory_bytes=80 * _GIB, memory_bytes_per_s=3350 * _GB, link_bytes_per_s=450 * _GB,
        source=_SURVEY,
    ),
    DeviceSpec(
        name="H100 PCIe 80GB", words=_words("h100 pcie"), allowed=_words("80gb"),
        peak_flops_per_s=_peaks(tfloat32=378, float16=756, bfloat16=756, float8=1513),
        memory_bytes=80 * _GIB, memory_bytes_per_s=2000 * _GB, link_bytes_per_s=63 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="H100 NVL 94GB", words=_words("h100 nvl"), allowed=_words("94gb"),
        peak_flops_per_s=_peaks(float16=835, bfloat16=835),
        memory_bytes=94 * _GIB, memory_bytes_per_s=3900 * _GB, link_bytes_per_s=None,
        source=_TITAN + " and https://jishuzhan.net/article/1872432607539499010", confidence="secondary",
    ),
    DeviceSpec(
        name="H800 SXM 80GB", words=_words("h800"), allowed=_words("sxm5 80gb hbm3"),
        peak_flops_per_s=_peaks(tfloat32=494.5, float16=989, bfloat16=989, float8=1979),
        memory_bytes=80 * _GIB, memory_bytes_per_s=3350 * _GB, link_bytes_per_s=200 * _GB,
        source="https://arxiv.org/abs/2505.09343", confidence="secondary",
    ),
    DeviceSpec(
        name="H20 96GB", words=_words("h20"), allowed=_words("96gb hbm3 sxm5"),
        peak_flops_per_s=_peaks(float32=44, tfloat32=74, float16=148, bfloat16=148, float8=296),
        memory_bytes=96 * _GIB, memory_bytes_per_s=4000 * _GB, link_bytes_per_s=450 * _GB,
        source=_TITAN + " and https://willitrunai.com/es/gpus/h20-96gb", confidence="secondary",
    ),
    DeviceSpec(
        name="H200 SXM 141GB", words=_words("h200"), allowed=_words("sxm5 141gb hbm3e"),
        peak_flops_per_s=_H100, memory_bytes=141 * _GIB, memory_bytes_per_s=4800 * _GB, link_bytes_per_s=450 * _GB,
        source=_SURVEY,
    ),
    DeviceSpec(
        name="B200 SXM 180GB", words=_words("b200"), allowed=_words("sxm6 180gb hbm3e"),
        peak_flops_per_s=_peaks(tfloat32=1125, float16=2250, bfloat16=2250, float8=4500, float4=9000),
        memory_bytes=180 * _GIB, memory_bytes_per_s=8000 * _GB, link_bytes_per_s=900 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="B300 SXM 288GB", words=_words("b300"), allowed=_words("sxm6 288gb hbm3e ac"),
        peak_flops_per_s=_peaks(tfloat32=1125, float16=2250, bfloat16=2250, float8=4500, float4=12600),
        memory_bytes=288 * _GIB, memory_bytes_per_s=8000 * _GB, link_bytes_per_s=900 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="GB200 186GB", words=_words("gb200"), allowed=_words("186gb hbm3e"),
        peak_flops_per_s=_peaks(tfloat32=1250, float16=2500, bfloat16=2500, float8=5000, float4=10000),
        memory_bytes=186 * _GIB, memory_bytes_per_s=8000 * _GB, link_bytes_per_s=900 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="GB300 288GB", words=_words("gb300"), allowed=_words("288gb hbm3e"),
        peak_flops_per_s=_peaks(tfloat32=1250, float16=2500, bfloat16=2500, float8=5000, float4=15000),
        memory_bytes=288 * _GIB, memory_bytes_per_s=8000 * _GB, link_bytes_per_s=900 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="L40S 48GB", words=_words("l40s"), allowed=_words("48gb"),
        peak_flops_per_s=_peaks(tfloat32=183, float16=362, bfloat16=362, float8=733),
        memory_bytes=48 * _GIB, memory_bytes_per_s=864 * _GB, link_bytes_per_s=31 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="GeForce RTX 4090", words=_words("rtx 4090"), allowed=_words("24gb"),
        peak_flops_per_s=_peaks(float32=82.6, tfloat32=82.6, float16=165.2, bfloat16=165.2, float8=330.3),
        memory_bytes=24 * _GIB, memory_bytes_per_s=1008 * _GB, link_bytes_per_s=31 * _GB,
        source="https://waredb.com/processor/nvidia-geforce-rtx-4090",
        confidence="secondary",
    ),
    DeviceSpec(
        name="Instinct MI300X", words=_words("mi300x"), allowed=_words("oam 192gb"),
        peak_flops_per_s=_peaks(tfloat32=653.7, float16=1300, bfloat16=1300, float8=2600),
        memory_bytes=192 * _GIB, memory_bytes_per_s=5300 * _GB, link_bytes_per_s=64 * _GB, source=_SURVEY,
    ),
    DeviceSpec(
        name="Ascend 910B", words=_words("910b"), allowed=_words("64gb"),
        peak_flops_per_s=_peaks(float16=320, bfloat16=320),
        memory_bytes=64 * _GIB, memory_bytes_per_s=1600 * _GB, link_bytes_per_s=None,
        source="https://boardor.com/blog/huawei-ascend-910b-outperforms-h20-910c-approaches-h100", confidence="low",
    ),
)  # fmt: skip
"""Every row we can vouch for; an unknown device is unknown, its speed must be measured."""
