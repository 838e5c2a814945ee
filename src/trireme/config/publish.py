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
    for field in schema["properties"].values():
        field.pop("default", None)  # a section's default is that of its keys, which say it themselves
    for name, key in SHORT_FORM.items():
        holder = schema if name in schema["properties"] else definitions["DataSection"]
        holder["properties"][name] = _short_form(
            holder["properties"][name], text=_text_schema(name, key, schema=schema)
        )
    prompts = definitions["TrainSection"]["properties"]["sample_prompts"]
    definitions["TrainSection"]["properties"]["sample_prompts"] = _short_form(prompts, text={"type": "string"})
    for word, key in _words().items():
        _document_alias(word, key, schema=schema)
    _drop_titles(schema)
    return {"$schema": DIALECT, "title": "Trireme run", **schema}


def _words() -> dict[str, str]:
    return {word: alias.key for word, alias in sorted(ALIASES.items())} | dict(JOINT_MEANING)


def _text_schema(name: str, key: str, *, schema: dict[str, Any]) -> dict[str, Any]:
    """What a bare text in place of section ``name`` may be: what its key ``key`` may be, null excepted."""
    section = "SourceSection" if name.endswith("sources") else _definition_of(name)
    text = dict(schema["$defs"][section]["properties"][key])
    text.pop("default", None)
    text.pop("anyOf", None)
    return {**text, "type": "string", "description": f"Stands for {{{key}: ...}}. {text['description']}"}


def _short_form(field: dict[str, Any], *, text: dict[str, Any]) -> dict[str, Any]:
    """Allow the bare text, and for lists one item alone."""
    about = {name: field.pop(name) for name in ("description", "default") if name in field}
    if field.get("type") != "array":
        return about | {"anyOf": [text, field]}
    choices = [text] if field["items"] == {"type": "string"} else [text, field["items"]]
    items = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return about | {"anyOf": [field | {"items": items}, *choices]}


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
