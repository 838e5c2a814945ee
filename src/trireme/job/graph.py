"""The graph of any model that a run can train: from its numbers where they are known, else from its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trireme.errors import ModelError
from trireme.graph import ModelGraph, find_graph, graph_for_data, graph_of_section
from trireme.words import say

if TYPE_CHECKING:
    from torch import nn

    from trireme.config import ModelSection
    from trireme.models import Bare

Notice = Callable[[str], None]

_UNKNOWN = frozenset({"graph.unknown_family", "graph.unknown_head", "graph.unknown_activation", "graph.unknown_kind"})
"""What is wrong where no family's description covers a config.json."""


def is_factory(what: str) -> bool:
    """Whether a text names code that builds a module: ``file.py:build``, ``package.module:build``."""
    source, colon, function = what.rpartition(":")
    return bool(colon) and function.isidentifier() and (source.endswith(".py") or _is_dotted(source))


def _is_dotted(source: str) -> bool:
    return all(part.isidentifier() for part in source.split("."))


def graph_of_any(what: str, *, seq_len: int, notice: Notice) -> ModelGraph:
    """Give the graph of a published name, a config.json of any family, a folder, or code.

    Raises:
        ModelError: It is none of them, or its forward can't be followed; the message says where.
    """
    if is_factory(what):
        return _of_factory(what, {}, seq_len=seq_len, notice=notice)
    try:
        return find_graph(what)
    except ModelError as error:
        if error.key not in _UNKNOWN:
            raise
        return _of_config(what, error, seq_len=seq_len, notice=notice)


def graph_of_run(section: ModelSection, *, seq_len: int, notice: Notice, vocab_size: int | None = None) -> ModelGraph:
    """Give the graph of the model that a run's settings name, with the tokenizer's vocabulary where that is known.

    Raises:
        ModelError: As above.
    """
    if section.factory is not None:
        return _of_factory(section.factory, section.factory_args, seq_len=seq_len, notice=notice)
    try:
        if vocab_size is None:
            return graph_of_section(section)
        return graph_for_data(section, vocab_size=vocab_size, seq_len=seq_len)
    except ModelError as error:
        if error.key not in _UNKNOWN or section.path is None:
            raise
        return _of_config(section.path, error, seq_len=seq_len, notice=notice)


def graph_of_module(module: nn.Module, *, seq_len: int) -> ModelGraph:
    """Give the graph of a language model that is there.

    Raises:
        ModelError: Its forward can't be followed.
    """
    from trireme.models import Bare, call_model, token_batch

    return _captured(Bare(module, token_batch, call_model), name=type(module).__name__, seq_len=seq_len)


def _of_factory(factory: str, arguments: Mapping[str, Any], *, seq_len: int, notice: Notice) -> ModelGraph:
    from trireme.models import bare_from_factory

    graph = _captured(bare_from_factory(factory, arguments, notice=notice), name=factory, seq_len=seq_len)
    notice(say("capture.of_code", model=factory))
    return graph


def _of_config(path: str, error: ModelError, *, seq_len: int, notice: Notice) -> ModelGraph:
    from trireme.models import bare_from_config

    try:
        bare = bare_from_config(path)
    except ModelError as other:
        raise ModelError("capture.neither", reason=error, other=other) from other
    graph = _captured(bare, name=path, seq_len=seq_len)
    notice(say("capture.of_config", model=path, reason=error))
    return graph


def _captured(bare: Bare, *, name: str, seq_len: int) -> ModelGraph:
    from trireme.parallel import capture_graph

    return capture_graph(
        bare.module,
        bare.batch,
        call=bare.call,
        name=name,
        family=type(bare.module).__name__,
        seq_len=seq_len,
    )
