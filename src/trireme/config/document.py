"""Read YAML so that every key keeps its line and a number is what a person takes for one.

YAML 1.1, which PyYAML follows, reads ``2e-5`` as text and ``off`` as false. Here plain scalars
follow YAML 1.2: ``true``/``false`` alone are booleans, ``2e-5`` and ``1e6`` are numbers, and a date
stays text. Keys given twice, tags and recursive anchors are errors, each with its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trireme.config.origin import format_key
from trireme.errors import ConfigError

_MAX_NODES = 100_000  # anchors can make a small file expand without bound
_MAX_DEPTH = 64

_TAG = "tag:yaml.org,2002:"
_PLAIN = {
    "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    "int": re.compile(r"^[-+]?[0-9][0-9_]*$"),
    "float": re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    "merge": re.compile(r"^<<$"),
}
PLAIN_SCALARS = {_TAG + name: pattern for name, pattern in _PLAIN.items()}
"""Which plain scalars are something other than text, by YAML tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value with its line; ``text`` is how a plain scalar was written."""

    value: bool | int | float | str | list[Node] | dict[str, Node] | None
    line: int | None = None
    text: str | None = None

    def plain(self) -> Any:
        """Return the value as ordinary Python data."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The C parser (where there is one) with YAML 1.2's idea of plain scalars."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML looks it up on the class


for _tag, _pattern in PLAIN_SCALARS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, None)


def read_document(path: Path) -> Node:
    """Return the tree of a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: The file can't be read, is not UTF-8 or not YAML; with file and line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    except IsADirectoryError:
        example = next(iter(sorted(path.glob("*.yaml"))), path / "run.yaml")
        raise ConfigError("config.is_folder", path=path, example=example) from None
    except OSError as error:
        raise ConfigError("config.unreadable", path=path, reason=error.strerror or error) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError("config.not_utf8", place=f"{path}:{line}", byte=f"0x{data[error.start]:02x}") from None
    return parse_document(text, file=str(path))


def parse_document(text: str, *, file: str) -> Node:
    """Return the tree of a YAML text; ``file`` names it in messages."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _broken(error, text=text, file=file) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            "config.broken_yaml", place=_place_of_control(text, file), reason=_first_line(error)
        ) from None
    if root is None:
        return Node(value={}, line=1)
    return _Builder(file).build(root)


def parse_value(text: str, *, place: str) -> Node:
    """Return the tree of a YAML value that stands in no file; nothing at all is null."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or _first_line(error)
        raise ConfigError("config.broken_value", place=place, value=text, reason=reason) from None
    return Node(value=None) if root is None else _Builder(place, has_lines=False).build(root)


def node_from_python(value: Any) -> Node:
    """Return a tree without lines from Python data, for settings given in a program."""
    if isinstance(value, Mapping):
        return Node(value={str(key): node_from_python(part) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return Node(value=[node_from_python(part) for part in value])
    if isinstance(value, Path):
        return Node(value=str(value))
    return Node(value=value)


class _Builder:
    """Turns PyYAML's nodes into ours, refusing what would be lost or guessed."""

    def __init__(self, file: str, *, has_lines: bool = True) -> None:
        self._file = file
        self._has_lines = has_lines
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: yaml.Node) -> Node:
        self._count += 1
        if id(node) in self._open or self._count > _MAX_NODES:
            raise ConfigError("config.endless_anchor", place=self._place(node))
        if len(self._open) >= _MAX_DEPTH:
            raise ConfigError("config.too_deep", place=self._place(node), depth=_MAX_DEPTH)
        self._open.add(id(node))
        try:
            return self._build(node)
        finally:
            self._open.discard(id(node))

    def _build(self, node: yaml.Node) -> Node:
        line = self._line(node)
        if isinstance(node, yaml.ScalarNode):
            return Node(value=self._scalar(node), line=line, text=node.value)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return Node(value=[self.build(part) for part in node.value], line=line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return Node(value=self._mapping(node), line=line)
        raise ConfigError("config.tag", place=self._place(node), tag=node.tag)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            value = self.build(value_node)
            if key_node.tag == _TAG + "merge":
                merged = {**self._merge(value, key_node), **merged}
                continue
            if key_node.tag != _TAG + "str":
                raise ConfigError("config.key_not_text", place=self._place(key_node), key=_as_written(key_node))
            key = key_node.value
            if key in own:
                first = f"{self._file}:{own[key].line}" if self._has_lines else self._file
                raise ConfigError("config.duplicate", place=self._place(key_node), key=format_key((key,)), first=first)
            own[key] = Node(value=value.value, line=self._line(key_node), text=value.text)
        return {**merged, **own}

    def _merge(self, value: Node, key_node: yaml.Node) -> dict[str, Node]:
        parts = value.value if isinstance(value.value, list) else [value]
        merged: dict[str, Node] = {}
        for part in parts:
            if not isinstance(part.value, dict):
                raise ConfigError("config.merge_key", place=self._place(key_node))
            merged = {**part.value, **merged}
        return merged

    def _scalar(self, node: yaml.ScalarNode) -> bool | int | float | str | None:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        if kind == "str" or kind == "merge":
            return str(text)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text.replace("_", ""))
            if kind == "float":
                return _float(text)
        except (KeyError, ValueError):
            raise ConfigError("config.no_such_value", place=self._place(node), value=_cut(text), kind=kind) from None
        raise ConfigError("config.tag", place=self._place(node), tag=node.tag)

    def _place(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}" if self._has_lines else self._file

    def _line(self, node: yaml.Node) -> int | None:
        return node.start_mark.line + 1 if self._has_lines else None


def _float(text: str) -> float:
    text = text.replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _as_written(node: yaml.Node) -> str:
    """Return a key as a person sees it in the file."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "[...]" if isinstance(node, yaml.SequenceNode) else "{...}"


def _cut(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _first_line(error: yaml.YAMLError) -> str:
    return str(error).splitlines()[0]


def _place_of_control(text: str, file: str) -> str:
    """Return the line of the first character that YAML has no room for, which its parser gives no line for."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    return f"{file}:{text.count(chr(10), 0, found.start()) + 1}" if found else file


def _missing(path: Path) -> ConfigError:
    from trireme.config.suggest import closest

    folder = path.parent
    try:
        nearby = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        return ConfigError("config.no_file", path=path)
    guess = closest(path.name, nearby, cutoff=0.5)
    return (
        ConfigError("config.no_file_guess", path=path, guess=folder / guess)
        if guess
        else ConfigError("config.no_file", path=path)
    )


def _broken(error: yaml.MarkedYAMLError, *, text: str, file: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines() or [""]
    line = min(mark.line + 1 if mark else 1, len(lines))  # an end that came too soon is marked behind the last line
    written = lines[line - 1]
    indent = written[: len(written) - len(written.lstrip())]
    place = f"{file}:{line}"
    if "\t" in indent:
        return ConfigError("config.tab", place=place)
    return ConfigError("config.broken_yaml", place=place, reason=error.problem or error.context or "")
