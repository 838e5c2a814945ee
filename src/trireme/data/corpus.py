"""Corpora that need no network: one ships with Trireme, two every Python brings."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trireme.errors import DataError

_SHIPPED = Path(__file__).with_name("corpus")
_LEFT_OUT = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo"),
    *("encodings", "pydoc_data", "ensurepip", "__pycache__", "__phello__", "lib-dynload"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A named collection of texts; ``files`` gives each file with the kind of its content."""

    name: str
    license: str
    license_file: Path | None
    description: str
    """A key of the catalogue."""
    files: Callable[[], list[tuple[Path, str]]]


def _songci() -> list[tuple[Path, str]]:
    return [(_SHIPPED / "songci.jsonl.zst", "jsonl")]


def _python_code() -> list[tuple[Path, str]]:
    return [(path, "python") for path in _standard_library()]


def _python_prose() -> list[tuple[Path, str]]:
    root = _library_root()
    topics = root / "pydoc_data" / "topics.py"
    found = [(topics, "topics")] if topics.is_file() else []
    return found + [(path, "docstring") for path in _standard_library()]


def _library_root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _standard_library() -> list[Path]:
    root = _library_root()
    paths = sorted(_walk(root), key=lambda path: path.relative_to(root).parts)
    if not paths:
        raise DataError("data.no_standard_library", folder=root)
    return paths


def _walk(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _LEFT_OUT and not name.startswith("config-")]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and path.stat().st_size:
                yield path


CORPORA: dict[str, Corpus] = {
    "songci": Corpus(
        name="songci",
        license="MIT",
        license_file=_SHIPPED / "songci.LICENSE",
        description="data.corpus_songci",
        files=_songci,
    ),
    "python-code": Corpus(
        name="python-code",
        license="PSF-2.0",
        license_file=None,
        description="data.corpus_python_code",
        files=_python_code,
    ),
    "python-prose": Corpus(
        name="python-prose",
        license="PSF-2.0",
        license_file=None,
        description="data.corpus_python_prose",
        files=_python_prose,
    ),
}
