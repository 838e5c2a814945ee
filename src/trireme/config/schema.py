"""What every section is made of: strict, frozen, and each key with its meaning and range.

Rules that hold everywhere:
- an unknown key is an error, ``true`` is not 1, ``"2e-5"`` and ``2e-5`` are the same number;
- a number is finite; a list may be a tuple and becomes one;
- a field's ``description`` is what ``trireme config schema`` and the guide show;
- a section knows nothing of the others; what two sections must agree on is checked in ``check.py``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """Base of every section: frozen, closed, strict."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False, allow_inf_nan=False)


def _number_from_text(value: Any) -> Any:
    """Read ``"2e-5"`` as a number; leave anything else for the type check to judge."""
    if isinstance(value, str):
        try:
            return float(value.replace("_", ""))
        except ValueError:
            return value
    return value


def _whole_from_number(value: Any) -> Any:
    """Read ``1e6`` and ``"1_000"`` as whole numbers; refuse to round ``1.5``."""
    value = _number_from_text(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, BeforeValidator(_number_from_text)]
"""A float that may be written ``2e-5`` in YAML 1.1, where that is a string."""

Whole = Annotated[int, BeforeValidator(_whole_from_number)]
"""A whole number that may be written ``1e6``."""


def _tuple_from_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


AsTuple = BeforeValidator(_tuple_from_list)
"""Lists come in, tuples stay, so that a frozen section is frozen through and through."""
