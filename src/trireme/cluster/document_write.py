"""Write a cluster as a YAML file that reads back to the same figures."""

from __future__ import annotations

from typing import Any

from trireme.cluster.catalog import DeviceSpec
from trireme.cluster.document import KEYS
from trireme.cluster.link import LINKS, Link
from trireme.cluster.machine import Cluster
from trireme.cluster.node import NODES


def format_cluster_file(cluster: Cluster) -> str:
    """Return the YAML text of a cluster; reading it back gives the same figures."""
    import yaml

    plain: dict[str, Any] = {
        "name": cluster.name,
        "accelerator": _plain_accelerator(cluster.accelerator),
        "ranks_per_node": cluster.ranks_per_node,
        "num_nodes": cluster.num_nodes,
        "intra": _plain_link(cluster.intra),
        "inter": _plain_link(cluster.inter),
    }
    optional = {key: getattr(cluster, key) for key in KEYS[KEYS.index("cards_per_node") :]}
    plain.update({key: _plain_number(value) for key, value in optional.items() if value is not None})
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
    return text


def _plain_number(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _plain_accelerator(accelerator: DeviceSpec) -> str | dict[str, Any]:
    for key, node in NODES.items():
        if node.accelerator == accelerator:
            return key
    return {
        "name": accelerator.name,
        "peak_flops_per_s": dict(accelerator.peak_flops_per_s),
        "memory_bytes": accelerator.memory_bytes,
        "memory_bytes_per_s": accelerator.memory_bytes_per_s,
        "source": accelerator.source,
        "date": accelerator.date,
    }


def _plain_link(link: Link) -> str | dict[str, Any]:
    known = LINKS.get(link.name)
    if known == link:
        return link.name
    figures = {"name": link.name, "bytes_per_s": link.bytes_per_s, "ratio": link.ratio}
    if known is None:
        figures["latency_s"] = link.latency_s
    return {**figures, "source": link.ratio_source.where, "date": link.ratio_source.date}
