"""The JSON Schema of a run file, so that editors complete keys and mark mistakes."""

from __future__ import annotations

from typing import Any

from trireme.config.alias import ALIASES, JOINT_MEANING
from trireme.config.keys import SHORT_FORM
from trireme.config.root import RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_json_schema() -> dict[str, Any]:
    """Return the schema: every key with its meaning, range and default; aliases marked as deprecated."""
    schema = RunConfig.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for definition in definitions.values():
        _drop_titles(definition)
    for name, key in SHORT_FORM.items():
        holder = schema if name in schema["properties"] else definitions["DataSection"]
        holder["properties"][name] = _short_form(holder["properties"][name], key=key)
    for word, key in _words().items():
        _document_alias(word, key, schema=schema)
    _drop_titles(schema)
    return {"$schema": DIALECT, "title": "Trireme run", **schema}


def _words() -> dict[str, str]:
    return {word: alias.key for word, alias in sorted(ALIASES.items())} | dict(JOINT_MEANING)


def _short_form(field: dict[str, Any], *, key: str) -> dict[str, Any]:
    """Allow the bare text, and for lists of sections one item alone."""
    about: dict[str, Any] = {name: field.pop(name) for name in ("description", "default") if name in field}
    if field.get("type") != "array":
        return {**about, "anyOf": [{"type": "string", "description": f"Stands for {{{key}: ...}}."}, field]}
    item = {"anyOf": [{"type": "string", "description": f"Stands for {{{key}: ...}}."}, field["items"]]}
    return {**about, "anyOf": [{**field, "items": item}, *item["anyOf"]]}


def _document_alias(word: str, key: str, *, schema: dict[str, Any]) -> None:
    section = key.partition(".")[0]
    home = schema["$defs"][_definition_of(section)]["properties"]
    entry = {"description": f"Read as {key}.", "deprecated": True}
    schema["properties"].setdefault(word, entry)
    home.setdefault(word, entry)


def _definition_of(section: str) -> str:
    field = RunConfig.model_fields[section].annotation
    assert field is not None
    return field.__name__


def _drop_titles(definition: dict[str, Any]) -> None:
    """pydantic's titles only repeat the names."""
    definition.pop("title", None)
    for field in definition.get("properties", {}).values():
        field.pop("title", None)
