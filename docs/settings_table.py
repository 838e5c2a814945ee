"""Write the tables of ``settings.md`` in both languages from the schema: keys, other tools' words, refused words.

``python docs/settings_table.py`` writes them; a test fails while a page differs from what this would write.
Types, defaults and ranges come from the schema and are the same in both languages; the Chinese meanings stand
in ``settings_zh.yaml`` beside the English ones they translate.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import PydanticUndefined

from trireme.config.alias import ALIASES, JOINT_MEANING, REFUSED
from trireme.config.keys import Field, all_fields
from trireme.config.show import format_value
from trireme.words import say

DOCS = Path(__file__).parent
LANGUAGES = ("en", "zh")
_HEADS = {
    "keys": {"en": ("key", "type", "default", "range", "meaning"), "zh": ("键", "类型", "默认值", "范围", "含义")},
    "words": {"en": ("here", "there"), "zh": ("本项目的键", "其他工具的叫法")},
    "refused": {"en": ("word", "instead"), "zh": ("词", "应改为")},
}
_TYPES = {"text": "str", "number": "float", "whole": "int", "boolean": "bool", "list": "list", "mapping": "dict"}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
_REPEATED = "data.eval_sources."
"""Keys of a held-out source are those of a source; the table shows them once."""


def described_keys() -> dict[str, Field]:
    """Return every key with a value of its own, by the name a user writes."""
    return {
        name.replace("data.sources.", "data.sources.N."): field
        for name, field in all_fields().items()
        if field.kind != "section" and not name.startswith(_REPEATED)
    }


@cache
def chinese_meanings() -> dict[str, dict[str, str]]:
    """Return for each key the English meaning that was translated and its translation."""
    meanings: dict[str, dict[str, str]] = yaml.safe_load((DOCS / "settings_zh.yaml").read_text(encoding="utf-8"))
    return meanings


def page_path(language: str) -> Path:
    """Return where the page is."""
    return DOCS / "guide" / language / "settings.md"


def fill(page: str, *, language: str) -> str:
    """Return the page with its tables as the schema has them now."""
    for name, table in (("keys", _key_tables), ("words", _word_table), ("refused", _refused_table)):
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, found, rest = page.partition(begin)
        after = rest.partition(end)[2]
        if not found or end not in rest:
            raise ValueError(f"the page has no place for {name}")
        page = before + begin + "\n" + "\n".join(table(language)) + "\n\n" + end + after
    return page


def _key_tables(language: str) -> Iterator[str]:
    section = ""
    for name, field in described_keys().items():
        if name.partition(".")[0] != section:
            if section:
                yield ""
            section = name.partition(".")[0]
            yield f"### `{section}`"
            yield ""
            yield from _head("keys", language)
        yield _row(f"`{name}`", _type(field), _default(field), _range(field), _meaning(name, field, language))


def _word_table(language: str) -> Iterator[str]:
    words: dict[str, list[str]] = {}
    for word, key in {word: alias.key for word, alias in ALIASES.items()}.items():
        words.setdefault(key, []).append(word)
    for word, key in JOINT_MEANING.items():
        words.setdefault(key, []).append(word)
    order = list(all_fields())
    yield from _head("words", language)
    for key in sorted(words, key=order.index):
        yield _row(f"`{key}`", ", ".join(f"`{word}`" for word in words[key]))


def _refused_table(language: str) -> Iterator[str]:
    by_sentence: dict[str, list[str]] = {}
    for word, sentence in REFUSED.items():
        by_sentence.setdefault(sentence, []).append(word)
    yield from _head("refused", language)
    for sentence, words in by_sentence.items():
        yield _row(", ".join(f"`{word}`" for word in words), _said(f"config.not_{sentence}", language, key=words[0]))


def _said(sentence: str, language: str, /, **values: str) -> str:
    before = os.environ.get("TRIREME_LANG")
    os.environ["TRIREME_LANG"] = language
    try:
        return say(sentence, **values)
    finally:
        if before is None:
            del os.environ["TRIREME_LANG"]
        else:
            os.environ["TRIREME_LANG"] = before


def _head(table: str, language: str) -> Iterator[str]:
    heads = _HEADS[table][language]
    yield _row(*heads)
    yield _row(*("---" for _ in heads))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(field: Field) -> str:
    if field.kind == "choice":
        return " ".join(f"`{choice}`" for choice in field.choices)
    return "list" if field.kind == "sections" else _TYPES[field.kind]


def _default(field: Field) -> str:
    default = field.info.default
    return "" if default is PydanticUndefined else f"`{format_value(default)}`"


def _range(field: Field) -> str:
    return ", ".join(
        f"{sign} {_number(getattr(rule, name))}"
        for name, sign in _BOUNDS
        for rule in field.info.metadata
        if hasattr(rule, name)
    )


def _number(value: Any) -> str:
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value > 1 << 20 else f"{value:g}"


def _meaning(name: str, field: Field, language: str) -> str:
    return (field.info.description or "") if language == "en" else chinese_meanings()[name]["zh"]


def main() -> None:
    """Write both pages."""
    for language in LANGUAGES:
        path = page_path(language)
        path.write_text(fill(path.read_text(encoding="utf-8"), language=language), encoding="utf-8")


if __name__ == "__main__":
    main()
