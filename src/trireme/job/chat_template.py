"""The Jinja template that turns a talk into the text a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from trireme.data import Tokenizer
from trireme.errors import ModelError
from trireme.job.folder_file import read_folder_file

Turn = Mapping[str, str]
"""``{"role": "user" | "assistant" | "system", "content": text}``."""

_MARK = "\ue000{}\ue001"
"""Stands for a turn's text while the template's own text is told apart from it; private-use characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template with the special tokens that it may write."""

    source: str
    origin: Path
    variables: Mapping[str, str]

    def render(self, turns: Sequence[Turn], *, add_generation_prompt: bool = True) -> str:
        """Return the whole text that the model reads next.

        Raises:
            ModelError: The template refuses these turns or has an error; its own words are given.
        """
        from jinja2.exceptions import TemplateError

        try:
            template = _environment().from_string(self.source)
            text: str = template.render(
                messages=[dict(turn) for turn in turns],
                add_generation_prompt=add_generation_prompt,
                **self.variables,
            )
        except (TemplateError, TypeError) as error:
            raise ModelError("generate.template_failed", path=self.origin, reason=error) from error
        return text

    def encode(self, turns: Sequence[Turn], *, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens of the talk so far; special tokens are the template's, never those of a turn's text."""
        if not any(_writes_special(turn["content"], tokenizer) for turn in turns):
            return tokenizer.encode(self.render(turns), parse_special=True)
        contents = [turn["content"] for turn in turns]
        marked = [{**turn, "content": _MARK.format(index)} for index, turn in enumerate(turns)]
        return list(_encode_apart(self.render(marked), contents, tokenizer=tokenizer))


def find_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the template in a tokenizer's folder: ``chat_template.jinja``, else in ``tokenizer_config.json``."""
    config = read_folder_file(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else _named(config.get("chat_template"))
    if not source:
        return None
    tokens = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}
    variables = {name: text for name, text in tokens.items() if text is not None}
    return ChatTemplate(source=source, origin=path if path.is_file() else path.parent, variables=variables)


def _named(entry: Any) -> str | None:
    """A template as text, or the one called ``default`` of a list."""
    if isinstance(entry, list):
        by_name = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        return by_name.get("default")
    return entry if isinstance(entry, str) else None


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _environment() -> Any:
    """A sandbox with what templates in the wild count on: the names that transformers gives them."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _refuse(message: str) -> NoReturn:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _writes_special(text: str, tokenizer: Tokenizer) -> bool:
    return tokenizer.encode(text, parse_special=True) != tokenizer.encode(text)


def _encode_apart(text: str, contents: Sequence[str], *, tokenizer: Tokenizer) -> Iterable[int]:
    """The template's text with its special tokens, each turn's text between as plain text."""
    rest = text
    for index, content in enumerate(contents):
        before, mark, after = rest.partition(_MARK.format(index))
        if mark:
            yield from tokenizer.encode(before, parse_special=True)
            yield from tokenizer.encode(content)
            rest = after
    yield from tokenizer.encode(rest, parse_special=True)
