"""The tree of keys, read off the schema: what exists, what kind each is, what a wrong one may have meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from trireme.config.origin import Key, format_key
from trireme.config.root import RunConfig
from trireme.config.schema import Section
from trireme.config.suggest import likeness

Kind = Literal["section", "sections", "list", "text", "number", "whole", "boolean", "choice", "mapping"]

SHORT_FORM: dict[str, str] = {
    "precision": "policy",
    "offload": "optimizer",
    "recompute": "mode",
    "model": "name",
    "layout": "text",
    "communication": "compress",
    "sources": "path",
    "eval_sources": "path",
}
"""Where a bare text may stand for a mapping: the key that the text then is the value of."""

_SAME_NAME, _FULL_PATH, _LAST_NAME, _SAME_SECTION, _WORD_MALUS = 0.9, 0.78, 0.72, 0.06, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What the schema says about one key."""

    key: tuple[str, ...]
    kind: Kind
    info: FieldInfo
    section: type[Section] | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False


@cache
def fields_of(section: type[Section], prefix: tuple[str, ...] = ()) -> dict[str, Field]:
    """Return the fields of a section by name."""
    return {name: _field((*prefix, name), info) for name, info in section.model_fields.items()}


def find_field(key: Key) -> Field | None:
    """Return the field a key leads to, or None where there is none; inside a free mapping, the mapping's."""
    section: type[Section] | None = RunConfig
    found: Field | None = None
    names: tuple[str, ...] = ()
    for part in key:
        if isinstance(part, int):
            if found is None or found.kind not in ("sections", "list"):
                return None
            continue
        if found is not None and found.kind == "mapping":
            return found
        if section is None:
            return None
        found = fields_of(section, names).get(part)
        if found is None:
            return None
        names, section = found.key, found.section
    return found


@cache
def all_fields() -> dict[str, Field]:
    """Return every key of the schema by its dotted name, sections included; list items without index."""
    return {format_key(field.key): field for field in _walk(RunConfig, ())}


def nearest_key(key: Key, *, words: dict[str, str]) -> str | None:
    """Return the dotted key that ``key`` was most likely meant to be; ``words`` are aliases and what they mean."""
    found = _nearest(key, words=words)
    return None if found is None else _with_indices(found, key)


def _with_indices(found: str, key: Key) -> str:
    """Put the numbers of list items back, so that what is suggested can be typed."""
    for place, part in enumerate(key):
        above = format_key(key[:place]) + "."
        if isinstance(part, int) and found.startswith(above):
            found = f"{above}{part}.{found.removeprefix(above)}"
    return found


def _nearest(key: Key, *, words: dict[str, str]) -> str | None:
    dotted = format_key(tuple(part for part in key if isinstance(part, str)))
    best, best_score = None, 0.0
    for candidate in all_fields():
        score = _score(dotted, candidate)
        if score > best_score:
            best, best_score = candidate, score
    for word, target in words.items():
        score = likeness(dotted.rpartition(".")[2], word) - _WORD_MALUS
        if score > max(best_score, _LAST_NAME) and not (best or "").startswith(target):
            best, best_score = f"{target} ({word})", score
    return best


def _score(dotted: str, candidate: str) -> float:
    section, _, name = dotted.rpartition(".")
    candidate_section, _, candidate_name = candidate.rpartition(".")
    bonus = _SAME_SECTION if section and section == candidate_section else 0.0
    if name == candidate_name:
        return _SAME_NAME + 0.1 * likeness(section, candidate_section)
    full = likeness(dotted, candidate)
    last = likeness(name, candidate_name)
    score = max(full if full >= _FULL_PATH else 0.0, last if last >= _LAST_NAME else 0.0)
    return score + bonus if score else 0.0


def _walk(section: type[Section], prefix: tuple[str, ...]) -> Iterator[Field]:
    for field in fields_of(section, prefix).values():
        yield field
        if field.section is not None:
            yield from _walk(field.section, field.key)


def _field(key: tuple[str, ...], info: FieldInfo) -> Field:
    annotation, optional = _without_none(info.annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Field(key=key, kind="section", info=info, section=annotation)
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        if isinstance(item, type) and issubclass(item, Section):
            return Field(key=key, kind="sections", info=info, section=item)
        return Field(key=key, kind="list", info=info)
    if get_origin(annotation) is Literal:
        return Field(key=key, kind="choice", info=info, choices=get_args(annotation), optional=optional)
    kinds: dict[Any, Kind] = {str: "text", float: "number", int: "whole", bool: "boolean"}
    return Field(key=key, kind=kinds.get(annotation, "mapping"), info=info, optional=optional)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Strip ``| None`` and ``Annotated`` off a type."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    optional = type(None) in get_args(annotation)
    if optional and len(parts) == 1:
        annotation = parts[0]
    if hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    return annotation, optional
