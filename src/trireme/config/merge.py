"""Layers of settings become one tree: default < Python < file < command line.

Each layer is flattened into settings (key, value, origin). On the way short forms are written out
(``precision: bf16``) and other tools' words are read (``alias.py``). Sections merge key by key;
lists and free mappings are replaced whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from trireme.config.alias import ALIASES, JOINT, JOINT_MEANING, REFUSED, Alias, UnreadableError, known_words
from trireme.config.document import Node, node_from_python, parse_value
from trireme.config.keys import SHORT_FORM, Field, find_field, nearest_key
from trireme.config.origin import Key, Layer, Origin, format_key
from trireme.config.problem import Problem, show
from trireme.config.root import RunConfig
from trireme.config.schema import number_from_text
from trireme.errors import ConfigError
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key with its value. ``starts_list`` empties a list of sections before its items follow."""

    key: Key
    value: Any
    origin: Origin
    starts_list: bool = False


@dataclass(slots=True, kw_only=True)
class Flat:
    """A layer, flattened: what it sets, what it implies, what must be read together, what is wrong."""

    layer: Layer
    file: str | None = None
    settings: list[Setting] = field(default_factory=list)
    implied: list[Setting] = field(default_factory=list)
    joint: dict[str, Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def origin(self, node: Node, *, alias: str | None = None) -> Origin:
        """Return where ``node`` stands."""
        return Origin(layer=self.layer, file=self.file, line=node.line, alias=alias)


_NULL_OR_QUOTED = r"""["']|(?:~|null|Null|NULL)$"""
_YAML_NOT_TEXT = {
    "text": re.compile(_NULL_OR_QUOTED),
    "choice": re.compile(_NULL_OR_QUOTED),
    "list": re.compile(rf"\[|{_NULL_OR_QUOTED}"),
    "sections": re.compile(rf"[\[{{]|{_NULL_OR_QUOTED}"),
}
"""For keys that take texts, how a value begins that is to be read as YAML all the same."""
_TEXTS = frozenset(_YAML_NOT_TEXT)


def flatten(root: Node, *, layer: Layer, file: str | None = None) -> Flat:
    """Return the settings of a whole document."""
    flat = Flat(layer=layer, file=file)
    if not isinstance(root.value, dict):
        name = "root_mapping"
        flat.problems.append(Problem(origin=flat.origin(root), name=name, values={"value": show(root.plain())}))
        return flat
    for name, node in root.value.items():
        _add((name,), node, flat=flat)
    _check_conflicts(flat)
    return flat


def flatten_overrides(overrides: list[str] | tuple[str, ...]) -> Flat:
    """Return the settings of ``key=value`` words; values are YAML, an empty one is null."""
    flat = Flat(layer="command line")
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ConfigError("config.not_override", given=override)
        key = _parse_key(name.strip())
        _add(key, _override_value(key, text.strip()), flat=flat)
    _check_conflicts(flat)
    return flat


def _override_value(key: Key, text: str) -> Node:
    """Return a value as YAML has it, but a bare text as written: a shell has eaten the quotes of ``*.txt``."""
    alias = ALIASES.get(str(key[-1])) if find_field(key) is None else None
    found = find_field(tuple(alias.key.split(".")) if alias else key)
    if found is not None and found.kind in _TEXTS and text and not _YAML_NOT_TEXT[found.kind].match(text):
        return Node(value=text, text=text)
    return parse_value(text, place=say("config.from_command_line"))


def _parse_key(name: str) -> Key:
    key: Key = ()
    for part in name.split("."):
        above = find_field(key) if key else None
        is_index = part.isdecimal() and above is not None and above.kind in ("sections", "list")
        key = (*key, int(part) if is_index else part)
    return key


def _add(key: Key, node: Node, *, flat: Flat, alias: str | None = None) -> None:
    found = find_field(key)
    if found is None or _list_without_index(key) is not None:
        _add_foreign(key, node, flat=flat)
    elif found.kind == "section":
        _add_section(key, node, flat=flat, alias=alias)
    elif found.kind == "sections":
        add = _add_section if isinstance(key[-1], int) else _add_list
        add(key, node, flat=flat, alias=alias)
    else:
        value = _leaf_value(found, node, key=key, flat=flat)
        flat.settings.append(Setting(key=key, value=value, origin=flat.origin(node, alias=alias)))


def _add_section(key: Key, node: Node, *, flat: Flat, alias: str | None = None) -> None:
    short = SHORT_FORM.get(next(part for part in reversed(key) if isinstance(part, str)))
    if isinstance(node.value, dict):
        if isinstance(key[-1], int):
            flat.settings.append(Setting(key=key, value={}, origin=flat.origin(node, alias=alias)))
        for name, part in node.value.items():
            _add((*key, name), part, flat=flat)
    elif short and (isinstance(node.value, str) or (isinstance(node.value, bool) and key[-1] == "recompute")):
        _add((*key, short), node, flat=flat, alias=alias)
    elif node.value is not None or flat.layer == "command line" or isinstance(key[-1], int):
        values = {"key": format_key(key), "value": show(node.plain()), "short": short}
        name = "want_section_or_text" if short else "want_section"
        flat.problems.append(Problem(origin=flat.origin(node), name=name, values=values))


def _add_list(key: Key, node: Node, *, flat: Flat, alias: str | None = None) -> None:
    parts = [] if node.value is None else node.value if isinstance(node.value, list) else [node]
    origin = flat.origin(node, alias=alias)
    flat.settings.append(Setting(key=key, value=[part.plain() for part in parts], origin=origin, starts_list=True))
    for index, part in enumerate(parts):
        _add((*key, index), part, flat=flat, alias=alias)


def _leaf_value(found: Field, node: Node, *, key: Key, flat: Flat) -> Any:
    """Return the value; a shell strips quotes, so text keys take ``run.dir=2024`` as written."""
    takes_text = found.kind in ("text", "choice", "list")
    if flat.layer == "command line" and takes_text:
        value: Any = [_as_written(part) for part in node.value] if isinstance(node.value, list) else _as_written(node)
    else:
        value = node.plain()
    whole_list = found.kind == "list" and not isinstance(key[-1], int)
    return [value] if whole_list and isinstance(value, str) else value


def _as_written(node: Node) -> Any:
    return node.plain() if node.text is None or node.value is None else node.text


def _add_foreign(key: Key, node: Node, *, flat: Flat) -> None:
    """Read another tool's word, at the top level or in the section it belongs to; else say what is unknown."""
    word, section = key[-1], key[0] if len(key) == 2 else None
    alias = ALIASES.get(str(word))
    if len(key) <= 2 and alias is not None and section in (None, alias.section):
        _add_alias(alias, node, flat=flat)
    elif len(key) <= 2 and word in JOINT and section in (None, JOINT[str(word)]):
        _add_joint(str(word), node, flat=flat)
    elif len(key) <= 2 and word in REFUSED:
        values = {"key": format_key(key)}
        flat.problems.append(Problem(origin=flat.origin(node), name=f"not_{REFUSED[str(word)]}", values=values))
    else:
        flat.problems.append(_unknown(key, origin=flat.origin(node)))


def _add_alias(alias: Alias, node: Node, *, flat: Flat) -> None:
    origin = flat.origin(node, alias=alias.word)
    try:
        reading = alias.read(node.plain())
    except UnreadableError as error:
        values = {"key": alias.word, "value": show(node.plain())}
        flat.problems.append(Problem(origin=origin, name=f"not_{error}", values=values))
        return
    value = node_from_python(reading.value)
    same_text = node.text if reading.value == node.value else None
    moved = node if reading.value == node.plain() else Node(value=value.value, line=node.line, text=same_text)
    _add(tuple(alias.key.split(".")), moved, flat=flat, alias=alias.word)
    flat.notices.append(say("config.read_as", place=origin.place, word=alias.word, key=alias.key))
    for key, implied in reading.implied.items():
        flat.implied.append(Setting(key=tuple(key.split(".")), value=implied, origin=origin))


def _add_joint(word: str, node: Node, *, flat: Flat) -> None:
    setting = Setting(key=(word,), value=node.plain(), origin=flat.origin(node, alias=word))
    first = flat.joint.setdefault(word, setting)
    if first is not setting and flat.layer == "command line":
        _say_repeated(setting, flat=flat)
        flat.joint[word] = setting
    elif first is not setting and not _same_value(first.value, setting.value):
        flat.problems.append(_conflict(first, setting, key=JOINT_MEANING[word]))


def _unknown(key: Key, *, origin: Origin) -> Problem:
    if (listed := _list_without_index(key)) is not None:
        return Problem(origin=origin, name="want_index", values={"key": format_key(key), "list": format_key(listed)})
    guess = nearest_key(key, words=known_words())
    values = {"key": format_key(key), "guess": guess}
    if guess:
        return Problem(origin=origin, name="unknown_guess", values=values)
    above = find_field(key[:-1]) if len(key) > 1 else None
    if above is not None and above.section is not None:
        values |= {"section": format_key(key[:-1]), "keys": ", ".join(above.section.model_fields)}
        return Problem(origin=origin, name="unknown_in", values=values)
    values["keys"] = ", ".join(RunConfig.model_fields)
    return Problem(origin=origin, name="unknown_section", values=values)


def _list_without_index(key: Key) -> Key | None:
    """Return the list that ``key`` passes through without saying which item."""
    for end in range(1, len(key)):
        above = find_field(key[:end])
        is_list = above is not None and above.kind in ("sections", "list") and not isinstance(key[end - 1], int)
        if is_list and not isinstance(key[end], int):
            return key[:end]
    return None


def _check_conflicts(flat: Flat) -> None:
    """One key said twice in a layer, by an alias and by itself, must be said alike."""
    seen: dict[Key, Setting] = {}
    for setting in flat.settings:
        if not _is_whole(setting):
            continue
        first = seen.setdefault(setting.key, setting)
        if first is setting:
            continue
        if flat.layer == "command line" and first.origin.alias == setting.origin.alias:
            _say_repeated(setting, flat=flat)
        elif not _same_value(first.value, setting.value):
            flat.problems.append(_conflict(first, setting, key=format_key(setting.key)))


def _same_value(one: Any, other: Any) -> bool:
    """``"2e-3"`` and ``0.002`` are one number."""
    return bool(number_from_text(one) == number_from_text(other))


def _conflict(first: Setting, second: Setting, *, key: str) -> Problem:
    one, other = (f"{given.origin.alias or format_key(given.key)} = {show(given.value)}" for given in (first, second))
    return Problem(origin=second.origin, name="conflict", values={"key": key, "one": one, "other": other})


def _is_whole(setting: Setting) -> bool:
    """Items of lists follow their list, which is what is compared."""
    return not any(isinstance(part, int) for part in setting.key)


def _say_repeated(setting: Setting, *, flat: Flat) -> None:
    key = setting.origin.alias or format_key(setting.key)
    flat.notices.append(say("config.repeated", place=setting.origin.place, key=key, value=show(setting.value)))


class Tree:
    """The merged values, nested as the sections are, and where each came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Key, Origin] = {}
        self.problems: list[Problem] = []

    def apply(self, setting: Setting) -> None:
        """Put one setting in; a later one replaces an earlier one."""
        holder: Any = self.values
        for part, following in zip(setting.key, setting.key[1:], strict=False):
            holder = self._step(holder, part, empty=[] if isinstance(following, int) else {}, setting=setting)
            if holder is None:
                return
        if not self._has_room(holder, setting.key[-1], setting=setting):
            return
        self._forget(setting.key)
        self.origins[setting.key] = setting.origin
        value = [] if setting.starts_list else setting.value
        if isinstance(holder, list) and setting.key[-1] == len(holder):
            holder.append(value)
        else:
            holder[setting.key[-1]] = value

    def get(self, key: str) -> Any:
        """Return the value set for a dotted key of two parts, or None."""
        section, _, name = key.partition(".")
        return self.values.get(section, {}).get(name)

    def origin(self, key: str) -> Origin | None:
        """Return where the value of a dotted key came from, or None if nothing set it."""
        return self.origins.get(tuple(key.split(".")))

    def _step(self, holder: Any, part: str | int, *, empty: Any, setting: Setting) -> Any:
        if not self._has_room(holder, part, setting=setting):
            return None
        if isinstance(holder, list):
            if part == len(holder):
                holder.append(empty)
        elif holder.get(part) is None:
            holder[part] = empty
        return holder[part]

    def _has_room(self, holder: Any, part: str | int, *, setting: Setting) -> bool:
        fits = isinstance(holder, dict) if isinstance(part, str) else isinstance(holder, list) and part <= len(holder)
        if not fits:
            length = len(holder) if isinstance(holder, list) else 0
            values = {"key": format_key(setting.key), "length": length}
            self.problems.append(Problem(origin=setting.origin, name="beyond_list", values=values))
        return fits

    def _forget(self, key: Key) -> None:
        for other in [other for other in self.origins if other[: len(key)] == key]:
            del self.origins[other]
