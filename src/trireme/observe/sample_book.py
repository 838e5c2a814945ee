"""``samples.md``: what the model wrote as it learned, for people to read through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trireme.observe.atomic import write_atomic
from trireme.observe.strict_json import read_jsonl


def write_book(folder: Path) -> None:
    """Write ``samples.md`` anew from ``samples.jsonl``."""
    entries = read_jsonl(folder / "samples.jsonl")
    if entries or (folder / "samples.md").exists():
        write_atomic(folder / "samples.md", "".join(format_entry(entry) for entry in entries))


def format_entry(fields: Mapping[str, Any]) -> str:
    """Return one sample as Markdown; the fence is longer than any run of backticks in the text."""
    text = f"{fields['prompt']}{fields['text']}"
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"## step {fields['step']}\n\n{fence}text\n{text}\n{fence}\n\n"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
