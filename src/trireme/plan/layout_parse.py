"""Read a layout: from text or a mapping, in our words or others', with the data-parallel degree filled in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trireme.errors import LayoutError
from trireme.plan.layout import CP_KINDS, RECOMPUTES, ZERO_STAGES, Layout, check_choice, check_whole
from trireme.plan.layout_alias import FOREIGN_WORDS, IN_WRAPPER, SCHEDULES, WRAPPERS, read_foreign
from trireme.plan.schedule import SCHEDULE_NAMES
from trireme.words import say

_DEGREES = ("pp", "vp", "dp", "dp_replicate", "dp_shard", "hsdp", "cp", "tp", "ep")
KEYS = (*_DEGREES, "zero", "sp", "schedule", "micro", "recompute", "cp_kind")

_SHORT = re.compile(r"(pp|vp|dp|cp|tp|ep|zero|micro)(\d+)")
_BARE = {"sp": True, "recompute": "full"}
_WIDTHS = ("dp", "dp_degree", "dp_replicate", "dp_shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLayout:
    """A layout, and what to tell the user about how it was read."""

    layout: Layout
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class _Asked:
    """What was said, by key, what is implied where nothing was, and what to tell."""

    said: dict[str, Any] = field(default_factory=dict)
    implied: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        return self.said.get(key, self.implied.get(key))

    def set(self, key: str, value: Any) -> None:
        if self.said.setdefault(key, value) != value:
            raise LayoutError("layout.said_twice", key=key, first=self.said[key], second=value)


def parse_layout(source: str | Mapping[str, Any], *, ranks: int | None = None) -> ParsedLayout:
    """Read a layout from text (``tp=2,pp=2,zero3``) or a mapping (``{tp: 2, pp: 2, zero: 3}``).

    A data-parallel degree that isn't given is ``ranks`` / rest, or 1 where ``ranks`` is not given either.
    ``dp=N`` is whole copies; with zero1 to zero3, or with experts to spread, it is the sharded axis.

    Raises:
        LayoutError: An unknown key or value, a contradiction, or degrees that don't multiply to ``ranks``.
    """
    asked = _Asked()
    words = _words_of_text(source) if isinstance(source, str) else _words_of_mapping(source)
    for word, value in words:
        _take(asked, word, value)
    degrees = {key: _degree(asked, key) for key in ("pp", "cp", "tp", "ep")}
    zero, dp_replicate, dp_shard = _resolve_dp(asked, degrees=degrees, ranks=ranks)
    layout = Layout(
        **degrees,
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        zero=zero,
        vp=_resolve_vp(asked),
        sp=asked.get("sp") or False,
        schedule=asked.get("schedule") or "1f1b",
        microbatches_per_step=asked.get("micro"),
        recompute=asked.get("recompute") or "none",
        cp_kind=asked.get("cp_kind") or "allgather",
    )
    return ParsedLayout(layout=layout, notices=tuple(asked.notices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Settings that a layout must have, by our keys (``dp`` is the product of both data-parallel degrees)."""

    said: Mapping[str, Any]
    notices: tuple[str, ...] = ()


def parse_wish(source: str | Mapping[str, Any]) -> Wish:
    """Read part of a layout: only what is said counts, all else is left open.

    Raises:
        LayoutError: An unknown key or value, or a contradiction.
    """
    asked = _Asked()
    for word, value in _words_of_text(source) if isinstance(source, str) else _words_of_mapping(source):
        _take(asked, word, value)
    _merge_dp_words(asked)
    said = {key: value for key, value in asked.said.items() if value != "fill"}
    return Wish(
        said=said | {key: value for key, value in asked.implied.items() if key not in said},
        notices=tuple(asked.notices),
    )


def _words_of_text(text: str) -> Iterator[tuple[str, Any]]:
    joined = re.sub(r"\s*=\s*", "=", text.strip())
    for word in filter(None, re.split(r"[\s,+;，、]+", joined)):
        key, equals, value = word.partition("=")
        short = _SHORT.fullmatch(word)
        if equals:
            yield key, value
        elif short:
            yield short[1], short[2]
        elif word in _BARE:
            yield word, _BARE[word]
        elif word in KEYS or word in FOREIGN_WORDS:
            raise LayoutError("layout.no_value", key=word)
        else:
            yield word, True


