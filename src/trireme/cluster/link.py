"""Links between ranks: what their sheets say, what they reach, and where both were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trireme.cluster.protocol import (
    NVLINK_PROTOCOLS,
    PCIE_PROTOCOLS,
    RDMA_PROTOCOLS,
    TCP_PROTOCOLS,
    Protocol,
    plain_protocol,
)
from trireme.cluster.source import NETWORK_SURVEY, Source

_GB = 1e9
_GBIT = 1e9 / 8
_US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReduction:
    """A switch that adds up what passes through it (NVLink SHARP).

    Attributes:
        launch_s: What a call costs before its bytes.
        ratio: Share of the link's nominal bandwidth that such a reduction reaches.
        source: Where it was measured.
    """

    launch_s: float
    ratio: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of link.

    Attributes:
        name: What we call it.
        bytes_per_s: Nominal bandwidth in one direction: of one rank inside a node, of one network card across nodes.
        ratio: Share of it that large messages reach.
        protocols: Ways of sending; each has its own cost per step.
        peer_bytes_per_s: Nominal bandwidth between two ranks where there is no switch and each pair has its own wire.
        reduction: In-switch reduction, None where the switch only forwards.
        source: Of the nominal figure.
        ratio_source: Of the share reached.
    """

    name: str
    bytes_per_s: float
    ratio: float
    protocols: tuple[Protocol, ...]
    peer_bytes_per_s: float | None = None
    reduction: SwitchReduction | None = None
    source: Source
    ratio_source: Source

    def __hash__(self) -> int:
        # Caches of times look links up by the hundred thousand; equality still compares everything.
        return hash((self.name, self.bytes_per_s, self.ratio))

    @property
    def latency_s(self) -> float:
        """Time of the cheapest step: what a few bytes to the neighbour cost once a collective runs."""
        return min(protocol.ring_step_s for protocol in self.protocols)

    def reached_bytes_per_s(self, *, ranks: int) -> float:
        """Give what a rank reaches in one direction when it talks to ``ranks - 1`` others over this link."""
        nominal = self.bytes_per_s
        if self.peer_bytes_per_s is not None:
            nominal = min(nominal, self.peer_bytes_per_s * max(1, ranks - 1))
        return nominal * self.ratio


def plain_link(*, name: str, bytes_per_s: float, latency_s: float, source: Source, ratio: float = 1.0) -> Link:
    """Return a link known only by its latency and bandwidth, as a measurement or a textbook gives it."""
    protocols = plain_protocol(latency_s=latency_s, source=source)
    return Link(
        name=name, bytes_per_s=bytes_per_s, ratio=ratio, protocols=protocols, source=source, ratio_source=source
    )


def _said(where: str, *, low: bool = False) -> Source:
    return Source(where=where, confidence="low" if low else "secondary")


_H200_SWEEP = Source(
    where="https://github.com/stas00/ml-engineering/blob/c53741b/network/benchmarks/results/all-reduce-8xH200.md",
)
_B200_BUS = _said("https://github.com/NVIDIA/nccl/issues/1807 (8 B200: 830 GB/s)")
_NVL72_BUS = _said("https://github.com/coreweave/nccl-tests/pull/43 (72 GB200: 835 GB/s)")
_DEFAULT_RATIO = NETWORK_SURVEY  # "expect about 80 %" of the advertised speed

_NVLS_LAUNCH_S = 70 * _US  # what the H200 sweep leaves between 8 and 128 MiB once its slope is taken off


def _nvlink(
    name: str,
    *,
    gb_per_s: float,
    ratio: float,
    ratio_source: Source,
    reduction: SwitchReduction | None = None,
    peer: float | None = None,
    source: Source = NETWORK_SURVEY,
) -> Link:
    return Link(
        name=name,
        bytes_per_s=gb_per_s * _GB,
        ratio=ratio,
        protocols=NVLINK_PROTOCOLS,
        peer_bytes_per_s=None if peer is None else peer * _GB,
        reduction=reduction,
        source=source,
        ratio_source=ratio_source,
    )


