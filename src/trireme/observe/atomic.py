"""Replace a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trireme.errors import TrainError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Put ``content`` at ``path``; a reader, or a crash, meets the old file or the new one, never a mixture.

    Raises:
        TrainError: The folder can't be written or the disk is full.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error
