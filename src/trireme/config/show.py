"""Settings as YAML that loads to the same settings, with or without where each value came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from trireme.config.document import PLAIN_SCALARS
from trireme.config.origin import Key, Origin, format_key
from trireme.config.root import RunConfig
from trireme.config.schema import Section

_WIDEST_COLUMN = 60


class _Dumper(yaml.SafeDumper):
    """Quotes a text that YAML 1.1 or 1.2 would take for something else: ``"off"``, ``"1e5"``."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Keep any text on one line: what has line breaks or control characters is written with escapes."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)

for _tag, _pattern in PLAIN_SCALARS.items():
    _Dumper.add_implicit_resolver(_tag, _pattern, None)


def format_yaml(config: RunConfig, *, origins: Mapping[str, Origin] | None = None) -> str:
    """Return all settings as YAML; ``origins`` puts ``# run.yaml:12`` and the like behind each."""
    lines = list(_section_lines(config, key=(), indent=0))
    if origins is None:
        return "".join(f"{text}\n" for text, _ in lines)
    column = min(max(len(text) for text, _ in lines), _WIDEST_COLUMN)
    return "".join(f"{text:<{column}}  # {origins[key]}\n" if key in origins else f"{text}\n" for text, key in lines)


def format_value(value: Any) -> str:
    """Return one value as YAML on one line."""
    text: str = yaml.dump(
        _plain(value), Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _section_lines(section: Section, *, key: Key, indent: int) -> Iterator[tuple[str, str]]:
    pad = " " * indent
    for name in type(section).model_fields:
        value, inner = getattr(section, name), (*key, name)
        if isinstance(value, Section):
            yield f"{pad}{name}:", ""
            yield from _section_lines(value, key=inner, indent=indent + 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"{pad}{name}:", ""
            for index, part in enumerate(value):
                yield from _item_lines(part, key=(*inner, index), indent=indent + 2)
        else:
            yield f"{pad}{name}: {format_value(value)}", format_key(inner)


def _item_lines(section: Section, *, key: Key, indent: int) -> Iterator[tuple[str, str]]:
    for number, (text, dotted) in enumerate(_section_lines(section, key=key, indent=indent + 2)):
        yield (text if number else f"{' ' * indent}- {text[indent + 2 :]}"), dotted


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value
