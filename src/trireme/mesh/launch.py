"""What the launcher told this process: its rank, its place on the node, the size of the world."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from trireme.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnvironment:
    """The launcher's variables, read and checked once.

    Attributes:
        rank: Place in the world.
        world_size: Processes in the world.
        local_rank: Place on this node.
        local_world_size: Processes on this node.
        restart_count: How often the launcher has restarted this group.
        store_file: Where the ranks of one machine meet, if its launcher made such a place for this attempt; None: at
            MASTER_ADDR and MASTER_PORT.
        launched: Whether a launcher set anything at all; False for a plain ``python script.py``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restart_count: int = 0
    store_file: str | None = None
    launched: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> LaunchEnvironment:
        """Read RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and TORCHELASTIC_RESTART_COUNT.

        Raises:
            LayoutError: A value is no whole number, or a rank lies outside its world.
        """
        environ = os.environ if environ is None else environ
        world_size = _read(environ, "WORLD_SIZE", default=1, least=1)
        rank = _read(environ, "RANK", default=0)
        # A launcher that names no local rank (mpirun, a shell loop) runs one node as far as we can know.
        local_rank = _read(environ, "LOCAL_RANK", default=rank)
        local_world_size = _read(environ, "LOCAL_WORLD_SIZE", default=world_size, least=1)
        _check_place("RANK", rank, "WORLD_SIZE", world_size)
        _check_place("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size)
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            restart_count=_read(environ, "TORCHELASTIC_RESTART_COUNT", default=0),
            store_file=environ.get("TRIREME_STORE_FILE") or None,
            launched="RANK" in environ or "WORLD_SIZE" in environ,
        )


def _read(environ: Mapping[str, str], variable: str, *, default: int, least: int = 0) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise LayoutError("mesh.bad_variable", variable=variable, value=text, least=least)
    return int(text)


def _check_place(place: str, rank: int, size: str, num_ranks: int) -> None:
    if rank >= num_ranks:
        raise LayoutError("mesh.rank_outside", place=place, rank=rank, size=size, num_ranks=num_ranks)
