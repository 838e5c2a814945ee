"""One block of tokenised documents on disk: raw tokens, a table of documents, and a note that names both.

``shard-00007.tokens``     little-endian uint16 or uint32, documents back to back
``shard-00007.documents``  one ``DOCUMENT_DTYPE`` row a document
``shard-00007.json``       sizes, xxh3 and counts; written last, so a shard with a good note is whole
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trireme.data.document import SourceCounts
from trireme.errors import DataError
from trireme.units import format_bytes

DOCUMENT_DTYPE = np.dtype([("hash", "<u8"), ("length", "<i8"), ("prompt_length", "<i4")])
_CHUNK_BYTES = 1 << 22
_SEAL = "xxh3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardNote:
    """What a shard holds, with the means to tell whether it still does."""

    number: int
    block: str
    """Fingerprint of the block of input that the shard was made from."""
    num_documents: int
    num_tokens: int
    files: dict[str, tuple[int, str]]
    """File name -> (bytes, xxh3-128 hex)."""
    counts: SourceCounts

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("number", "block", "num_documents", "num_tokens")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        return values | {"files": {k: list(v) for k, v in self.files.items()}, "counts": self.counts.as_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardNote:
        """Read what ``as_json`` wrote."""
        files = {name: (int(size), str(digest)) for name, (size, digest) in values["files"].items()}
        return cls(**{**values, "files": files, "counts": SourceCounts.from_json(values["counts"])})


def shard_name(number: int, suffix: str) -> str:
    """Return the file name of a shard's part: ``shard-00007.tokens``."""
    return f"shard-{number:05d}.{suffix}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest type that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def write_shard(
    folder: Path, *, number: int, block: str, tokens: list[np.ndarray], documents: np.ndarray, counts: SourceCounts
) -> ShardNote:
    """Write one shard so that it is either wholly there or not at all; return its note.

    Raises:
        DataError: The disk is full or the folder can't be written.
    """
    names = shard_name(number, "tokens"), shard_name(number, "documents")
    contents = (b"".join(t.tobytes() for t in tokens), documents.tobytes())
    files = {}
    for name, content in zip(names, contents, strict=True):
        write_durably(folder / name, content)
        files[name] = (len(content), xxhash.xxh3_128_hexdigest(content))
    num_tokens = sum(t.size for t in tokens)
    note = ShardNote(
        number=number, block=block, num_documents=len(documents), num_tokens=num_tokens, files=files, counts=counts
    )
    write_durably(folder / shard_name(number, "json"), sealed(note.as_json()))
    return note


def read_note(folder: Path, number: int) -> ShardNote | None:
    """Return a shard's note if the shard is whole: note readable, sizes and xxh3 as it says."""
    try:
        note = ShardNote.from_json(unsealed((folder / shard_name(number, "json")).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return note if all(file_is_whole(folder / name, *facts) for name, facts in note.files.items()) else None


def sealed(values: dict[str, Any]) -> bytes:
    """Return values as JSON that carries the xxh3-128 of its own text."""
    return _as_text({**values, _SEAL: xxhash.xxh3_128_hexdigest(_as_text(values))})


def unsealed(content: bytes) -> dict[str, Any]:
    """Return the values that ``sealed`` wrote.

    Raises:
        ValueError: The content is not what was written.
    """
    values: dict[str, Any] = json.loads(content)
    seal = values.pop(_SEAL, None)
    if seal != xxhash.xxh3_128_hexdigest(_as_text(values)):
        raise ValueError("its own xxh3 doesn't hold")
    return values


def _as_text(values: dict[str, Any]) -> bytes:
    """Names of files may hold bytes that are no text; they come back as they were."""
    return json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")


def file_is_whole(path: Path, size_bytes: int, digest: str) -> bool:
    """Say whether a file has the size and xxh3-128 that were noted."""
    try:
        return path.stat().st_size == size_bytes and hash_file(path) == digest
    except OSError:
        return False


def hash_file(path: Path) -> str:
    """Return the xxh3-128 (hex) of a file's bytes."""
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path.parent, needed_bytes=len(content)):
        try:
            with draft.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(folder: Path, *, needed_bytes: int) -> Iterator[None]:
    """Turn a full or closed disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                "data.disk_full", folder=folder, needed=format_bytes(needed_bytes), free=_free(folder)
            ) from error
        raise DataError("data.cannot_write", folder=folder, reason=error.strerror or error) from error


def _free(folder: Path) -> str:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return "?"
    return format_bytes(facts.f_bavail * facts.f_frsize)
