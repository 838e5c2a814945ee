"""The cache folder: where it is, who may write in it now, and the content hashes of large inputs."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from trireme.data.shard import disk_errors, hash_file, write_durably
from trireme.data.store import file_stamp
from trireme.errors import DataError

REMEMBERED_BYTES = 64 << 20
"""Smaller inputs are hashed every time. Of a larger one the hash is kept with its size, both times and inode;
the time of status change can't be set back by hand, so a rewritten file is noticed."""


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Return the cache folder: the one asked for, else ``$TRIREME_CACHE``, else ``~/.cache/trireme``."""
    chosen = cache_dir or os.environ.get("TRIREME_CACHE") or Path("~/.cache/trireme")
    return Path(chosen).expanduser().absolute()


def make_folder(folder: Path) -> Path:
    """Make ``folder`` and its parents.

    Raises:
        DataError: It can't be made.
    """
    with disk_errors(folder, needed_bytes=0):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; wait while another process holds it. The lock ends with the process.

    Raises:
        DataError: The file system has no locks, so two builders could harm each other.
    """
    import fcntl

    with disk_errors(path.parent, needed_bytes=0):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise DataError("data.no_locks", folder=path.parent) from error
    finally:
        os.close(descriptor)


def content_hash(path: Path, *, cache_dir: Path) -> str:
    """Return the xxh3-128 (hex) of a file's content, remembered for large files while they stay untouched."""
    try:
        if path.stat().st_size < REMEMBERED_BYTES:
            return hash_file(path)
        return _remembered_hash(path.absolute(), cache_dir / "inputs")
    except OSError as error:
        raise DataError("data.cannot_read", path=path, reason=error.strerror or error) from error


def _remembered_hash(path: Path, folder: Path) -> str:
    note = folder / f"{xxhash.xxh3_64_hexdigest(str(path).encode())}.json"
    stamp = file_stamp(path)
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(note.read_bytes())
        if known["path"] == str(path) and known["stamp"] == stamp:
            return str(known["xxh3"])
    digest = hash_file(path)
    with contextlib.suppress(DataError):  # without the note the file is hashed again next time
        make_folder(folder)
        write_durably(note, json.dumps({"path": str(path), "stamp": stamp, "xxh3": digest}).encode())
    return digest
