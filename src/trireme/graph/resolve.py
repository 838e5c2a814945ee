"""From the section ``model`` to one checked shape."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trireme.errors import ModelError
from trireme.graph.decoder import DecoderShape
from trireme.graph.preset import ALIASES, FOLLOWS_DATA, PRESETS
from trireme.words import say

if TYPE_CHECKING:  # the schema library alone would cost a planner ten times what this room does
    from trireme.config import ModelSection

VOCAB_MULTIPLE = 64
"""A vocabulary left to default is rounded up to this, for matrix sizes that every device likes."""

_OVERRIDES = (
    "num_layers",
    "d_model",
    "num_heads",
    "num_kv_heads",
    "d_ffn",
    "max_seq_len",
    "rope_theta",
    "norm_eps",
    "tie_embeddings",
    "dropout",
)


def find_preset(name: str) -> DecoderShape:
    """Return the shape called ``name``.

    Raises:
        ModelError: There is none; the message names the nearest.
    """
    known = ALIASES.get(name, name)
    if known in PRESETS:
        return PRESETS[known]
    near = difflib.get_close_matches(name, [*PRESETS, *ALIASES], n=1, cutoff=0.5)
    if near:
        raise ModelError("model.unknown_name_near", name=name, near=near[0])
    raise ModelError("model.unknown_name", name=name, names=", ".join(PRESETS))


def check_model_section(model: ModelSection) -> None:
    """Check that exactly one source of the module is named and no key is set that it would not read.

    Raises:
        ModelError: None or several are named, or a key has no effect beside the one that is.
    """
    named = [key for key in ("name", "factory", "path") if getattr(model, key) is not None]
    if len(named) != 1:
        raise ModelError("model.one_source", given=", ".join(f"model.{key}" for key in named) or "-")
    if model.factory_args and named != ["factory"]:
        raise ModelError("model.no_effect", keys="model.factory_args", source=f"model.{named[0]}")
    shaped = [key for key in ("vocab_size", *_OVERRIDES) if getattr(model, key) is not None]
    if shaped and named != ["name"]:
        keys = ", ".join(f"model.{key}" for key in shaped)
        raise ModelError("model.no_effect", keys=keys, source=f"model.{named[0]}")


def resolve_shape(
    model: ModelSection, *, vocab_size: int, seq_len: int, notice: Callable[[str], None] | None = None
) -> DecoderShape:
    """Give the shape that ``model`` names, with its overrides, fitted to the data and checked.

    Args:
        model: The section; ``model.name`` is set.
        vocab_size: The tokenizer's vocabulary.
        seq_len: Tokens a training sequence predicts.
        notice: Told in one line what was decided without being asked for.

    Raises:
        ModelError: The name is unknown, or the numbers don't fit each other, the tokenizer or the data.
    """
    check_model_section(model)
    if model.name is None:
        raise ModelError("model.not_a_shape", source="model.factory" if model.factory else "model.path")
    preset = find_preset(model.name)
    changes: dict[str, Any] = {key: getattr(model, key) for key in _OVERRIDES if getattr(model, key) is not None}
    if "max_seq_len" not in changes and ALIASES.get(model.name, model.name) in FOLLOWS_DATA:
        changes["max_seq_len"] = seq_len
    changes["vocab_size"] = _resolve_vocab_size(model, vocab_size, notice or (lambda _line: None))
    shape = replace(preset, **changes)
    check_shape(shape)
    check_seq_len(seq_len, max_seq_len=shape.max_seq_len)
    return shape


def check_shape(shape: DecoderShape) -> None:
    """Check that heads divide the width, key/value heads divide the heads, and the head width is even.

    Raises:
        ModelError: One of them doesn't; the message names the nearest that would.
    """
    if shape.d_model % shape.num_heads:
        near = _nearest_divisor(shape.d_model, shape.num_heads)
        raise ModelError("model.heads_divide", d_model=shape.d_model, num_heads=shape.num_heads, near=near)
    if shape.num_heads % shape.num_kv_heads:
        near = _nearest_divisor(shape.num_heads, shape.num_kv_heads)
        raise ModelError("model.kv_heads_divide", num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, near=near)
    if shape.head_width % 2:
        raise ModelError(
            "model.head_width_even", d_model=shape.d_model, num_heads=shape.num_heads, width=shape.head_width
        )


def check_seq_len(seq_len: int, *, max_seq_len: int) -> None:
    """Check that the data's sequences fit the model.

    Raises:
        ModelError: They don't; both keys are named.
    """
    if seq_len > max_seq_len:
        raise ModelError("model.seq_too_long", seq_len=seq_len, max_seq_len=max_seq_len)


def check_vocab_size(vocab_size: int, *, tokenizer_vocab_size: int) -> None:
    """Check that every token id the tokenizer can give has a row in the embedding.

    Raises:
        ModelError: The tokenizer's vocabulary is larger than the model's.
    """
    if vocab_size < tokenizer_vocab_size:
        raise ModelError("model.vocab_too_small", vocab_size=vocab_size, tokenizer_vocab_size=tokenizer_vocab_size)


def _resolve_vocab_size(model: ModelSection, tokenizer_vocab_size: int, notice: Callable[[str], None]) -> int:
    if model.vocab_size is not None:
        check_vocab_size(model.vocab_size, tokenizer_vocab_size=tokenizer_vocab_size)
        return model.vocab_size
    rounded = -(-tokenizer_vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if rounded != tokenizer_vocab_size:
        notice(say("model.vocab_rounded", tokenizer=tokenizer_vocab_size, rounded=rounded, multiple=VOCAB_MULTIPLE))
    return rounded


def _nearest_divisor(value: int, wanted: int) -> int:
    divisors = (candidate for candidate in range(1, value + 1) if value % candidate == 0)
    return min(divisors, key=lambda candidate: abs(candidate - wanted))
