"""The graph of the model that a run's settings name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trireme.errors import ModelError
from trireme.graph.families.reference import read_shape
from trireme.graph.model import ModelGraph
from trireme.graph.name import find_graph
from trireme.graph.resolve import find_preset, resolve_shape

if TYPE_CHECKING:  # the schema library alone would cost a planner ten times what this room does
    from trireme.config import ModelSection


def graph_of_section(section: ModelSection) -> ModelGraph:
    """Return the graph of ``model`` as far as the settings alone tell: sizes that follow the data are the named ones.

    Raises:
        ModelError: ``model.factory`` names code, or what is named is unknown.
    """
    if section.path is not None:
        return find_graph(section.path)
    if section.name is None:
        raise ModelError("graph.model_by_code")
    shape = find_preset(section.name)
    keys = [key for key in shape.__dataclass_fields__ if getattr(section, key, None) is not None]
    return read_shape(replace(shape, **{key: getattr(section, key) for key in keys}), name=section.name)


def graph_for_data(section: ModelSection, *, vocab_size: int, seq_len: int) -> ModelGraph:
    """Return the graph of ``model`` as it is trained, with the tokenizer's vocabulary.

    Raises:
        ModelError: As above, or the model doesn't suit the data.
    """
    if section.name is None:
        return graph_of_section(section)
    return read_shape(resolve_shape(section, vocab_size=vocab_size, seq_len=seq_len), name=section.name)
