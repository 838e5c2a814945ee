"""Nodes as they are sold: which accelerators, how many, joined by what, with which network cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trireme.cluster.catalog import CATALOG, DeviceSpec
from trireme.cluster.source import NETWORK_SURVEY, Source

_GIB = 1024**3
_BY_NAME = {row.name: row for row in CATALOG}

CPU = DeviceSpec(
    name="CPU",
    words=frozenset({"cpu"}),
    peak_flops_per_s=MappingProxyType({"float32": 5e10, "bfloat16": 1.5e11}),
    memory_bytes=4 * _GIB,
    memory_bytes_per_s=2e10,
    link_bytes_per_s=None,
    source="measured with torch on one busy core of an AMD EPYC",
    confidence="low",
)
"""One core of a server, for trying layouts out; measure your own for anything more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One kind of node.

    Attributes:
        key: The name to write in ``--cluster``.
        accelerator: Its row of the catalogue.
        ranks: Accelerators in a full node.
        intra: Name of the link inside.
        inter: Name of the network it usually has.
        cards: Network cards of a full node.
        socket_ranks: Ranks below one host bridge where those of another are reached more slowly, None elsewhere.
        domain_ranks: Ranks that the inner link joins where that is more than a node (a rack), None elsewhere.
        source: Of how many, joined by what.
    """

    key: str
    accelerator: DeviceSpec
    ranks: int
    intra: str
    inter: str
    cards: int
    socket_ranks: int | None = None
    domain_ranks: int | None = None
    source: Source


def _sheet(where: str) -> Source:
    return Source(where=where, confidence="secondary")


_DGX_A100 = _sheet("DGX A100 as in Narayanan et al. 2021, arXiv:2104.04473, section 5 (8 HDR cards)")
_DGX_H100 = NETWORK_SURVEY
_DEEPSEEK = _sheet("https://arxiv.org/abs/2505.09343 (8 cards of 400 Gbit/s)")
_USUAL = Source(where="usual configuration; no sheet fixes it", confidence="low")
_ASCEND = Source(where="https://popomen.github.io/2023/10/16/[Ascend]910B (200 Gbit/s RoCE a chip)", confidence="low")


def _node(
    key: str,
    accelerator: str,
    *,
    intra: str,
    inter: str,
    cards: int,
    source: Source,
    ranks: int = 8,
    socket_ranks: int | None = None,
    domain_ranks: int | None = None,
) -> Node:
    return Node(
        key=key,
        accelerator=_BY_NAME[accelerator],
        ranks=ranks,
        intra=intra,
        inter=inter,
        cards=cards,
        socket_ranks=socket_ranks,
        domain_ranks=domain_ranks,
        source=source,
    )


_ROWS = (
    _node("v100-16gb", "V100 SXM2 16GB", intra="nvlink2", inter="ib-edr100", cards=4, source=_USUAL),
    _node("v100-32gb", "V100 SXM2 32GB", intra="nvlink2", inter="ib-edr100", cards=4, source=_USUAL),
    _node("a100-40gb", "A100 SXM4 40GB", intra="nvlink3", inter="ib-hdr200", cards=8, source=_DGX_A100),
    _node("a100-80gb", "A100 SXM4 80GB", intra="nvlink3", inter="ib-hdr200", cards=8, source=_DGX_A100),
    _node(
        "a100-40gb-pcie", "A100 PCIe 40GB", intra="pcie4", inter="ib-hdr200", cards=1, socket_ranks=4, source=_USUAL
    ),
    _node(
        "a100-80gb-pcie", "A100 PCIe 80GB", intra="pcie4", inter="ib-hdr200", cards=1, socket_ranks=4, source=_USUAL
    ),
    _node("a800-80gb", "A800 SXM4 80GB", intra="nvlink3-a800", inter="ib-hdr200", cards=8, source=_USUAL),
    _node("h100", "H100 SXM 80GB", intra="nvlink4", inter="ib-ndr400", cards=8, source=_DGX_H100),
    _node("h100-pcie", "H100 PCIe 80GB", intra="pcie5", inter="ib-ndr400", cards=1, socket_ranks=4, source=_USUAL),
    _node("h800", "H800 SXM 80GB", intra="nvlink4-h800", inter="ib-ndr400", cards=8, source=_DEEPSEEK),
    _node("h20", "H20 96GB", intra="nvlink4", inter="ib-ndr400", cards=8, source=_USUAL),
    _node("h200", "H200 SXM 141GB", intra="nvlink4", inter="ib-ndr400", cards=8, source=_DGX_H100),
    _node("b200", "B200 SXM 180GB", intra="nvlink5", inter="ib-ndr400", cards=8, source=_USUAL),
    _node("b300", "B300 SXM 288GB", intra="nvlink5", inter="ib-xdr800", cards=8, source=_USUAL),
    _node(
        "gb200", "GB200 186GB", ranks=72, intra="nvlink5-nvl72", inter="ib-ndr400", cards=72,
        domain_ranks=72, source=NETWORK_SURVEY,
    ),
    _node(
        "gb300", "GB300 288GB", ranks=72, intra="nvlink5-nvl72", inter="ib-xdr800", cards=72,
        domain_ranks=72, source=NETWORK_SURVEY,
    ),
    _node("l40s", "L40S 48GB", intra="pcie4", inter="roce-200", cards=2, socket_ranks=4, source=_USUAL),
    _node("4090", "GeForce RTX 4090", intra="pcie4", inter="eth-25", cards=1, socket_ranks=4, source=_USUAL),
    _node("mi300x", "Instinct MI300X", intra="xgmi-mi300x", inter="roce-400", cards=8, source=NETWORK_SURVEY),
    _node("910b", "Ascend 910B", intra="hccs-910b", inter="roce-200", cards=8, source=_ASCEND),
    Node(
        key="cpu", accelerator=CPU, ranks=1, intra="shared-memory", inter="eth-10", cards=1,
        source=Source(where=CPU.source, confidence="low"),
    ),
)  # fmt: skip

NODES: Mapping[str, Node] = MappingProxyType({row.key: row for row in _ROWS})
"""Every kind of node by the name to write in ``--cluster``."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "a800": "a800-80gb",
        "ascend-910b": "910b",
        "ascend910b": "910b",
        "gb200-nvl72": "gb200",
        "gb300-nvl72": "gb300",
        "h100-80gb": "h100",
        "h100-sxm": "h100",
        "h200-141gb": "h200",
        "rtx-4090": "4090",
        "rtx4090": "4090",
    }
)
"""Other spellings of the same."""
