"""A cluster in lines for people: what it is, what joins it, where the figures come from."""

from __future__ import annotations

from trireme.cluster.link import Link
from trireme.cluster.machine import Cluster, Tier
from trireme.cluster.node import NODES
from trireme.cluster.source import Source
from trireme.units import format_bytes
from trireme.words import say


def describe_cluster(cluster: Cluster) -> tuple[str, ...]:
    """Return the lines that show a cluster, in the user's language."""
    lines = [_size_line(cluster), _accelerator_line(cluster)]
    lines += [
        _tier_line(tier, peers=tier.ranks if place == 0 else 2)
        for place, tier in enumerate(cluster.tiers)
        if tier.ranks > 1
    ]
    if cluster.oversubscription > 1:
        pods = cluster.pod_nodes or 1
        lines.append(say("cluster.oversubscribed", factor=f"{cluster.oversubscription:g}", nodes=pods))
    if cluster.host_memory_bytes is not None:
        lines.append(say("cluster.host_memory", size=format_bytes(cluster.host_memory_bytes)))
    if cluster.price_per_rank_hour is not None:
        total = cluster.price_per_rank_hour * cluster.num_ranks
        lines.append(say("cluster.price", each=f"{cluster.price_per_rank_hour:g}", total=f"{total:,.2f}"))
    if cluster.power_w_per_rank is not None:
        total_kw = cluster.power_w_per_rank * cluster.num_ranks / 1e3
        lines.append(say("cluster.power", each=f"{cluster.power_w_per_rank:g}", total=f"{total_kw:,.1f}"))
    return (*lines, *_assumed(cluster), *_doubts(cluster))


def describe_sources(cluster: Cluster) -> tuple[str, ...]:
    """Return one line for each figure's source, in the user's language."""
    accelerator = cluster.accelerator
    named = [(accelerator.name, accelerator.source, accelerator.date)]
    links = {tier.link.name: tier.link for tier in cluster.tiers}
    for link in links.values():
        named += [(link.name, source.where, source.date) for source in _sources_of(link)]
    return tuple(say("cluster.source", what=what, where=where, date=date) for what, where, date in dict.fromkeys(named))


def _size_line(cluster: Cluster) -> str:
    return say(
        "cluster.size",
        name=cluster.name,
        ranks=cluster.num_ranks,
        nodes=cluster.num_nodes,
        per_node=cluster.ranks_per_node,
    )


def _accelerator_line(cluster: Cluster) -> str:
    accelerator = cluster.accelerator
    dtype = next((d for d in ("bfloat16", "float16", "float32") if d in accelerator.peak_flops_per_s), "")
    peak = accelerator.peak_flops_per_s[dtype] / 1e12 if dtype else 0.0
    return say(
        "cluster.accelerator",
        name=accelerator.name,
        peak=f"{peak:.4g}",
        dtype=dtype,
        memory=format_bytes(accelerator.memory_bytes),
        rate=f"{accelerator.memory_bytes_per_s / 1e9:,.0f}",
    )


def _tier_line(tier: Tier, *, peers: int) -> str:
    reached = tier.link.reached_bytes_per_s(ranks=peers)
    return say(
        f"cluster.tier_{tier.name}",
        ranks=tier.ranks,
        link=tier.link.name,
        nominal=f"{tier.link.bytes_per_s / 1e9:.4g}",
        reached=f"{reached / 1e9:.4g}",
        latency=f"{tier.link.latency_s * 1e6:.3g}",
    )


def _assumed(cluster: Cluster) -> list[str]:
    """Name the network where nobody gave one and the kind of node comes with many."""
    node = next((node for node in NODES.values() if node.accelerator == cluster.accelerator), None)
    if cluster.num_nodes == 1 or node is None or node.source.confidence != "low" or cluster.inter.name != node.inter:
        return []
    return [say("cluster.assumed_network", cards=f"{cluster.cards_per_node:g}", link=cluster.inter.name)]


def _doubts(cluster: Cluster) -> list[str]:
    """Name what no good source gives, so that nobody takes it for measured."""
    doubtful = [cluster.accelerator.name] if cluster.accelerator.confidence == "low" else []
    links = {tier.link.name: tier.link for tier in cluster.tiers if tier.ranks > 1}
    doubtful += [name for name, link in links.items() if any(s.confidence == "low" for s in _sources_of(link))]
    return [say("cluster.doubtful", names=", ".join(doubtful))] if doubtful else []


def _sources_of(link: Link) -> tuple[Source, ...]:
    reduction = (link.reduction.source,) if link.reduction is not None else ()
    return (link.source, link.ratio_source, *reduction)
