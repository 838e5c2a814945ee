"""``h100:8x16,inter=ib-ndr400``: a cluster in a few letters, and back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trireme.cluster.link import LINKS, NETWORKS, Link
from trireme.cluster.machine import Cluster
from trireme.cluster.node import ALIASES, NODES, Node
from trireme.errors import ConfigError

FORM = "h100:8x16"
_SIZE = re.compile(r"(\d+)(?:\s*[x×*]\s*(\d+))?")
_MAX_RANKS = 10_000_000
_FAMILIES = {"ib": "ib-", "roce": "roce-", "eth": "eth-", "efa": "efa-", "opa": "opa-"}


def parse_cluster(text: str) -> Cluster:
    """Return the cluster that ``gpu:ranks_per_nodexnodes`` names, with ``,key=value`` for what differs from usual.

    ``h100`` is one full node, ``4090:2`` one node with two, ``a100-80gb:8x128,ib=hdr200,cards=4,oversub=2`` says
    more. Keys: ``inter`` (or ``ib= roce= eth= efa= opa=``), ``intra``, ``cards``, ``oversub``, ``pod``, ``rack``,
    ``price``, ``power``.

    Raises:
        ConfigError: An accelerator, key or link nobody knows (with the nearest), no ranks, a wrong form.
    """
    head, *options = [part.strip() for part in text.strip().split(",")]
    name, _, size = head.partition(":")
    node = find_node(name.strip(), text=text)
    ranks, nodes = _sizes(size.strip(), node=node, has_size=":" in head, text=text)
    cluster = build_cluster(node, ranks_per_node=ranks, num_nodes=nodes)
    seen: set[str] = set()
    for option in options:
        cluster = _with_option(cluster, option, node=node, seen=seen, text=text)
    return replace(cluster, name=_canonical(cluster, node=node))


def format_cluster(cluster: Cluster) -> str:
    """Return the short form of a cluster, which parses back to an equal one.

    Raises:
        ConfigError: It holds figures of its own, so only a file can say it.
    """
    for node in NODES.values():
        if node.accelerator == cluster.accelerator:
            text = _canonical(cluster, node=node)
            if replace(parse_cluster(text), name=cluster.name) == cluster:
                return text
    raise ConfigError("cluster.no_short_form", name=cluster.name)


def build_cluster(node: Node, *, ranks_per_node: int, num_nodes: int) -> Cluster:
    """Return a cluster of one kind of node with what it usually has; part of a node has its part of the cards."""
    domain = node.domain_ranks or 0
    has_sockets = node.socket_ranks is not None and node.socket_ranks < ranks_per_node
    return Cluster(
        name=node.key,
        accelerator=node.accelerator,
        ranks_per_node=ranks_per_node,
        num_nodes=num_nodes,
        intra=LINKS[node.intra],
        inter=LINKS[node.inter],
        cards_per_node=max(1, round(node.cards * ranks_per_node / node.ranks)) if node.cards > 1 else node.cards,
        socket_ranks=node.socket_ranks if has_sockets else None,
        socket_link=LINKS["sockets"] if has_sockets else None,
        domain_nodes=max(1, domain // ranks_per_node),
    )


def find_node(name: str, *, text: str | None = None) -> Node:
    """Return the node of an accelerator's short name.

    Raises:
        ConfigError: Nobody knows it; the message gives the nearest names.
    """
    key = re.sub(r"[\s_]+", "-", name.lower())
    key = ALIASES.get(key, key)
    if key in NODES:
        return NODES[key]
    fuller = [known for known in NODES if known.startswith(f"{key}-")] if key else []
    if fuller:
        raise ConfigError("cluster.which_accelerator", name=name, names=" | ".join(fuller))
    if not key:
        raise ConfigError("cluster.wrong_form", text=text or name, form=FORM)
    raise ConfigError(
        "cluster.unknown_accelerator", name=name, near=" | ".join(near_names(key, known=(*NODES, *ALIASES)))
    )


def find_link(name: str, *, place: str, networks_only: bool = False) -> Link:
    """Return a link by name.

    Raises:
        ConfigError: Nobody knows it; the message gives the nearest names.
    """
    known = NETWORKS if networks_only else tuple(LINKS)
    if name in known:
        return LINKS[name]
    raise ConfigError("cluster.unknown_link", place=place, name=name, near=" | ".join(near_names(name, known=known)))


def near_names(name: str, *, known: tuple[str, ...], limit: int = 4) -> list[str]:
    """Return the known names most like one that isn't, nearest first."""

    def likeness(other: str) -> float:
        score = difflib.SequenceMatcher(None, name.lower(), other).ratio()
        return score + 0.3 * (name.lower() in other or other in name.lower())

    return sorted(known, key=lambda other: (-likeness(other), other))[:limit]


