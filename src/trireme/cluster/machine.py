"""A cluster: equal nodes, the links inside and between them, and what an hour of it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trireme.cluster.catalog import DeviceSpec
from trireme.cluster.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One ring of the onion: the largest set of ranks that a link joins.

    Attributes:
        name: ``socket``, ``node``, ``rack``, ``pod`` or ``cluster``.
        ranks: Ranks in one such set; neighbours in rank order.
        link: What joins the sets one tier further in; its bandwidth is one rank's share while all ranks talk.
    """

    name: str
    ranks: int
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of one accelerator.

    Attributes:
        name: As written or given in its file.
        accelerator: What computes.
        ranks_per_node: Ranks that share a host.
        num_nodes: Hosts.
        intra: Link inside a node (inside a rack where ``domain_nodes`` is more than 1).
        inter: Link between nodes; ``bytes_per_s`` is that of one network card.
        cards_per_node: Network cards that a node's ranks share.
        socket_ranks: Ranks below one host bridge, where those of another are reached through ``socket_link``.
        socket_link: That link, shared by the ranks of a socket.
        domain_nodes: Nodes whose ranks the inner link joins; 1 but for racks such as NVL72.
        pod_nodes: Nodes that reach each other at full speed; None if all do, or none.
        oversubscription: How many times less bandwidth there is above a pod (above a node without pods).
        host_memory_bytes: Memory of a host, None if unknown.
        price_per_rank_hour: In any currency, None if unknown.
        power_w_per_rank: Drawn by a rank and its share of everything, None if unknown.
    """

    name: str
    accelerator: DeviceSpec
    ranks_per_node: int
    num_nodes: int
    intra: Link
    inter: Link
    cards_per_node: float
    socket_ranks: int | None = None
    socket_link: Link | None = None
    domain_nodes: int = 1
    pod_nodes: int | None = None
    oversubscription: float = 1.0
    host_memory_bytes: int | None = None
    price_per_rank_hour: float | None = None
    power_w_per_rank: float | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.ranks_per_node * self.num_nodes

    @property
    def network_bytes_per_s(self) -> float:
        """One rank's nominal share of its node's network cards, in one direction."""
        return self.inter.bytes_per_s * self.cards_per_node / self.ranks_per_node

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Give the tiers from the inside out; tiers that would hold nothing more are left out."""
        inside = self._inner_tiers()
        domain_ranks = inside[-1].ranks
        share = replace(self.inter, bytes_per_s=self.network_bytes_per_s)
        thin = replace(share, bytes_per_s=share.bytes_per_s / self.oversubscription)
        pod_ranks = (self.pod_nodes or 0) * self.ranks_per_node
        if domain_ranks < pod_ranks < self.num_ranks:
            inside.append(Tier(name="pod", ranks=pod_ranks, link=share))
        elif pod_ranks >= self.num_ranks:
            thin = share
        if inside[-1].ranks < self.num_ranks:
            inside.append(Tier(name="cluster", ranks=self.num_ranks, link=thin))
        return tuple(inside)

    def _inner_tiers(self) -> list[Tier]:
        node_ranks = self.ranks_per_node
        if self.domain_nodes > 1:
            return [Tier(name="rack", ranks=min(node_ranks * self.domain_nodes, self.num_ranks), link=self.intra)]
        if self.socket_ranks is None or self.socket_link is None or self.socket_ranks >= node_ranks:
            return [Tier(name="node", ranks=node_ranks, link=self.intra)]
        shared = replace(self.socket_link, bytes_per_s=self.socket_link.bytes_per_s / self.socket_ranks)
        return [
            Tier(name="socket", ranks=self.socket_ranks, link=self.intra),
            Tier(name="node", ranks=node_ranks, link=shared),
        ]
