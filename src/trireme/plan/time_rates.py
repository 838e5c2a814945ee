"""Rates: how far real kernels, links and hosts fall short of the sheet, by family of accelerator.

The figures are in ``time_table``, fitted by ``benchmarks/fit_planner.py``; nothing here depends on a single run.
"""

from __future__ import annotations

from dataclasses import dataclass

from trireme.cluster import DeviceSpec
from trireme.plan.framework import Framework
from trireme.plan.time_work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds really spent for a second of the sheet (1 is what the sheet says), and what no sheet has.

    Attributes:
        products: Matrix products in 16 or 32 bits: clocks under load, kernels that aren't the best for the shape.
        ramp: A tile's start and end, for each thousand of its inner length.
        narrow: Products in 8 or 4 bits.
        attention: Fused attention kernels that anyone installs.
        library_attention: Those of the vendor's library.
        fused_traffic: Memory traffic of elementwise work in fused kernels.
        eager_traffic: The same, kernel by kernel, in fp32 where the code says so.
        tensor: Collectives of tensor parallelism that nothing hides.
        tensor_hidden: What is left of them where the framework overlaps them with products.
        data: Collectives of data parallelism.
        data_left: What hidden collectives of data parallelism still cost: they take processors from the products.
        pipeline: Sends between stages.
        expert: All-to-all of experts.
        kernel_s: The host's time to launch a kernel, where nothing launches many at once.
        step_s: What a step costs the host besides: loading, logging, the optimizer's many small kernels.
        straggle: Lost for each doubling of nodes, for every step waits for the slowest.
    """

    products: float = 1.0
    ramp: float = 0.1
    narrow: float = 1.2
    attention: float = 1.5
    library_attention: float = 1.5
    fused_traffic: float = 1.2
    eager_traffic: float = 2.0
    tensor: float = 1.0
    tensor_hidden: float = 0.4
    data: float = 1.2
    data_left: float = 0.2
    pipeline: float = 1.0
    expert: float = 1.0
    kernel_s: float = 8e-6
    step_s: float = 0.02
    straggle: float = 0.005

    def compute_s(self, work: Work, *, is_fused: bool, framework: Framework) -> float:
        """Give the seconds of everything but collectives; no shorter than the host takes to launch it."""
        busy_s = (
            self.products * work.products_s
            + self.ramp * work.ramps_s
            + self.narrow * work.narrow_s
            + self.attention_of(framework) * work.attention_s
            + (self.fused_traffic if is_fused else self.eager_traffic) * work.traffic_s
        )
        return busy_s if framework.compiles else max(busy_s, self.kernel_s * work.kernels)

    def attention_of(self, framework: Framework) -> float:
        """Give the rate of the attention kernels that a framework runs."""
        return self.library_attention if framework.has_library_attention else self.attention

    def exchange_s(self, work: Work, *, framework: Framework) -> float:
        """Give the seconds of collectives inside a layer that nothing hides."""
        tensor = self.tensor_hidden if framework.overlaps_tensor else self.tensor
        expert = self.tensor_hidden * self.expert if framework.overlaps_experts else self.expert
        return tensor * work.tensor_s + self.tensor_hidden * work.context_s + expert * work.expert_s


def family_of(device: DeviceSpec) -> str:
    """Return the generation whose rates an accelerator shares."""
    words = set(device.name.upper().replace("-", " ").split())
    for family, members in _FAMILIES.items():
        if words & members:
            return family
    return "other"


_FAMILIES = {
    "volta": {"V100"},
    "ampere": {"A100", "A800"},
    "hopper": {"H100", "H800", "H200", "H20"},
    "blackwell": {"B200", "B300", "GB200", "GB300"},
}
