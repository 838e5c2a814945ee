"""What every section is made of: strict, frozen, and each key with its meaning and range.

Rules that hold everywhere:
- an unknown key is an error, ``true`` is not 1, ``"2e-5"`` and ``2e-5`` are the same number;
- a number is finite; a list may be a tuple and becomes one;
- a field's ``description`` is what ``trireme config schema`` and the guide show;
- a section knows nothing of the others; what two sections must agree on is checked in ``check.py``.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

WHOLE_LIMIT = 2**63
"""Whole numbers are smaller than this: everything that counts with them has 64 bits."""


class Section(BaseModel):
    """Base of every section: frozen, closed, strict."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _says_something(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a text that names nothing: an empty path would mean the working folder."""
        takes_text = cls.model_fields[str(info.field_name)].annotation in (str, str | None)
        if takes_text and isinstance(value, str) and (not value.strip() or "\0" in value):
            raise PydanticCustomError("says_nothing", "says nothing")
        return value


def number_from_text(value: Any) -> Any:
    """Read ``"2e-5"`` as a number; leave anything else for the type check to judge."""
    if isinstance(value, str):
        try:
            return float(value.replace("_", ""))
        except ValueError:
            return value
    return value


def _whole_from_number(value: Any) -> Any:
    """Read ``1e6`` and ``"1_000"`` as whole numbers, digit for digit; refuse to round ``1.5``."""
    value = _whole_from_text(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= WHOLE_LIMIT:
        raise PydanticCustomError("beyond_64_bits", "beyond 64 bits")
    return value


def _whole_from_text(value: Any) -> Any:
    """Read ``"9007199254740993"`` without passing through a float, which would round it."""
    try:
        return int(value.replace("_", "")) if isinstance(value, str) else value
    except ValueError:
        return number_from_text(value)


Number = Annotated[float, BeforeValidator(number_from_text)]
"""A float that may be written ``2e-5`` in YAML 1.1, where that is a string."""

Whole = Annotated[int, BeforeValidator(_whole_from_number)]
"""A whole number that may be written ``1e6``."""


def _tuple_from_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


AsTuple = BeforeValidator(_tuple_from_list)
"""Lists come in, tuples stay, so that a frozen section is frozen through and through."""
