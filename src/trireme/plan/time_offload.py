"""What it costs that activations wait in host memory: copies beside the compute, and what of them shows."""

from __future__ import annotations

from typing import NamedTuple

from trireme.plan.time_layer import LayerSeconds

HOST_LINK_BYTES_PER_S = 20e9
"""What a rank reaches to host memory while its neighbours do the same, in each direction at once.

Source: PCIe 4.0 x16 (31 GB/s) at the 0.77 that a host bridge passes on, shared with the network card.
"""


class Stall(NamedTuple):
    """Seconds that a layer's compute waits for its copies: out in its forward, back in before its backward."""

    forward_s: float
    backward_s: float


def offload_stall(kept_bytes: float, seconds: LayerSeconds) -> Stall:
    """Give what shows of moving ``kept_bytes`` out and in again.

    Copies run on engines of their own: a layer's leave while the next computes and come back while the one behind it is
    differentiated, so that of equal layers each hides a copy behind its own time and waits for what is longer.
    """
    moved_s = kept_bytes / HOST_LINK_BYTES_PER_S
    return Stall(max(0.0, moved_s - seconds.forward_s), max(0.0, moved_s - seconds.backward_s))
