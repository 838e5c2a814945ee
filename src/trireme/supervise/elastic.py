"""Where nodes meet: torch elastic's rendezvous, and what the nodes of one attempt tell each other through its store.

The rendezvous is used for membership alone. Ranks never share its store: each attempt has an address and a port of
its own, so what an attempt that was cut off left behind can't be mistaken for news of the next one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from trireme.supervise.failure import Failure
from trireme.supervise.place import MeetingLost, News, Place, free_port
from trireme.words import say

_KEEP_ALIVE_S = 1
_KEEP_ALIVE_TRIES = 5
"""A node that has not been heard of for so many intervals is gone."""

_LAST_CALL_S = 2
"""How long enough nodes wait for more."""

_LEAVE_S = 5.0
"""How long the node that hosts the meeting waits for the others to hear the end."""

_LOOK_S = 0.1


class Elastic:
    """One node among several. Satisfies ``Meeting``.

    Args:
        endpoint: ``host:port``; whoever can listen there hosts the meeting.
        launch_id: Of the launch, the same on all nodes.
        least: Nodes without which nothing starts.
        most: Nodes that can take part.
        timeout_s: How long to wait for enough nodes, and for a host that can't be reached.
        done_mark: File that says to late nodes that the job is complete, on storage that all nodes share; None: none.
    """

    def __init__(
        self, *, endpoint: str, launch_id: str, least: int, most: int, timeout_s: float, done_mark: Path | None
    ) -> None:
        self._endpoint, self._least, self._most, self._timeout_s = endpoint, least, most, timeout_s
        self._done_mark = done_mark
        self._launch_id = launch_id
        self._address = _own_address(endpoint)
        self.host = f"{socket.gethostname()}/{os.getpid()}"
        self._handler: Any = None
        self._store: Any = None
        self._place: Place | None = None
        self._attempt = -1

    def join(self, *, num_ranks: int, settled: bool) -> Place | None:
        """Wait for enough nodes and return this one's place; None if the job is over already.

        Raises:
            MeetingLost: The host can't be reached, or too few nodes came.
        """
        if self._is_complete():
            return None
        try:
            found = self._open().next_rendezvous()
            if self._is_complete():  # it became so while this node waited
                return None
            self._store = found.store
            self._store.set_timeout(timedelta(seconds=self._timeout_s))
            self._place = self._agree(found.rank, found.world_size, num_ranks=num_ranks, settled=settled)
        except Exception as error:
            if type(error).__name__ == "RendezvousClosedError":
                return None
            raise self._lost(error) from error
        return self._place

    def news(self) -> News | None:
        """Return what another node told.

        Raises:
            MeetingLost: The host is gone.
        """
        try:
            if self._store.check(["stop"]):
                return "stop"
            if self._store.check(["failure"]):
                return Failure.from_json(json.loads(self._store.get("failure")))
            waiting = self._handler.num_nodes_waiting() > 0
            return "changed" if waiting and self._place and self._place.num_nodes < self._most else None
        except Exception as error:
            raise self._lost(error) from error

    def tell(self, failure: Failure) -> None:
        """Tell the other nodes of a failure here; the first that is told stays."""
        with contextlib.suppress(Exception):
            if not self._store.check(["failure"]):
                self._store.set("failure", json.dumps(failure.to_json()))

    def finish(self, *, stop: bool) -> None:
        """Say that the job is done, or is to end everywhere."""
        if not stop and self._done_mark is not None:
            with contextlib.suppress(OSError):
                self._done_mark.parent.mkdir(parents=True, exist_ok=True)
                self._done_mark.write_text(f"{self._launch_id}\n", encoding="utf-8")
        if self._store is None:
            return
        with contextlib.suppress(Exception):
            if stop:
                self._store.set("stop", "1")
            else:
                self._handler.set_closed()

    def can_exclude(self) -> bool:
        """Return whether enough nodes are left without one of those there."""
        return self._place is not None and self._place.num_nodes - 1 >= self._least

    def close(self) -> None:
        """Leave; whoever hosts the meeting waits a moment until the others have heard the end."""
        if self._store is None or self._place is None:
            return
        with contextlib.suppress(Exception):
            self._store.add("left", 1)
            deadline_s = time.monotonic() + _LEAVE_S
            while time.monotonic() < deadline_s and self._store.add("left", 0) < self._place.num_nodes:
                time.sleep(_LOOK_S)
        with contextlib.suppress(Exception):
            self._handler._stop_heartbeats()

    def _is_complete(self) -> bool:
        return self._done_mark is not None and self._done_mark.exists()

    def _open(self) -> Any:
        """Reach the host, or be it; what took the host's place before it was there is tried again."""
        if self._handler is None:
            rendezvous = importlib.import_module("torch.distributed.elastic.rendezvous")
            registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")
            # Every attempt gets an address of its own; torch would have ranks share the agents' store.
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            self._handler = registry.get_rendezvous_handler(
                rendezvous.RendezvousParameters(
                    backend="c10d",
                    endpoint=self._endpoint,
                    run_id=self._launch_id,
                    min_nodes=self._least,
                    max_nodes=self._most,
                    local_addr=self._address,
                    join_timeout=int(self._timeout_s) + 1,
                    last_call_timeout=_LAST_CALL_S,
                    close_timeout=5,
                    read_timeout=max(5, int(self._timeout_s)),
                    keep_alive_interval=_KEEP_ALIVE_S,
                    keep_alive_max_attempt=_KEEP_ALIVE_TRIES,
                )
            )
        return self._handler

    def _agree(self, node: int, num_nodes: int, *, num_ranks: int, settled: bool) -> Place:
        """Settle ranks, attempt and address; the first node says where its rank 0 will listen."""
        if node == 0:
            facts = {"address": self._address, "port": free_port(self._address), "attempt": self._attempt + 1}
            self._store.set("facts", json.dumps(facts))
        self._store.set(f"node/{node}", json.dumps([num_ranks, settled]))
        nodes = [json.loads(self._store.get(f"node/{each}")) for each in range(num_nodes)]
        counts = [count for count, _ in nodes]
        told = json.loads(self._store.get("facts"))
        self._attempt = int(told["attempt"])
        return Place(
            node=node,
            num_nodes=num_nodes,
            first_rank=sum(counts[:node]),
            world_size=sum(counts),
            address=told["address"],
            port=told["port"],
            attempt=self._attempt,
            resume=any(is_settled for _, is_settled in nodes),
        )

    def _lost(self, error: Exception) -> MeetingLost:
        if "Timeout" in type(error).__name__:
            return MeetingLost(say("launch.too_few_nodes", limit_s=self._timeout_s, least=self._least))
        return MeetingLost(say("launch.host_gone", endpoint=self._endpoint))


def _own_address(endpoint: str) -> str:
    """Return the address by which the others reach this node: that of the way to the meeting."""
    host, _, port = endpoint.rpartition(":")
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((host.strip("[]"), int(port)))  # sends nothing: it only chooses a way
        address: str = probe.getsockname()[0]
        return address
