"""State as strict JSON: what can't come back equal is refused, what JSON lacks is spelled out.

NaN and the infinities become ``{"$float": "nan"}``, tuples ``{"$tuple": [...]}``, bytes ``{"$bytes": base64}``;
a dict whose own key starts with ``$`` is wrapped as ``{"$dict": [[key, value], ...]}``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import xxhash

from trireme.errors import CheckpointError

_MARKS = ("$float", "$tuple", "$bytes", "$dict")


def encode_state(value: Any, where: str = "state") -> Any:
    """Return ``value`` as strict JSON that ``decode_state`` turns back into an equal value.

    Raises:
        CheckpointError: Something in it has no exact JSON form; the message names where.
    """
    # bool before int and exact types only: numpy scalars and enums would come back as something else.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if kind is list:
        return [encode_state(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [encode_state(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where)
    raise CheckpointError("checkpoint.state_type", where=where, kind=kind.__name__)


def decode_state(value: Any) -> Any:
    """Return what ``encode_state`` was given."""
    if isinstance(value, list):
        return [decode_state(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$float": str(text)} if len(value) == 1:
            return float(text)
        case {"$bytes": str(text)} if len(value) == 1:
            return base64.b64decode(text, validate=True)
        case {"$tuple": list(items)} if len(value) == 1:
            return tuple(decode_state(item) for item in items)
        case {"$dict": list(pairs)} if len(value) == 1:
            return {key: decode_state(item) for key, item in pairs}
    return {key: decode_state(item) for key, item in value.items()}


def hash_state(encoded: Any) -> str:
    """Return the xxh3-128 of encoded state in canonical form: equal states hash equal wherever they were saved."""
    text = json.dumps(encoded, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _encode_mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for key in value:
        if type(key) is not str:
            raise CheckpointError("checkpoint.state_key", where=where, key=repr(key), kind=type(key).__name__)
    encoded = {key: encode_state(item, f"{where}.{key}") for key, item in value.items()}
    if any(key in _MARKS for key in encoded):
        return {"$dict": [[key, item] for key, item in encoded.items()]}
    return encoded
