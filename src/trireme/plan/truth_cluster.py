"""The machine of a published run, from how its source writes accelerator and network."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from trireme.cluster import LINKS, NODES, Cluster, DeviceSpec, build_cluster, near_devices
from trireme.plan.truth_row import Unreadable

_GPUS: tuple[tuple[str, str], ...] = (
    (r"gb300", "gb300"),
    (r"gb200", "gb200"),
    (r"b300", "b300"),
    (r"b200", "b200"),
    (r"h200", "h200"),
    (r"h800", "h800"),
    (r"h20\b", "h20"),
    (r"h100.*pcie", "h100-pcie"),
    (r"h100", "h100"),
    (r"a800", "a800-80gb"),
    (r"a100.*40\s*g.*pcie|a100.*pcie.*40\s*g", "a100-40gb-pcie"),
    (r"a100.*pcie", "a100-80gb-pcie"),
    (r"a100.*40\s*g", "a100-40gb"),
    (r"a100", "a100-80gb"),
    (r"v100.*32\s*g", "v100-32gb"),
    (r"v100", "v100-16gb"),
    (r"mi300x", "mi300x"),
    (r"l40s", "l40s"),
    (r"4090", "4090"),
    (r"910b|atlas 900 a2", "910b"),
)


@lru_cache(maxsize=1024)
def cluster_of(gpu: str, interconnect: str, num_ranks: int) -> Cluster:
    """Give the cluster of so many ranks; nodes are as they are sold unless the network is described.

    Raises:
        Unreadable: Nobody knows the accelerator; the text names the nearest.
    """
    node = NODES[_node_key(gpu)]
    ranks = _ranks_per_node(num_ranks, full=_stated_ranks(interconnect) or node.ranks)
    cluster = build_cluster(node, ranks_per_node=ranks, num_nodes=num_ranks // ranks)
    cluster = replace(cluster, accelerator=_stated_device(gpu, cluster.accelerator))
    gbit = _node_gbit_per_s(interconnect, ranks_per_node=node.ranks)
    if gbit is not None:
        link = LINKS[_network(interconnect)]
        share = ranks / node.ranks
        cluster = replace(cluster, inter=link, cards_per_node=share * gbit * 1e9 / 8 / link.bytes_per_s)
    return cluster


def _node_key(gpu: str) -> str:
    said = gpu.lower()
    for pattern, key in _GPUS:
        if re.search(pattern, said):
            return key
    near = ", ".join(near_devices(gpu)) or "A100, H100, B200"
    raise Unreadable(f"unknown gpu {gpu!r} (near: {near})" if said else "gpu is not given")


def _ranks_per_node(num_ranks: int, *, full: int) -> int:
    """The most ranks of a full node into which all of them come out even."""
    return next(ranks for ranks in range(min(full, num_ranks), 0, -1) if num_ranks % ranks == 0)


def _stated_ranks(text: str) -> int | None:
    found = re.search(r"(\d+)-GPU nodes", text)
    return int(found[1]) if found else None


def _stated_device(gpu: str, device: DeviceSpec) -> DeviceSpec:
    """Take memory, bandwidth and a power limit from the name where it says others than the sheet."""
    memory = re.search(r"(\d+)\s*GB", gpu)
    rate = re.search(r"([\d.]+)\s*TB/s", gpu)
    if memory and "NVL" not in gpu:
        device = replace(device, memory_bytes=int(memory[1]) * 1024**3)
    if rate:
        device = replace(device, memory_bytes_per_s=float(rate[1]) * 1e12)
    return device


def _node_gbit_per_s(text: str, *, ranks_per_node: int) -> float | None:
    """Network of a node in Gbit/s as written, None where it isn't."""
    many = re.search(r"(\d+)\s*x\s*(\d+)\s*(Gb/s|GB/s)", text)
    if many:
        return int(many[1]) * int(many[2]) * (8.0 if many[3] == "GB/s" else 1.0)
    links = re.search(r"(\d+) Omni-Path links", text)
    if links:
        return 100.0 * int(links[1])
    one = re.search(r"(\d+)\s*Gb/s", text)
    if one is None:
        return None
    is_per_rank = "per GPU" in text or "per accelerator" in text
    return float(one[1]) * (ranks_per_node if is_per_rank else 1)


def _network(text: str) -> str:
    if "Ethernet" in text:
        return "eth-25"
    if "Omni-Path" in text:
        return "opa-100"
    if "EFA" in text:
        return "efa-v1"
    return "roce-200" if "RoCE" in text and "IB" not in text else "ib-hdr200"