def _bus(
    name: str,
    *,
    gb_per_s: float,
    ratio: float,
    source: Source,
    ratio_source: Source,
    peer: float | None = None,
) -> Link:
    return Link(
        name=name,
        bytes_per_s=gb_per_s * _GB,
        ratio=ratio,
        protocols=PCIE_PROTOCOLS,
        peer_bytes_per_s=None if peer is None else peer * _GB,
        source=source,
        ratio_source=ratio_source,
    )


def _network(
    name: str,
    *,
    gbit_per_s: float,
    ratio: float,
    ratio_source: Source,
    source: Source = NETWORK_SURVEY,
    protocols: tuple[Protocol, ...] = RDMA_PROTOCOLS,
) -> Link:
    return Link(
        name=name,
        bytes_per_s=gbit_per_s * _GBIT,
        ratio=ratio,
        protocols=protocols,
        source=source,
        ratio_source=ratio_source,
    )


_NVLINKS = (
    _nvlink("nvlink2", gb_per_s=150, ratio=0.8, ratio_source=_DEFAULT_RATIO, peer=50),
    _nvlink("nvlink3", gb_per_s=300, ratio=0.783, ratio_source=NETWORK_SURVEY),
    _nvlink(
        "nvlink3-a800",
        gb_per_s=200,
        ratio=0.783,
        source=_said("https://hmc-tech.com/gpu/nvidia-a800-vs-nvidia-t40"),
        ratio_source=NETWORK_SURVEY,
    ),
    _nvlink(
        "nvlink4",
        gb_per_s=450,
        ratio=0.818,
        ratio_source=_H200_SWEEP,
        reduction=SwitchReduction(launch_s=_NVLS_LAUNCH_S, ratio=0.69, source=_H200_SWEEP),
    ),
    _nvlink(
        "nvlink4-h800",
        gb_per_s=200,
        ratio=0.818,
        source=_said("https://arxiv.org/abs/2505.09343 (400 GB/s in both directions)"),
        ratio_source=_H200_SWEEP,
        reduction=SwitchReduction(launch_s=_NVLS_LAUNCH_S, ratio=0.69, source=_H200_SWEEP),
    ),
    _nvlink(
        "nvlink5",
        gb_per_s=900,
        ratio=0.8,
        ratio_source=_said("https://github.com/NVIDIA/nccl/issues/1807 (the library counts 40 of 50 GB/s a link)"),
        reduction=SwitchReduction(launch_s=_NVLS_LAUNCH_S, ratio=0.593, source=_B200_BUS),
    ),
    _nvlink(
        "nvlink5-nvl72",
        gb_per_s=900,
        ratio=0.8,
        ratio_source=_said("https://github.com/NVIDIA/nccl/issues/1807 (the library counts 40 of 50 GB/s a link)"),
        reduction=SwitchReduction(launch_s=_NVLS_LAUNCH_S, ratio=0.48, source=_NVL72_BUS),
    ),
)

_HOST_BRIDGE = _said("https://github.com/NVIDIA/nccl-tests/issues/307 (topology: 24 GB/s below one host bridge)")
_SOCKETS = _said("https://github.com/NVIDIA/nccl-tests/issues/307 (topology: 10 GB/s between sockets)")
_MI300X_BUS = Source(where=NETWORK_SURVEY.where + " (8 MI300X: 313 GB/s; 2 of them: 48 GB/s)")
_HCCS = _said("https://popomen.github.io/2023/10/16/[Ascend]910B (7 wires of 56 GB/s, both directions)", low=True)
_HCCS_RATIO = Source(where=NETWORK_SURVEY.where, confidence="low")
_GLOO = Source(where="measured with gloo, 2 ranks on 2 busy cores of an AMD EPYC", confidence="low")

