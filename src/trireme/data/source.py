"""From what a user wrote to the files that are read: paths, folders, globs, ``#500``, corpora."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trireme.data.corpus import CORPORA
from trireme.errors import DataError
from trireme.words import say

_TFRECORD = re.compile(r"\.tfrecords?(-\d+-of-\d+)?$")
_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".zstd": "zst", ".xz": "xz"}
_KINDS = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
FORMS = ".txt .jsonl .json .parquet .tfrecord, each also .gz .zst .xz (not .parquet)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file to read: ``kind`` says how its bytes become records, ``compression`` how they are packed."""

    path: Path
    kind: str
    compression: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSource:
    """The files of a source in reading order, and what was passed over."""

    name: str
    files: tuple[SourceFile, ...]
    max_records: int | None = None
    ignored: dict[str, int]
    """Files of a folder or glob that were not read, by extension or by what they are."""
    empty: tuple[Path, ...] = ()
    """Files without a byte in them."""

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(file.size_bytes for file in self.files)


def resolve_source(path: str) -> ResolvedSource:
    """Return the files that ``path`` names: a file, folder, glob or ``corpus:name``, with ``#500`` for a limit.

    Raises:
        DataError: Nothing is there, nothing readable is there, or all of it is empty.
    """
    try:
        return _resolve(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: a home folder that isn't there
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise DataError("data.cannot_read", path=path, reason=reason) from error


def _resolve(path: str) -> ResolvedSource:
    location, max_records = _split_limit(path)
    if location.startswith("corpus:"):
        name = location.removeprefix("corpus:")
        if name not in CORPORA:
            raise DataError("data.unknown_corpus", name=name, known=", ".join(f"corpus:{n}" for n in CORPORA))
        found = [(file, kind) for file, kind in CORPORA[name].files()]
        files = [_source_file(file, kind) for file, kind in found]
        return ResolvedSource(name=location, files=tuple(files), max_records=max_records, ignored={})
    return _from_paths(path, _list_paths(location), max_records)


def _split_limit(path: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)#(\d[\d_]*)", path)
    if match is None or Path(path).expanduser().exists():
        return path, None
    limit = int(match[2])
    if limit == 0:
        raise DataError("data.zero_limit", path=path)
    return match[1], limit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a path leads to; ``passed_over`` names why it isn't read: a key of the catalogue without its ``pass_``."""

    path: Path
    passed_over: str = ""


def _list_paths(location: str) -> list[_Found]:
    path = Path(location).expanduser()
    if path.is_file():
        return [_Found(path=path)]
    if path.is_dir():
        return _inside(path)
    if os.path.lexists(path):
        raise DataError("data.no_file", path=location)
    matched = [Path(p) for p in glob.glob(str(path), recursive=True)] if glob.has_magic(str(path)) else []
    if not matched:
        raise DataError("data.not_found", path=location, nearest=_nearest(path))
    found = {p: _Found(path=p, passed_over=_not_a_file(p)) for p in matched if not p.is_dir()}
    for folder in matched:
        found = {entry.path: entry for entry in (_inside(folder) if folder.is_dir() else [])} | found
    return _each_once([found[p] for p in sorted(found)])


def _each_once(found: list[_Found]) -> list[_Found]:
    """Pass over what a linked folder leads to a second time; a link to a file is a file of its own."""
    places: set[Path] = set()
    kept = []
    for entry in sorted(found, key=lambda entry: len(entry.path.parts)):
        place = entry.path.parent.resolve() / entry.path.name
        kept.append(entry if place not in places else _Found(path=entry.path, passed_over="repeated"))
        places.add(place)
    return sorted(kept, key=lambda entry: entry.path)


def _inside(folder: Path) -> list[_Found]:
    found = []
    for inner, folders, names in os.walk(folder, onerror=_raise):
        linked = [_Found(path=path, passed_over="linked") for n in folders if (path := Path(inner, n)).is_symlink()]
        files = [_Found(path=path, passed_over=_not_a_file(path)) for path in (Path(inner, name) for name in names)]
        found += linked + files
    return [_hide(entry, folder) for entry in sorted(found, key=lambda entry: entry.path)]


def _raise(error: OSError) -> None:
    """A folder that can't be listed would be left out without a word."""
    raise error


def _not_a_file(path: Path) -> str:
    return "" if path.is_file() else "no_file"


def _hide(entry: _Found, folder: Path) -> _Found:
    """Hidden is what begins with a dot, or lies below something that does."""
    hidden = any(part.startswith(".") for part in entry.path.relative_to(folder).parts)
    return _Found(path=entry.path, passed_over="hidden") if hidden else entry


def _nearest(path: Path) -> str:
    """Name the files beside the missing one that look most like it, else the folder that does exist."""
    import difflib

    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    names = [p.name for p in folder.iterdir()] if folder == path.parent else []
    close = difflib.get_close_matches(path.name, names, n=3)
    return ", ".join(str(folder / name) for name in close) if close else str(folder.resolve())


def _from_paths(asked: str, found: list[_Found], max_records: int | None) -> ResolvedSource:
    files, ignored = [], Counter[str]()
    for path, passed_over in ((entry.path, entry.passed_over) for entry in found):
        kind, compression = classify(path)
        if kind and not passed_over:
            files.append(_source_file(path, kind, compression))
        else:
            ignored[say(f"data.pass_{passed_over}") if passed_over else path.suffix or path.name] += 1
    if not files:
        passed_over = ", ".join(f"{name} ({n})" for name, n in ignored.most_common(8)) or "-"
        raise DataError("data.nothing_readable", path=asked, found=passed_over, forms=FORMS)
    full = tuple(file for file in files if file.size_bytes)
    if not full:
        raise DataError("data.empty_file", path=files[0].path if len(files) == 1 else asked)
    return ResolvedSource(
        name=asked,
        files=full,
        max_records=max_records,
        ignored=dict(sorted(ignored.items())),
        empty=tuple(file.path for file in files if not file.size_bytes),
    )


def _source_file(path: Path, kind: str, compression: str | None = None) -> SourceFile:
    if compression is None:
        compression = _COMPRESSIONS.get(path.suffix, "")
    return SourceFile(path=path, kind=kind, compression=compression, size_bytes=path.stat().st_size)


def classify(path: Path) -> tuple[str, str]:
    """Return (kind, compression) by the file's name; kind is empty where we don't read it."""
    name = path.name.lower()
    compression = ""
    for suffix, packed in _COMPRESSIONS.items():
        if name.endswith(suffix):
            name, compression = name.removesuffix(suffix), packed
    kind = "tfrecord" if _TFRECORD.search(name) else _KINDS.get(Path(name).suffix, "")
    return ("", "") if kind == "parquet" and compression else (kind, compression)
