"""Text to token ids and back, exactly: a thin hold on a Hugging Face ``tokenizer.json``.

Three things the bare library leaves to chance are settled here: special tokens written out in a text are
plain text unless asked for, nothing is added, cut or padded by settings hidden in the file, and byte-level
vocabularies are decoded by their bytes, so that a word of a user's dictionary decodes to itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from trireme.data.decode import ByteDecoder, PieceDecoder, StreamDecoder, bytes_of_vocabulary
from trireme.data.shard import disk_errors
from trireme.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

LONG_TEXT_CHARACTERS = 1 << 20
"""A longer text is encoded in pieces where that provably changes nothing; the library keeps some 100 bytes a token."""
_CONTEXT_CHARACTERS = 128
_RARE = "\U0002a6a5"
"""A character that is in no vocabulary unless every text can be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentIds:
    """The tokens of one document; the first ``prompt_length`` of them are read but not learned."""

    ids: list[int]
    prompt_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Specials:
    """Ids of the special tokens (``bos``, ``eos``, ``pad``), as far as ``origin`` names them."""

    origin: str
    ids: dict[str, int]


class Tokenizer:
    """Encodes and decodes with one ``tokenizer.json``; knows its special tokens and its fingerprint.

    Args:
        text: The content of a ``tokenizer.json``.
        bos_id: The begin token, if there is one.
        eos_id: The end token, if there is one.
        pad_id: What fills a row; never learned, so any id serves where the vocabulary has no pad token.
        origin: Where it comes from, for messages.
        specials_from: What named the special tokens, for messages.
    """

    def __init__(
        self,
        text: str,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        pad_id: int = 0,
        origin: str = "",
        specials_from: str = "",
    ) -> None:
        self._engine = _load_engine(text, parse_special=False)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.pad_id = pad_id
        self.origin = origin
        self.specials_from = specials_from
        self.vocab_size: int = max(self._engine.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.text, self.bos_id, self.eos_id, self.pad_id, self.origin, self.specials_from)
        return _rebuild, values

    def with_specials(self, specials: Specials) -> Tokenizer:
        """Return the same tokenizer with other special tokens; without a pad token rows are filled with the end."""
        found = object.__new__(Tokenizer)  # shares the engine: a large vocabulary takes a second to load
        found.__dict__.update(self.__dict__)
        for cached in ("fingerprint", "special_ids"):
            found.__dict__.pop(cached, None)
        ids = specials.ids
        found.bos_id, found.eos_id = ids.get("bos"), ids.get("eos")
        found.pad_id = ids.get("pad", ids.get("eos", 0))
        found.specials_from = specials.origin
        return found

    @cached_property
    def text(self) -> str:
        """The canonical ``tokenizer.json``: sorted keys, without truncation and padding."""
        content = json.loads(self._engine.to_str())
        return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @cached_property
    def fingerprint(self) -> str:
        """xxh3-128 (hex) of the canonical content and the special ids: equal only for equal token streams."""
        specials = json.dumps([self.bos_id, self.eos_id, self.pad_id])
        return xxhash.xxh3_128_hexdigest((self.text + specials).encode("utf-8", "surrogatepass"))

    @cached_property
    def _parsing_engine(self) -> Engine:
        return _load_engine(self.text, parse_special=True)

    @cached_property
    def _bytes_by_id(self) -> list[bytes] | None:
        return bytes_of_vocabulary(json.loads(self.text), size=self.vocab_size)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that are marks rather than text."""
        added = self._engine.get_added_tokens_decoder()
        named = {i for i in (self.bos_id, self.eos_id) if i is not None}
        return frozenset({i for i, token in added.items() if token.special} | named)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of ``text``; begin and end tokens are never added."""
        return self.encode_batch([text], parse_special=parse_special)[0]

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """Return the ids of each text, equal to encoding it alone.

        Raises:
            DataError: A text holds half a character (a lone surrogate).
        """
        engine = self._parsing_engine if parse_special else self._engine
        if any(len(text) > LONG_TEXT_CHARACTERS for text in texts):
            return [self._encode_long(engine, text) for text in texts]
        try:
            return [encoding.ids for encoding in engine.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError as error:  # what the library makes of half a character, e.g. from a terminal
            raise _half_character(texts) from error

    def _encode_long(self, engine: Engine, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _safe_pieces(engine, text):
            ids.extend(engine.encode_batch_fast([piece], add_special_tokens=False)[0].ids)
        return ids

    def document_ids(
        self, text: str, *, prompt: str = "", add_bos: bool, add_eos: bool, parse_special: bool = False
    ) -> DocumentIds:
        """Return a document's tokens with one begin and one end token where asked, never two.

        The prompt is encoded apart from the text, so what is learned doesn't depend on how the two would merge.
        """
        parts = [prompt, text] if prompt else [text]
        ids = self.encode_batch(parts, parse_special=parse_special)
        return self.join(ids[-1], prompt_ids=ids[0] if prompt else [], add_bos=add_bos, add_eos=add_eos)

    def join(self, text_ids: list[int], *, prompt_ids: Sequence[int] = (), add_bos: bool, add_eos: bool) -> DocumentIds:
        """Put prompt and text together; a begin or end token already written there is not repeated."""
        ids = [*prompt_ids, *text_ids] if prompt_ids else text_ids
        prompt_length = len(prompt_ids)
        if add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids = [self.bos_id, *ids]
            prompt_length += bool(prompt_ids)
        if add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids = [*ids, self.eos_id]
        return DocumentIds(ids=ids, prompt_length=prompt_length)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        if self._bytes_by_id is None:
            return str(self._engine.decode(list(ids), skip_special_tokens=skip_special))
        skipped = self.special_ids if skip_special else frozenset()
        table = self._bytes_by_id
        return b"".join([table[i] for i in ids if i not in skipped]).decode("utf-8", "replace")

    def stream_decoder(self, *, skip_special: bool = True) -> StreamDecoder:
        """Return a decoder that takes one id at a time and never shows half a character."""
        skipped = self.special_ids if skip_special else frozenset()
        if self._bytes_by_id is not None:
            return ByteDecoder(self._bytes_by_id, skipped=skipped)
        return PieceDecoder(lambda ids: self.decode(ids, skip_special=skip_special))

    def first_id(self, names: Iterable[str]) -> int | None:
        """Return the id of the first of ``names`` that is a token, or None."""
        ids = (self._engine.token_to_id(name) for name in names)
        return next((i for i in ids if i is not None), None)

    @cached_property
    def loses(self) -> str:
        """What becomes of a character outside the vocabulary: nothing is lost (empty), ``unknown`` or ``vanish``."""
        if self._bytes_by_id is not None or self.decode(self.encode(_RARE), skip_special=False).strip() == _RARE:
            return ""
        return "unknown" if self.encode(_RARE) else "vanish"

    def token_text(self, token_id: int) -> str:
        """Return one token as a person may read it: its text, or its bytes where it is part of a character."""
        if self._bytes_by_id is None:
            return str(self._engine.id_to_token(token_id))
        raw = self._bytes_by_id[token_id]
        return raw.decode("utf-8", "backslashreplace")

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json`` as transformers reads them."""
        with disk_errors(folder, needed_bytes=len(self.text)):
            folder.mkdir(parents=True, exist_ok=True)
            self._write(folder)

    def _write(self, folder: Path) -> None:
        names = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
        }
        config |= {name: self._engine.id_to_token(i) for name, i in names.items() if i in self.special_ids}
        (folder / "tokenizer.json").write_text(self.text, encoding="utf-8")
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _rebuild(text: str, bos_id: int | None, eos_id: int | None, pad_id: int, origin: str, source: str) -> Tokenizer:
    return Tokenizer(text, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id, origin=origin, specials_from=source)


def _load_engine(text: str, *, parse_special: bool) -> Engine:
    from tokenizers import Tokenizer as Engine

    engine = Engine.from_str(text)
    # A file may carry the settings of its last training; they would cut and pad documents without a word.
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = not parse_special
    return engine


def _half_character(texts: Sequence[str]) -> DataError:
    for text in texts:
        half = next((character for character in text if "\ud800" <= character <= "\udfff"), "")
        if half:
            return DataError("data.surrogate_text", text=text[:40], character=f"U+{ord(half):04X}")
    raise TypeError("only texts can be encoded")


def _safe_pieces(engine: Engine, text: str) -> list[str]:
    """Cut a long text after line ends where both sides encode alone as they do together."""
    pieces, start = [], 0
    while len(text) - start > LONG_TEXT_CHARACTERS:
        cut = _safe_cut(engine, text, start + LONG_TEXT_CHARACTERS // 2, start + LONG_TEXT_CHARACTERS)
        if cut is None:
            break
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def _safe_cut(engine: Engine, text: str, low: int, high: int) -> int | None:
    cut = high
    for _ in range(64):
        cut = text.rfind("\n", low, cut)
        if cut < 0:
            return None
        if not text[cut + 1].isspace() and _splits_at(engine, text, cut + 1):
            return cut + 1
    return None


def _splits_at(engine: Engine, text: str, cut: int) -> bool:
    before, after = text[cut - _CONTEXT_CHARACTERS : cut], text[cut : cut + _CONTEXT_CHARACTERS]
    whole, left, right = engine.encode_batch([before + after, before, after], add_special_tokens=False)
    return bool(whole.ids == left.ids + right.ids)
