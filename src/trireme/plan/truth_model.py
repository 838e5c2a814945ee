"""The model of a published run, from its numbers or its name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from trireme.errors import ModelError
from trireme.plan.truth_row import Row, Unreadable

if TYPE_CHECKING:
    from trireme.graph import ModelGraph

ASSUMED_VOCAB = 51_200
_GATED = ("swiglu", "geglu", "silu", "reglu")
_OWN_ATTENTION = ("deepseek", "kimi", "moonlight", "gpt-oss", "llama-4", "glm")
"""Families whose layers a handful of numbers doesn't say: latent attention, windows, experts in every second layer."""


def model_of(row: Row, *, dropout: float = 0.0) -> ModelGraph:
    """Give the graph of a row's model: of its dimensions where they are given, else of its name.

    Raises:
        Unreadable: Neither says what it is.
    """
    known = _named(row.text("model"))
    if known is not None and _is_better_named(row, known):
        return known
    columns = ("layers", "hidden", "heads")
    missing = [column for column in columns if not row.text(column)]
    if missing:
        if known is not None and not row.text("layers"):
            return known
        raise Unreadable(f"{', '.join(missing)} not given and no known model is called {row.text('model')!r}")
    return _from_numbers(row, dropout=dropout)


def _is_better_named(row: Row, known: ModelGraph) -> bool:
    is_same = row.count("layers") in (None, known.num_layers)
    return is_same and any(family in known.name for family in _OWN_ATTENTION)


@lru_cache(maxsize=1024)
def _named(name: str) -> ModelGraph | None:
    from trireme.graph import find_model

    for spelling in (name, name.lower().replace(" ", "-"), name.lower().removesuffix("b").rpartition("-")[0]):
        try:
            if spelling:
                return find_model(spelling)
        except ModelError:
            continue
    return None


def _from_numbers(row: Row, *, dropout: float) -> ModelGraph:
    is_gated = row.text("act").lower() in _GATED
    experts = row.count("experts") or 0
    hidden, heads = row.needed("hidden"), row.needed("heads")
    width = row.count("head_dim")
    if width is None and hidden % heads:
        raise Unreadable(f"hidden {hidden} is not a multiple of heads {heads} and head_dim is not given")
    return _build(
        vocab_size=row.count("vocab") or ASSUMED_VOCAB,
        num_layers=row.needed("layers"),
        d_model=hidden,
        num_heads=heads,
        num_kv_heads=row.count("kv_heads"),
        head_width=width,
        d_ffn=row.count("ffn"),
        gated=is_gated,
        tied=row.text("tied_emb") == "1",
        learned_positions=None if is_gated else row.count("seq_len"),
        dropout=0.0 if is_gated else dropout,
        num_experts=experts,
        top_k=(row.count("topk") or 1) if experts else 0,
        d_expert=(row.count("moe_ffn") or row.count("ffn") or 4 * hidden) if experts else 0,
        d_shared=(row.count("shared_expert_ffn") or 0) if experts else 0,
    )


@lru_cache(maxsize=1024)
def _build(**numbers: float | bool | None) -> ModelGraph:
    from trireme.graph import DecoderNumbers, read_numbers

    try:
        return read_numbers(DecoderNumbers(**numbers), name="decoder")  # type: ignore[arg-type]
    except ModelError as error:
        raise Unreadable(str(error)) from None
