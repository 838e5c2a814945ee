"""Optimizer state in a mapped file: read ahead by one thread and written back by another, a few stretches in memory.

The file is scratch, never the truth: it has no name once it is open, so a run that ends, however it ends, leaves
nothing behind, and what a checkpoint holds is copied from it like any other state.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trireme.errors import LayoutError
from trireme.parallel.state_home import StateHome, Use, Visit
from trireme.units import format_bytes

_SLOTS = 3
"""Stretches in memory: one that is read ahead, one that is worked on, one that is written back."""
_ALIGNED = 64
_ROOM_BYTES = 1 << 20
"""Beyond what was asked for: alignment, and state of optimizers that keep more than they showed."""
_PROBE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """An open file without a name, and the bytes that it is mapped to."""

    descriptor: int
    mapped: Tensor

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in it."""
        return 0 <= tensor.data_ptr() - self.mapped.data_ptr() < self.mapped.numel()

    def place(self, tensor: Tensor) -> int:
        """Give where in the file a tensor begins."""
        return tensor.data_ptr() - self.mapped.data_ptr()


class DiskHome(StateHome):
    """State on a disk.

    Args:
        folder: Where the file is made; best on a disk of its own.

    Attributes:
        bytes_per_s: What writing and syncing a few megabytes there gave, once there is a file.
    """

    chunk_numel = 1 << 19
    """Elements of a stretch: long enough for a disk, and only a few of them are in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.bytes_per_s = 0.0
        self._files: list[_File] = []
        self._used = 0
        self._slots: list[dict[str, Tensor]] = [{} for _ in range(_SLOTS)]
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state-writer")

    def reserve(self, num_bytes: int) -> None:
        """Make the file, with all its blocks, so that a full disk is known before the first step."""
        self._open(num_bytes + _ROOM_BYTES)
        self.bytes_per_s = self._measure()

    def allocate(self, like: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Give zeros in the file."""
        size = like.numel() * dtype.itemsize
        if not self._files or self._used + size > self._files[-1].mapped.numel():
            self._open(size + _ROOM_BYTES)
        start = self._used
        self._used = -(-(start + size) // _ALIGNED) * _ALIGNED
        return self._files[-1].mapped[start : start + size].view(dtype).view(like.shape)

    @contextmanager
    def visiting(self, visits: Sequence[Visit]) -> Iterator[Iterator[dict[str, Tensor]]]:
        """Lend copies in memory, the next one read while one is worked on and the one before is written back."""
        reads: list[Future[dict[str, Tensor]]] = []
        writes: list[Future[None]] = []

        def read_ahead(number: int) -> None:
            if number < len(visits):
                before = writes[number - _SLOTS] if number >= _SLOTS else None
                reads.append(self._reader.submit(self._read, visits[number], self._slots[number % _SLOTS], before))

        def lend() -> Iterator[dict[str, Tensor]]:
            for number, visit in enumerate(visits):
                read_ahead(number + 1)
                lent = self._wait(reads[number])
                yield lent
                writes.append(self._writer.submit(self._write, visit, lent))

        read_ahead(0)
        try:
            yield lend()
        finally:
            for write in writes:
                self._wait(write)

    def bring(self, part: Tensor, *, dtype: torch.dtype, use: Use) -> Tensor:
        """Give the stretch where the host's kernels work."""
        return part.to(device=self._files[0].mapped.device, dtype=dtype)

    def send(self, part: Tensor, to: Tensor) -> None:
        """Write."""
        to.copy_(part.to(to.dtype))

    @property
    def buffer_bytes(self) -> int:
        """Memory of stretches on their way."""
        return sum(each.numel() * each.element_size() for slot in self._slots for each in slot.values())

    def __repr__(self) -> str:
        return f"DiskHome({str(self.folder)!r})"

    def _open(self, num_bytes: int) -> None:
        path = self.folder / f"optimizer-{os.getpid()}-{len(self._files)}.scratch"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _take_blocks(descriptor, num_bytes)
                mapped = torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
            except BaseException:
                os.close(descriptor)
                raise
            finally:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal(error, num_bytes) from error
        self._files.append(_File(descriptor=descriptor, mapped=mapped))
        self._used = 0

    def _refusal(self, error: OSError, num_bytes: int) -> LayoutError:
        if error.errno == errno.ENOSPC:
            free = os.statvfs(self.folder)
            free_bytes = format_bytes(free.f_bavail * free.f_frsize)
            return LayoutError("parallel.disk_full", path=self.folder, needs=format_bytes(num_bytes), free=free_bytes)
        return LayoutError("parallel.disk_unusable", path=self.folder, reason=error.strerror or str(error))

    def _measure(self) -> float:
        """Write, sync and read a few megabytes at the file's start, which is nobody's yet."""
        size = min(_PROBE_BYTES, self._files[0].mapped.numel())
        block, descriptor = bytes(size), self._files[0].descriptor
        started_s = time.perf_counter()
        try:
            os.pwrite(descriptor, block, 0)
            os.fsync(descriptor)
        except OSError as error:
            raise self._refusal(error, size) from error
        return size / max(1e-9, time.perf_counter() - started_s)

    def _read(self, visit: Visit, slot: dict[str, Tensor], before: Future[None] | None) -> dict[str, Tensor]:
        if before is not None:
            before.result()  # the slot's last stretch is safe
        lent = {}
        for key, view in visit.views().items():
            held = slot.get(key)
            if held is None or held.numel() < view.numel() or held.dtype != view.dtype:
                held = slot[key] = torch.empty(
                    max(view.numel(), self.chunk_numel), dtype=view.dtype, device=view.device
                )
            lent[key] = held[: view.numel()]
            self._move(view, lent[key], os.preadv)
        self.transfers.read_bytes += _size_of(lent)
        return lent

    def _write(self, visit: Visit, lent: dict[str, Tensor]) -> None:
        for key, view in visit.views().items():
            self._move(view, lent[key], os.pwritev)
        self.transfers.written_bytes += _size_of(lent)

    def _move(self, view: Tensor, memory: Tensor, call: Any) -> None:
        """Read or write one stretch; the kernel may do it in parts."""
        file = next((each for each in self._files if each.holds(view)), None)
        size = view.numel() * view.element_size()
        if file is None or not size:
            if call is os.preadv:
                memory.copy_(view)
            else:
                view.copy_(memory)
            return
        array: Any = memory.view(torch.uint8).numpy()
        buffer = memoryview(array)
        done, start = 0, file.place(view)
        while done < size:
            moved = call(file.descriptor, [buffer[done:size]], start + done)
            if moved <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += moved

    def _wait(self, future: Future[Any]) -> Any:
        started_s = time.perf_counter()
        try:
            return future.result()
        except OSError as error:
            raise LayoutError(
                "parallel.disk_unusable", path=self.folder, reason=error.strerror or str(error)
            ) from error
        finally:
            self.transfers.stall_s += time.perf_counter() - started_s


def _take_blocks(descriptor: int, num_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, num_bytes)
    else:
        os.ftruncate(descriptor, num_bytes)


def _size_of(tensors: dict[str, Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors.values())
