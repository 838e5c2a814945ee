"""Memory that a worker process writes batches into and the trainer reads them from.

It has no name: only the two processes hold it, so nothing is left behind however they end. On Linux it is a
memfd, which the size limit of /dev/shm in a container does not touch; elsewhere an unlinked temporary file.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np

from trireme.data.gather import FIELDS
from trireme.errors import DataError
from trireme.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShape:
    """Room for ``num_slots`` batches of ``num_rows`` rows of ``seq_len`` tokens."""

    num_slots: int
    num_rows: int
    seq_len: int

    @property
    def ids_bytes(self) -> int:
        """Bytes of the sample ids of all slots."""
        return self.num_slots * self.num_rows * np.dtype(np.int64).itemsize

    @property
    def total_bytes(self) -> int:
        """Bytes of everything; never 0, which no system maps."""
        tokens = self.num_slots * len(FIELDS) * self.num_rows * self.seq_len
        return max(self.ids_bytes + tokens * np.dtype(np.int32).itemsize, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Batches in shared memory. Shapes: ids [slots, B] int64; blocks [slots, 4, B, T] int32."""

    ids: np.ndarray
    blocks: np.ndarray


def allocate_memory(shape: SlotShape) -> int:
    """Return a file descriptor of memory that really is there.

    Raises:
        DataError: The system has not that much to give.
    """
    descriptor = -1
    try:
        descriptor = _open_nameless()
        os.ftruncate(descriptor, shape.total_bytes)
        if hasattr(os, "posix_fallocate"):  # without it, writing to memory that isn't there kills the process
            os.posix_fallocate(descriptor, 0, shape.total_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise DataError(
            "sample.no_room_for_slots", needed=format_bytes(shape.total_bytes), reason=error.strerror or error
        ) from error
    return descriptor


def map_slots(descriptor: int, *, shape: SlotShape) -> Slots:
    """Map the memory; it goes when both processes have dropped their arrays."""
    memory = mmap.mmap(descriptor, shape.total_bytes)
    num_ids = shape.num_slots * shape.num_rows
    ids = np.frombuffer(memory, dtype=np.int64, count=num_ids)
    tokens = np.frombuffer(memory, dtype=np.int32, offset=shape.ids_bytes, count=num_ids * len(FIELDS) * shape.seq_len)
    return Slots(
        ids=ids.reshape(shape.num_slots, shape.num_rows),
        blocks=tokens.reshape(shape.num_slots, len(FIELDS), shape.num_rows, shape.seq_len),
    )


def _open_nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trireme-batches")
    descriptor, path = tempfile.mkstemp(prefix="trireme-batches-")
    os.unlink(path)
    return descriptor
