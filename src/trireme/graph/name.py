"""A model by its published name."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from trireme.errors import ModelError
from trireme.graph.family import build_graph, read_config
from trireme.graph.model import ModelGraph


def model_names() -> tuple[str, ...]:
    """Names of all published models in the tables."""
    from trireme.graph.published import PUBLISHED

    return tuple(PUBLISHED)


def model_source(name: str) -> str:
    """Where the shape of a published model was read.

    Raises:
        ModelError: There is no such model.
    """
    from trireme.graph.published import PUBLISHED

    return PUBLISHED[_known_name(name)].source


def find_model(name: str) -> ModelGraph:
    """Return the graph of the published model called ``name``; case and a maker before a slash don't matter.

    Raises:
        ModelError: There is none; the message names the nearest.
    """
    return _build(_known_name(name))


def find_graph(what: str) -> ModelGraph:
    """Return the graph of a published name, a config.json or a folder that holds one, whichever ``what`` is.

    Raises:
        ModelError: It is none of them, or can't be read.
    """
    path = Path(what)
    if what.endswith(".json") or path.is_dir() or path.is_file():
        return read_config(path)
    return find_model(what)


@cache
def _build(name: str) -> ModelGraph:
    from trireme.graph.published import PUBLISHED

    return build_graph(PUBLISHED[name].config, name=name)


def _known_name(name: str) -> str:
    from trireme.graph.published import ALSO_CALLED, PUBLISHED

    wanted = name.lower().rpartition("/")[2].removeprefix("meta-").replace("_", "-")
    wanted = ALSO_CALLED.get(wanted, wanted)
    if wanted in PUBLISHED:
        return wanted
    near = difflib.get_close_matches(wanted, [*PUBLISHED, *ALSO_CALLED], n=3, cutoff=0.5)
    if near:
        raise ModelError("graph.unknown_name_near", name=name, near=", ".join(near))
    raise ModelError("graph.unknown_name", name=name)
