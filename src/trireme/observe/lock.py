"""One writer a run folder: a lock that dies with its process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
import weakref
from pathlib import Path

from trireme.errors import TrainError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLock:
    """Held from construction until ``release`` or the end of the process, however it ends.

    The lock is the kernel's (``flock``), so a killed run never leaves a stale one. The file holds the
    process id, for the message alone.

    Raises:
        TrainError: Another process holds it (named), or the file can't be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _open(path)
        try:
            _acquire(self._fd, path)
        except BaseException:
            self._close()
            raise
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        _close_in_children(self)

    def release(self) -> None:
        """Give the folder free; twice does no harm."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder_pid(path: Path) -> int | None:
    """Return the process that holds the lock at ``path`` (0 if it can't be named), or None if nobody does."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_pid(fd) or 0
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error


def _acquire(fd: int, path: Path) -> None:
    try:
        _try_lock(fd)
    except BlockingIOError as error:
        raise TrainError("observe.folder_busy", path=path.parent, pid=_written_pid(fd) or "?") from error
    except OSError as error:
        # Some network file systems have no locks: the written process id is then the best there is.
        pid = _written_pid(fd)
        if error.errno not in _NO_LOCKS or (pid is not None and _is_alive(pid)):
            raise TrainError("observe.folder_busy", path=path.parent, pid=pid or "?") from error


def _try_lock(fd: int, *, tries: int = 5) -> None:
    """Lock, with a few tries: somebody who only looks holds it for microseconds."""
    for _ in range(tries - 1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _written_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _close_in_children(lock: FolderLock) -> None:
    """A forked worker that outlives a killed run must not keep the folder locked."""
    weak = weakref.ref(lock)

    def close_copy() -> None:
        held = weak()
        if held is not None:
            held._close()

    os.register_at_fork(after_in_child=close_copy)
