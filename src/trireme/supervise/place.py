"""Where this node stands in one attempt: which ranks are its, how many there are, where they meet."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Protocol

from trireme.supervise.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node's part in one attempt.

    Attributes:
        node: This node's number.
        num_nodes: How many take part.
        first_rank: Its first rank.
        world_size: Ranks of all nodes.
        address: Where rank 0 listens.
        port: Of the attempt alone.
        attempt: How often ranks were started before, on any node.
    """

    node: int = 0
    num_nodes: int = 1
    first_rank: int = 0
    world_size: int
    address: str = "127.0.0.1"
    port: int
    attempt: int = 0


class Meeting(Protocol):
    """How the nodes of a launch find each other and tell each other what happens."""

    def join(self, *, num_ranks: int) -> Place | None:
        """Wait for enough nodes and return this one's place; None if the job is over already."""
        ...

    def news(self) -> Failure | str | None:
        """Return what another node told: its failure, ``changed`` if nodes come or go, ``stop`` if the job ends."""
        ...

    def tell(self, failure: Failure) -> None:
        """Tell the other nodes of a failure here."""
        ...

    def finish(self, *, stop: bool) -> None:
        """Say that the job is done, or (``stop``) that it is to end everywhere."""
        ...

    def can_exclude(self) -> bool:
        """Whether enough nodes are left without this one."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Alone:
    """One node meets nobody. Satisfies ``Meeting``."""

    def __init__(self) -> None:
        self._attempt = -1

    def join(self, *, num_ranks: int) -> Place:
        """Return the only place."""
        self._attempt += 1
        return Place(world_size=num_ranks, port=free_port(), attempt=self._attempt)

    def news(self) -> Failure | str | None:
        """Return nothing: nobody else is there."""
        return None

    def tell(self, failure: Failure) -> None:
        """Tell nobody."""

    def finish(self, *, stop: bool) -> None:
        """Tell nobody."""

    def can_exclude(self) -> bool:
        """Return no: it is the only node."""
        return False

    def close(self) -> None:
        """Hold nothing."""


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on now."""
    with contextlib.closing(socket.socket()) as free:
        free.bind((address, 0))
        port: int = free.getsockname()[1]
        return port
