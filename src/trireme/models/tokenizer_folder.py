"""The tokenizer's files in a model folder: copied as they are, special ids read from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trireme.errors import ModelError
from trireme.models.llama_config import SpecialIds

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer's files that ``source`` has into ``folder``."""
    for name in _FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def read_special_ids(source: Path) -> SpecialIds:
    """Read the ids of begin, end and padding token from the tokenizer's files.

    Raises:
        ModelError: A file is there and can't be read.
    """
    config = _read(source / "tokenizer_config.json")
    ids = {
        str(token["content"]): int(token["id"]) for token in _read(source / "tokenizer.json").get("added_tokens", [])
    }
    return SpecialIds(
        bos_id=ids.get(_content(config.get("bos_token"))),
        eos_id=ids.get(_content(config.get("eos_token"))),
        pad_id=ids.get(_content(config.get("pad_token"))),
    )


def _content(token: Any) -> str:
    """A special token is a text, or an object with one."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError("model.folder_config_bad", path=path, reason=error) from error
    return value if isinstance(value, dict) else {}