def _words_of_mapping(mapping: Mapping[str, Any], *, block: str = "") -> Iterator[tuple[str, Any]]:
    for word, value in mapping.items():
        if word in WRAPPERS and isinstance(value, Mapping):
            yield from _words_of_mapping(value, block=word)
        elif value is not None:
            yield IN_WRAPPER.get((block, word), word), value


def _take(asked: _Asked, word: str, value: Any) -> None:
    """Enter one word, in our key and type; what was read in other words than ours is told."""
    if word in KEYS:
        read = _read(word, value)
        asked.set(word, read)
        if word == "schedule" and _fold(value) != _fold(read):
            asked.notices.append(say("layout.read_as", word=f"schedule = {value}", meaning=f"schedule = {read}"))
        return
    reading = read_foreign(word, value)
    if reading is None:
        raise _unknown(word)
    said = {key: _read(key, meant) for key, meant in reading.said.items()}
    for key, read in said.items():
        asked.set(key, read)
    asked.implied.update(reading.implied)
    if "dp_degree" not in said:  # told once it is known which axis it means
        _tell(asked, word=f"{word} = {value}", meaning={**said, **reading.implied})


def _tell(asked: _Asked, *, word: str, meaning: Mapping[str, Any]) -> None:
    said = ", ".join(f"{key} = {value}" for key, value in meaning.items())
    asked.notices.append(say("layout.read_as", word=word, meaning=said) if said else say("layout.read_off", word=word))


def _unknown(word: str) -> LayoutError:
    close = difflib.get_close_matches(word.lower(), [*KEYS, *sorted(FOREIGN_WORDS)], n=1, cutoff=0.5)
    if close:
        return LayoutError("layout.unknown_key_near", key=word, near=close[0])
    return LayoutError("layout.unknown_key", key=word, keys=", ".join(KEYS))


def _read(key: str, value: Any) -> Any:
    """Give the value in the type of its key."""
    if key == "sp":
        return _read_switch(key, value)
    if key == "schedule":
        return _read_schedule(value)
    if key == "recompute" and (isinstance(value, bool) or str(value).lower() in ("true", "false")):
        return "full" if _read_switch(key, value) else "none"
    if key in ("recompute", "cp_kind"):
        return _read_choice(key, value, RECOMPUTES if key == "recompute" else CP_KINDS)
    if key == "hsdp":
        return _read_pair(value)
    if key in _WIDTHS and str(value) in ("-1", "auto"):
        return "fill"
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()) else value
    if key == "zero":
        check_choice(key, number, ZERO_STAGES)
    else:
        check_whole(key, number)
    return number


def _read_switch(key: str, value: Any) -> bool:
    known = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
    switch = known.get(str(value).lower())
    if switch is None:
        raise LayoutError("layout.not_choice", key=key, value=value, choices="true, false")
    return switch


def _read_choice(key: str, value: Any, choices: tuple[str, ...]) -> str:
    word = str(value).lower()
    if word in choices:
        return word
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    near = close[0] if close else choices[0]
    raise LayoutError("layout.not_choice_near", key=key, value=value, choices=", ".join(choices), near=near)


def _fold(word: Any) -> str:
    return re.sub(r"[-_ ]", "", str(word).lower())


def _read_schedule(value: Any) -> str:
    folded = _fold(value)
    return _read_choice("schedule", SCHEDULES.get(folded, folded), SCHEDULE_NAMES)


def _read_pair(value: Any) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\s*[x×*]\s*(\d+)", str(value).strip().lower())
    if match is None:
        raise LayoutError("layout.not_pair", value=value)
    pair = (int(match[1]), int(match[2]))
    for degree in pair:
        check_whole("hsdp", degree)
    return pair


def _degree(asked: _Asked, key: str) -> int:
    return asked.get(key) or 1


def _resolve_vp(asked: _Asked) -> int:
    """0 leaves it to the schedule; 1f1b with several stages a rank is said to be interleaved."""
    vp = asked.get("vp") or 0
    if vp > 1 and asked.said.get("schedule") == "1f1b":
        asked.notices.append(say("layout.is_interleaved", vp=vp))
    return vp


