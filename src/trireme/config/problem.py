"""What is wrong with a setting, as one line: where, which key, which rule, what works instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trireme.config.keys import Field, find_field
from trireme.config.origin import DEFAULT, Key, Origin, format_key
from trireme.config.schema import WHOLE_LIMIT
from trireme.config.suggest import closest
from trireme.errors import ConfigError
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong. ``name`` is a sentence of the page ``config``, ``values`` fill it."""

    origin: Origin
    name: str
    values: dict[str, Any]

    def __str__(self) -> str:
        return say("config.problem", place=self.origin.place, said=say("config." + self.name, **self.values))


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one error that holds every problem, a line each, in the order of the lines of the file."""
    if problems:
        ordered = sorted(problems, key=lambda problem: (problem.origin.rank, problem.origin.line or 0))
        raise ConfigError("config.problems", problems="\n".join(dict.fromkeys(map(str, ordered))))


def problems_of(error: ValidationError, *, origin_of: Callable[[Key], Origin]) -> list[Problem]:
    """Return what pydantic found, in our words."""
    return [_problem(dict(detail), origin_of=origin_of) for detail in error.errors(include_url=False)]


def _problem(detail: dict[str, Any], *, origin_of: Callable[[Key], Origin]) -> Problem:
    key: Key = tuple(detail["loc"])
    field = find_field(key)
    origin = origin_of(key)
    values: dict[str, Any] = {"key": format_key(key), "value": show(detail["input"])}
    kind = detail["type"]
    if kind == "missing":
        parent = key[:-1]
        return Problem(origin=origin_of(parent), name="missing", values={"key": format_key(key)})
    if field is not None and kind == "literal_error":
        return Problem(origin=origin, name=_choice_name(values, field=field), values=values)
    if kind == "says_nothing":
        return Problem(origin=origin, name=kind, values=values)
    if field is not None and kind == "beyond_64_bits":
        bounds = format_range(field.info.metadata)
        values["range"] = bounds if "<" in bounds else ", ".join(filter(None, (bounds, f"< {WHOLE_LIMIT}")))
        return Problem(origin=origin, name="range", values=values)
    if field is not None and kind in _RANGE_KINDS:
        values["range"] = format_range(field.info.metadata)
        return Problem(origin=origin, name="not_finite" if kind == "finite_number" else "range", values=values)
    if field is not None and kind.endswith(("_type", "_parsing", "_from_float")):
        name = wrong_type_name(field, value=detail["input"], is_item=isinstance(key[-1], int))
        return Problem(origin=origin, name=name, values=values)
    return Problem(origin=origin, name="other", values={**values, "reason": detail["msg"]})


_RANGE_KINDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})


def wrong_type_name(field: Field, *, value: Any, is_item: bool = False) -> str:
    """Return the name of the sentence that says what the key takes."""
    if field.kind == "text" or is_item:
        return "want_quoted_text" if isinstance(value, (bool, int, float)) else "want_text"
    if field.kind == "whole" and isinstance(value, float):
        return "want_whole_not_fraction"
    return f"want_{field.kind}"


def _choice_name(values: dict[str, Any], *, field: Field) -> str:
    values["choices"] = ", ".join(field.choices)
    guess = closest(str(values["value"]).strip("'"), field.choices, cutoff=0.6)
    if guess is None:
        return "choice"
    values["guess"] = guess
    return "choice_guess"


def format_range(metadata: Iterable[Any]) -> str:
    """``[Ge(0), Lt(1)]`` -> ``>= 0 and < 1``, in symbols that need no translation."""
    signs = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
    bounds = [
        f"{sign} {getattr(bound, name)}"
        for bound in metadata
        for name, sign in signs
        if getattr(bound, name, None) is not None
    ]
    return ", ".join(bounds)


def show(value: Any) -> str:
    """Return a value as a person would write it in the file, short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if not isinstance(value, (list, tuple, dict)) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def origin_finder(origins: dict[Key, Origin]) -> Callable[[Key], Origin]:
    """Return a function that finds the origin of a key, or else of the nearest thing above it."""

    def find(key: Key) -> Origin:
        for end in range(len(key), 0, -1):
            if key[:end] in origins:
                return origins[key[:end]]
        inside = [origin for other, origin in origins.items() if other[: len(key)] == key]
        return inside[0] if inside else DEFAULT

    return find
