"""How a communication library sends a message over a link: what a step costs, and how much of the link it fills.

Small messages go by a protocol with cheap steps that fills little of the link, large ones by one with dear
steps that fills it all; which is the fastest depends on the size, so every one is tried. That gives the
efficiency by message size without a fitted curve.
"""

from __future__ import annotations

from dataclasses import dataclass

from trireme.cluster.source import NCCL_TUNING, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One way to send.

    Attributes:
        name: What the library calls it.
        launch_s: From the call to the first byte.
        ring_step_s: One hop of a ring.
        tree_step_s: One hop of a tree.
        ring_ratio: Share of the link's achievable bandwidth in a ring.
        tree_ratio: The same in a tree.
        cap_bytes_per_s: Most that it carries over a link however fast, None without a limit.
        source: Where the figures come from.
    """

    name: str
    launch_s: float
    ring_step_s: float
    tree_step_s: float
    ring_ratio: float = 1.0
    tree_ratio: float = 1.0
    cap_bytes_per_s: float | None = None
    source: Source = NCCL_TUNING


_US = 1e-6

NVLINK_PROTOCOLS = (
    Protocol(
        name="ll",
        launch_s=6.6 * _US,
        ring_step_s=0.6 * _US,
        tree_step_s=0.6 * _US,
        ring_ratio=0.375,
        tree_ratio=0.92 / 3.8,
    ),
    Protocol(
        name="ll128",
        launch_s=14 * _US,
        ring_step_s=1.9 * _US,
        tree_step_s=1.25 * _US,
        ring_ratio=0.92,
        tree_ratio=0.92 * 7 / 9,
    ),
    Protocol(name="simple", launch_s=8.4 * _US, ring_step_s=3.4 * _US, tree_step_s=4 * _US, tree_ratio=0.92),
)
"""NVLink; ``ll`` reaches 88 of 235 GB/s on A100 and 141 of 368 on H100, hence its share."""

PCIE_PROTOCOLS = (
    Protocol(
        name="ll",
        launch_s=6.6 * _US,
        ring_step_s=1.0 * _US,
        tree_step_s=1.0 * _US,
        ring_ratio=0.5,
        tree_ratio=0.92 / 3.8,
    ),
    Protocol(name="simple", launch_s=8.4 * _US, ring_step_s=5.7 * _US, tree_step_s=4 * _US, tree_ratio=0.92),
)
"""PCIe and other buses without NVLink's ordering, on which ``ll128`` is not safe."""

RDMA_PROTOCOLS = (
    Protocol(
        name="ll",
        launch_s=6.6 * _US,
        ring_step_s=2.7 * _US,
        tree_step_s=5 * _US,
        ring_ratio=0.5,
        tree_ratio=0.92 / 3.8,
        cap_bytes_per_s=20.4e9,
    ),
    Protocol(
        name="ll128",
        launch_s=14 * _US,
        ring_step_s=4 * _US,
        tree_step_s=8.5 * _US,
        ring_ratio=0.92,
        tree_ratio=0.92 * 120 / 128,
    ),
    Protocol(name="simple", launch_s=8.4 * _US, ring_step_s=14 * _US, tree_step_s=14 * _US, tree_ratio=0.92),
)
"""Networks with remote memory access: InfiniBand, RoCE, EFA, Omni-Path."""

_TCP = Source(where="https://github.com/NVIDIA/nccl-tests/issues/82 (8-byte broadcast over TCP: 38 to 46 us)")
_TCP_STEP_S = 33 * _US

TCP_PROTOCOLS = (
    Protocol(
        name="simple",
        launch_s=8.4 * _US,
        ring_step_s=_TCP_STEP_S,
        tree_step_s=_TCP_STEP_S,
        tree_ratio=0.92,
        source=_TCP,
    ),
)
"""Plain Ethernet through the kernel's sockets."""


def plain_protocol(*, latency_s: float, source: Source) -> tuple[Protocol, ...]:
    """Return the one protocol of a link known only by a latency and a bandwidth (alpha and beta)."""
    return (Protocol(name="simple", launch_s=0.0, ring_step_s=latency_s, tree_step_s=latency_s, source=source),)
