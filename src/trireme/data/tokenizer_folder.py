"""Load a Hugging Face tokenizer: a ``tokenizer.json`` or a folder with one, and find its special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trireme.data.tokenizer import Specials, Tokenizer
from trireme.errors import DataError
from trireme.words import say

_USUAL_BEGIN = ("<|begin|>", "<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[CLS]")
_USUAL_END = ("<|end|>", "</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", "<｜end▁of▁sentence｜>", "[SEP]")
_USUAL_PAD = ("<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<unk>")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer in ``path``, a ``tokenizer.json`` or a folder that holds one.

    Begin, end and pad token come from ``tokenizer_config.json``, ``special_tokens_map.json`` or ``config.json``
    beside it, else from the names that are usual; ``specials_from`` of the tokenizer says which.

    Raises:
        DataError: It is missing, damaged, or of a form that can't be read.
    """
    path = Path(path).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise _missing(path)
    try:
        text = file.read_text(encoding="utf-8")
        tokenizer = Tokenizer(text, origin=str(file))
    except Exception as error:  # the library raises bare Exception for whatever it can't parse
        reason = " ".join(str(error).split())[:200]
        raise DataError("data.tokenizer_damaged", path=file, reason=reason or type(error).__name__) from error
    if not tokenizer.vocab_size:
        raise DataError("data.tokenizer_damaged", path=file, reason=say("data.no_token_in_it"))
    return tokenizer.with_specials(_find_specials(file.parent, tokenizer))


def _missing(path: Path) -> DataError:
    if not path.is_dir():
        return DataError("data.tokenizer_missing", path=path)
    other = [n for n in ("tokenizer.model", "vocab.json", "vocab.txt", "qwen.tiktoken") if (path / n).is_file()]
    if other:
        return DataError("data.tokenizer_other_form", path=path, found=", ".join(other))
    return DataError("data.tokenizer_missing", path=path / "tokenizer.json")


def _find_specials(folder: Path, tokenizer: Tokenizer) -> Specials:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        ids = _named_ids(_read_json(folder / name), tokenizer)
        if ids:
            return Specials(origin=name, ids=ids)
    ids = _numbered_ids(_read_json(folder / "config.json"), tokenizer)
    if ids:
        return Specials(origin="config.json", ids=ids)
    usual = {"bos": _USUAL_BEGIN, "eos": _USUAL_END, "pad": _USUAL_PAD}
    found = {kind: tokenizer.first_id(names) for kind, names in usual.items()}
    return Specials(origin="usual names", ids={kind: i for kind, i in found.items() if i is not None})


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("data.tokenizer_damaged", path=path, reason=error) from error
    return content if isinstance(content, dict) else {}


def _named_ids(content: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, int]:
    ids = {}
    for kind in ("bos", "eos", "pad"):
        named = content.get(f"{kind}_token")
        token = named.get("content") if isinstance(named, dict) else named
        token_id = tokenizer.first_id([token]) if isinstance(token, str) else None
        if token_id is not None:
            ids[kind] = token_id
    return ids


def _numbered_ids(content: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, int]:
    ids = {}
    for kind in ("bos", "eos", "pad"):
        value = content.get(f"{kind}_token_id")
        value = value[0] if isinstance(value, list) and value else value  # several end tokens: the first ends a text
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < tokenizer.vocab_size:
            ids[kind] = value
    return ids
