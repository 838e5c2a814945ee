"""Lines of JSON that any strict parser reads, with every float to its last bit.

A NaN or infinity is not JSON. It is written as ``"loss": null, "loss_text": "nan"``, and read back as the
float it was. Finite floats are written in the shortest form that reads back as the same float.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TEXT = "_text"


def to_line(fields: Mapping[str, Any]) -> str:
    """Return ``fields`` as one line of strict JSON, newline included."""
    return json.dumps(_mark(fields), allow_nan=False, ensure_ascii=False, default=_plain) + "\n"


def to_text(value: Any) -> str:
    """Return ``value`` as indented strict JSON for a file that people read."""
    return json.dumps(_mark(value), allow_nan=False, ensure_ascii=False, indent=2, default=_plain) + "\n"


def from_line(line: str | bytes) -> dict[str, Any]:
    """Read one line back; marked fields become NaN or infinity again.

    Raises:
        ValueError: The line is not one JSON object.
    """
    fields = json.loads(line, parse_constant=_refuse)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return _unmark(fields)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return every whole line of a log; a last line torn by a kill is left out."""
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    return [from_line(line) for line in lines]


def _mark(value: Any) -> Any:
    match value:
        case Mapping():
            return _mark_fields(value)
        case list() | tuple():
            return [_mark(item) for item in value]
        case float() if not math.isfinite(value):
            return str(float(value))  # inside a list there is no field to put a marker beside
        case _:
            return value


def _mark_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    marked: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            marked[str(name)], marked[f"{name}{_TEXT}"] = None, str(float(value))
        else:
            marked[str(name)] = _mark(value)
    return marked


def _unmark(fields: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        original = name.removesuffix(_TEXT)
        if original != name and original in fields and fields[original] is None:
            plain[original] = float(value)
        else:
            plain[name] = _unmark(value) if isinstance(value, dict) else value
    return plain


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch know their Python number; paths are text."""
    if hasattr(value, "item"):
        return _mark(value.item())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
