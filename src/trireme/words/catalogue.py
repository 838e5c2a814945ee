"""Look up a sentence by key and fill it in, in the user's language.

A key is ``<page>.<name>``; the page is a module beside this one whose ``TEXTS`` maps names to
``Text(en=..., zh=...)``. Pages load on first use, so a command pays only for the words it says.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One sentence in both languages; placeholders are ``str.format`` fields of equal names."""

    en: str
    zh: str


def language() -> str:
    """Return ``"zh"`` or ``"en"``: ``TRIREME_LANG`` decides, else the locale variables, else English."""
    for variable in ("TRIREME_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable, "")
        if value:
            return "zh" if value.lower().startswith(("zh", "chinese")) else "en"
    return "en"


def say(key: str, /, **values: object) -> str:
    """Return the sentence ``key`` in the user's language, with ``values`` filled in.

    Raises:
        KeyError: The catalogue has no such key (a programming error; a test forbids it).
    """
    page, _, name = key.partition(".")
    text = _page(page)[name]
    return (text.zh if language() == "zh" else text.en).format(**values)


@cache
def _page(name: str) -> dict[str, Text]:
    texts: dict[str, Text] = importlib.import_module(f"trireme.words.{name}").TEXTS
    return texts
