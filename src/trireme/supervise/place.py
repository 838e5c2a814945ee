"""Where this node stands in one attempt: which ranks are its, how many there are, where they meet."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from typing import Literal, Protocol

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
        resume: Whether ranks are to go on with a run that has begun.
    """

    node: int = 0
    num_nodes: int = 1
    first_rank: int = 0
    world_size: int
    address: str = "127.0.0.1"
    port: int
    attempt: int = 0
    resume: bool = False


News = Failure | Literal["changed", "stop"]
"""What another node tells: its failure; that nodes wait to take part; that the job is to end."""


class MeetingLost(Exception):
    """The other nodes can't be reached any more; the message is for a person."""


class Meeting(Protocol):
    """How the nodes of a launch find each other and tell each other what happens."""

    host: str
    """Names this node in reports."""

    def join(self, *, num_ranks: int, settled: bool) -> Place | None:
        """Wait for enough nodes and return this one's place; None if the job is over already.

        ``settled``: this node knows that the run has begun, so all are to go on with it.
        """
        ...

    def news(self) -> News | None:
        """Return what another node told."""
        ...

    def tell(self, failure: Failure) -> None:
        """Tell the other nodes of a failure here."""
        ...

    def finish(self, *, stop: bool) -> None:
        """Say that the job is done, or (``stop``) that it is to end everywhere."""
        ...

    def can_exclude(self) -> bool:
        """Whether enough nodes are left without one of them."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Alone:
    """One node meets nobody. Satisfies ``Meeting``."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._attempt = -1

    def join(self, *, num_ranks: int, settled: bool) -> Place:
        """Return the only place."""
        self._attempt += 1
        return Place(world_size=num_ranks, port=free_port(), attempt=self._attempt, resume=settled)

    def news(self) -> News | None:
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