def with_intra(link: Link) -> dict[str, Any]:
    """Return the fields that another link inside a node changes: only PCIe stops at a socket."""
    return (
        {"intra": link} if link.name.startswith("pcie") else {"intra": link, "socket_ranks": None, "socket_link": None}
    )


def _sizes(size: str, *, node: Node, has_size: bool, text: str) -> tuple[int, int]:
    if not has_size:
        return node.ranks, 1
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ConfigError("cluster.wrong_form", text=text, form=FORM)
    ranks, nodes = int(match[1]), int(match[2] or 1)
    check_sizes(ranks, nodes, place=text)
    return ranks, nodes


def check_sizes(ranks: int, nodes: int, *, place: str) -> None:
    """Raise ConfigError unless a cluster has at least one rank, and no more than anyone could number."""
    if ranks < 1 or nodes < 1:
        raise ConfigError("cluster.no_ranks", place=place, ranks=ranks, nodes=nodes)
    if ranks * nodes > _MAX_RANKS:
        raise ConfigError("cluster.too_many_ranks", place=place, ranks=ranks * nodes, limit=_MAX_RANKS)


def _with_option(cluster: Cluster, option: str, *, node: Node, seen: set[str], text: str) -> Cluster:
    key, has_value, value = (part.strip() for part in option.partition("="))
    key, value = ("inter", _FAMILIES[key] + value.lower()) if key in _FAMILIES else (key, value)
    if not has_value or not value:
        raise ConfigError("cluster.option_form", text=text, option=option)
    if key in seen:
        raise ConfigError("cluster.option_twice", text=text, key=key)
    seen.add(key)
    if key not in _OPTIONS:
        near = near_names(key, known=(*_OPTIONS, *_FAMILIES), limit=1)[0]
        raise ConfigError("cluster.unknown_option", text=text, key=key, near=near, keys=" ".join(_OPTIONS))
    changed = _OPTIONS[key](value, text=text)
    if key == "inter" and "cards" not in seen and LINKS[value.lower()].name.startswith("eth-"):
        changed["cards_per_node"] = 1  # plain Ethernet comes one to a node unless said otherwise
    return replace(cluster, **changed)


def _inter_option(value: str, *, text: str) -> dict[str, Any]:
    return {"inter": find_link(value.lower(), place=text, networks_only=True)}


def _intra_option(value: str, *, text: str) -> dict[str, Any]:
    return with_intra(find_link(value.lower(), place=text))


def _number_option(
    field: str, *, least: float, kind: Callable[[str], float], above: bool = False
) -> Callable[..., dict[str, Any]]:
    def read(value: str, *, text: str) -> dict[str, Any]:
        try:
            number = kind(value)
        except ValueError:
            number = float("nan")
        if not (number > least if above else number >= least) or number == float("inf"):
            rule = "cluster.option_above" if above else "cluster.option_number"
            raise ConfigError(rule, text=text, value=value, key=field, least=f"{least:g}")
        return {field: number}

    return read


_OPTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "inter": _inter_option,
    "intra": _intra_option,
    "cards": _number_option("cards_per_node", least=0, kind=float, above=True),
    "oversub": _number_option("oversubscription", least=1, kind=float),
    "pod": _number_option("pod_nodes", least=1, kind=int),
    "rack": _number_option("domain_nodes", least=1, kind=int),
    "price": _number_option("price_per_rank_hour", least=0, kind=float),
    "power": _number_option("power_w_per_rank", least=0, kind=float),
}


def _canonical(cluster: Cluster, *, node: Node) -> str:
    usual = build_cluster(node, ranks_per_node=cluster.ranks_per_node, num_nodes=cluster.num_nodes)
    parts = [f"{node.key}:{cluster.ranks_per_node}x{cluster.num_nodes}"]
    if cluster.inter != usual.inter:
        parts.append(f"inter={cluster.inter.name}")
    if cluster.intra != usual.intra:
        parts.append(f"intra={cluster.intra.name}")
    is_ethernet = cluster.inter != usual.inter and cluster.inter.name.startswith("eth-")
    if cluster.cards_per_node != (1 if is_ethernet else usual.cards_per_node):
        parts.append(f"cards={_short(cluster.cards_per_node)}")
    for key, field in (("rack", "domain_nodes"), ("pod", "pod_nodes"), ("oversub", "oversubscription")):
        if getattr(cluster, field) != getattr(usual, field):
            parts.append(f"{key}={_short(getattr(cluster, field))}")
    for key, field in (("price", "price_per_rank_hour"), ("power", "power_w_per_rank")):
        if getattr(cluster, field) is not None:
            parts.append(f"{key}={_short(getattr(cluster, field))}")
    return ",".join(parts)


def _short(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
