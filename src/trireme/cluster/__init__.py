"""What a machine offers: accelerators, links, nodes and clusters, each figure with its source; times of collectives."""

from trireme.cluster.catalog import CATALOG, DeviceSpec
from trireme.cluster.collective import (
    ALL_ALGORITHMS,
    LIBRARY_ALGORITHMS,
    CollectiveTime,
    bus_bytes_per_s,
    estimate_all_gather,
    estimate_all_reduce,
    estimate_all_to_all,
    estimate_broadcast,
    estimate_p2p,
    estimate_reduce_scatter,
)
from trireme.cluster.describe import describe_cluster, describe_sources
from trireme.cluster.document import load_cluster, parse_cluster_file
from trireme.cluster.document_write import format_cluster_file
from trireme.cluster.efficiency import MatmulTime, ceiling_of, estimate_matmul, quantisation_ratio
from trireme.cluster.link import LINKS, NETWORKS, Link, SwitchReduction, plain_link
from trireme.cluster.lookup import find_device, near_devices
from trireme.cluster.machine import Cluster, Tier
from trireme.cluster.node import NODES, Node
from trireme.cluster.parse import build_cluster, format_cluster, parse_cluster
from trireme.cluster.protocol import Protocol
from trireme.cluster.source import Source
from trireme.cluster.topology import Level, Span, axis_span, span_of, widest_span

__all__ = [
    "ALL_ALGORITHMS",
    "CATALOG",
    "LIBRARY_ALGORITHMS",
    "LINKS",
    "NETWORKS",
    "NODES",
    "Cluster",
    "CollectiveTime",
    "DeviceSpec",
    "Level",
    "Link",
    "MatmulTime",
    "Node",
    "Protocol",
    "Source",
    "Span",
    "SwitchReduction",
    "Tier",
    "axis_span",
    "build_cluster",
    "bus_bytes_per_s",
    "ceiling_of",
    "describe_cluster",
    "describe_sources",
    "estimate_all_gather",
    "estimate_all_reduce",
    "estimate_all_to_all",
    "estimate_broadcast",
    "estimate_matmul",
    "estimate_p2p",
    "estimate_reduce_scatter",
    "find_device",
    "format_cluster",
    "format_cluster_file",
    "load_cluster",
    "near_devices",
    "parse_cluster",
    "parse_cluster_file",
    "plain_link",
    "quantisation_ratio",
    "span_of",
    "widest_span",
]