_BUSES = (
    _bus(
        "pcie3",
        gb_per_s=15.75,
        ratio=0.75,
        source=_said("PCI Express 3.0: 16 lanes of 8 GT/s, 128 of 130 bits carry data"),
        ratio_source=_DEFAULT_RATIO,
    ),
    _bus("pcie4", gb_per_s=31, ratio=0.77, source=NETWORK_SURVEY, ratio_source=_HOST_BRIDGE),
    _bus("pcie5", gb_per_s=63, ratio=0.77, source=NETWORK_SURVEY, ratio_source=_HOST_BRIDGE),
    _bus("sockets", gb_per_s=10, ratio=1.0, source=_SOCKETS, ratio_source=_SOCKETS),
    _bus("xgmi-mi300x", gb_per_s=448, ratio=0.72, source=NETWORK_SURVEY, ratio_source=_MI300X_BUS, peer=64),
    _bus("hccs-910b", gb_per_s=196, ratio=0.8, source=_HCCS, ratio_source=_HCCS_RATIO, peer=28),
    plain_link(name="shared-memory", bytes_per_s=0.85 * _GB, latency_s=100 * _US, source=_GLOO),
)

_INFINIBAND = _said(
    "https://github.com/NVIDIA/nccl-tests issues 119, 175 and 290 (96 and 86 of 100 GB/s on 4 HDR cards, "
    "46 to 48 of 50 on an NDR card)"
)
_P4D = _said("https://github.com/NVIDIA/nccl/issues/527 (3 and 4 p4d nodes: 32 and 30 of 50 GB/s)")
_JEAN_ZAY = Source(where=NETWORK_SURVEY.where + " (135 of 400 Gbit/s at Jean Zay)")
_FAST_TCP = _said("https://github.com/NVIDIA/nccl/issues/209 (41 of 100 Gbit/s over sockets)")

_NETWORKS = (
    _network("ib-edr100", gbit_per_s=100, ratio=0.9, ratio_source=_INFINIBAND),
    _network("ib-hdr200", gbit_per_s=200, ratio=0.9, ratio_source=_INFINIBAND),
    _network("ib-ndr400", gbit_per_s=400, ratio=0.9, ratio_source=_INFINIBAND),
    _network("ib-xdr800", gbit_per_s=800, ratio=0.9, ratio_source=_INFINIBAND),
    _network("roce-100", gbit_per_s=100, ratio=0.8, ratio_source=_DEFAULT_RATIO),
    _network("roce-200", gbit_per_s=200, ratio=0.8, ratio_source=_DEFAULT_RATIO),
    _network("roce-400", gbit_per_s=400, ratio=0.8, ratio_source=_DEFAULT_RATIO),
    _network("roce-800", gbit_per_s=800, ratio=0.8, ratio_source=_DEFAULT_RATIO),
    _network("efa-v1", gbit_per_s=100, ratio=0.6, ratio_source=_P4D),
    _network("efa-v2", gbit_per_s=100, ratio=0.8, ratio_source=_DEFAULT_RATIO),
    _network("opa-100", gbit_per_s=100, ratio=0.34, ratio_source=_JEAN_ZAY),
    _network("eth-10", gbit_per_s=10, ratio=0.8, ratio_source=_DEFAULT_RATIO, protocols=TCP_PROTOCOLS),
    _network("eth-25", gbit_per_s=25, ratio=0.8, ratio_source=_DEFAULT_RATIO, protocols=TCP_PROTOCOLS),
    _network("eth-100", gbit_per_s=100, ratio=0.4, ratio_source=_FAST_TCP, protocols=TCP_PROTOCOLS),
    _network("eth-200", gbit_per_s=200, ratio=0.4, ratio_source=_FAST_TCP, protocols=TCP_PROTOCOLS),
    _network("eth-400", gbit_per_s=400, ratio=0.4, ratio_source=_FAST_TCP, protocols=TCP_PROTOCOLS),
)

LINKS: Mapping[str, Link] = MappingProxyType({link.name: link for link in (*_NVLINKS, *_BUSES, *_NETWORKS)})
"""Every link by name. A network's figure is that of one card; a node may have several."""

NETWORKS: tuple[str, ...] = tuple(link.name for link in _NETWORKS)
"""Those of them that join nodes."""