def _resolve_dp(asked: _Asked, *, degrees: Mapping[str, int], ranks: int | None) -> tuple[int, int, int]:
    """Give (zero, dp_replicate, dp_shard); the one that is not said takes the ranks that are left."""
    _merge_dp_words(asked)
    zero = asked.get("zero")
    if zero is None:
        zero = 3 if asked.said.get("dp_shard", 1) != 1 else 0
    is_sharded = zero > 0 or degrees["ep"] > 1
    if "dp" in asked.said:
        asked.set("dp_shard" if is_sharded else "dp_replicate", asked.said.pop("dp"))
        asked.said.setdefault("dp_replicate" if is_sharded else "dp_shard", 1)
    widths = {key: asked.said.get(key, "fill") for key in ("dp_replicate", "dp_shard")}
    filled = _axis_to_fill(widths, is_sharded=is_sharded)
    rest = 1 if ranks is None else _ranks_left(widths, degrees=degrees, ranks=ranks, may_fill=filled is not None)
    for key, width in widths.items():
        if width == "fill":
            widths[key] = rest if key == filled else 1
    if filled is not None and rest > 1:
        asked.notices.append(say("layout.filled_dp", axis=filled, degree=rest, ranks=ranks))
    return zero, widths["dp_replicate"], widths["dp_shard"]


def _merge_dp_words(asked: _Asked) -> None:
    """Bring hsdp and Paddle's dp_degree to our keys, and refuse dp beside the words that make it up."""
    if "dp_degree" in asked.said:
        key = "dp_replicate" if "dp_shard" in asked.said else "dp"
        degree = asked.said.pop("dp_degree")
        asked.set(key, degree)
        _tell(asked, word=f"dp_degree = {degree}", meaning={key: degree})
    if "hsdp" in asked.said:
        replicate, shard = asked.said.pop("hsdp")
        asked.set("dp_replicate", replicate)
        asked.set("dp_shard", shard)
        asked.implied.setdefault("zero", 3)
    others = [key for key in ("dp_replicate", "dp_shard") if key in asked.said]
    if "dp" in asked.said and others:
        raise LayoutError("layout.dp_beside", dp=asked.said["dp"], others=", ".join(others))


def _axis_to_fill(widths: Mapping[str, int | str], *, is_sharded: bool) -> str | None:
    """The data-parallel axis that takes the ranks left over; None where both are said."""
    unsaid = [key for key, width in widths.items() if width == "fill"]
    if len(unsaid) == 2:
        return "dp_shard" if is_sharded else "dp_replicate"
    if unsaid == ["dp_shard"] and not is_sharded:
        return None  # whole copies were counted out, so there is nothing more to spread
    return unsaid[0] if unsaid else None


def _ranks_left(widths: Mapping[str, int | str], *, degrees: Mapping[str, int], ranks: int, may_fill: bool) -> int:
    """Ranks that the degrees leave for data parallel, checked to come out even."""
    factors = {key: degrees[key] for key in ("pp", "cp", "tp")}
    factors |= {key: width for key, width in widths.items() if isinstance(width, int)}
    product = 1
    for degree in factors.values():
        product *= degree
    if ranks % product == 0 and (may_fill or product == ranks):
        return ranks // product
    said = " * ".join(f"{key}={degree}" for key, degree in factors.items() if degree > 1) or "dp=1"
    near = "; ".join(_nearest_degrees(factors, ranks=ranks, product=product, may_fill=may_fill))
    raise LayoutError("layout.wrong_world", said=said, product=product, ranks=ranks, near=near)


def _nearest_degrees(factors: Mapping[str, int], *, ranks: int, product: int, may_fill: bool) -> list[str]:
    """Single changes that come out even, smallest change first; the ranks themselves are one."""
    changes: list[tuple[float, str]] = []
    for key, degree in factors.items():
        others = product // degree
        values = [n for n in range(1, ranks + 1) if ranks % (others * n) == 0 and (may_fill or others * n == ranks)]
        if values:
            best = min(values, key=lambda n, degree=degree: (abs(n - degree), n))  # type: ignore[misc]
            changes.append((max(best, degree) / min(best, degree), f"{key}={best}"))
    counts = (
        [product] if ranks < product or not may_fill else [ranks // product * product, -(-ranks // product) * product]
    )
    near = [change for _, change in sorted(changes)[:2]]
    return [*near, say("layout.that_many_ranks", counts="/".join(map(str, counts)))]
