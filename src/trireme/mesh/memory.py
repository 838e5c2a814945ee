"""How much memory a device holds now and at most: the allocator's count, on a CPU the process's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import torch

_RESET_PEAK = "5"
"""What Linux wants written to /proc/self/clear_refs to forget the peak resident size."""


def measures_whole_process(device: torch.device) -> bool:
    """Say whether the figures below are of the whole process, Python and libraries included, as on a CPU."""
    return device.type == "cpu"


def program_memory_bytes() -> int:
    """Return the resident size of this process now."""
    return int(psutil.Process().memory_info().rss)


def memory_in_use_bytes(device: torch.device) -> int:
    """Return the bytes of live tensors on an accelerator, the resident size of the process on a CPU."""
    if measures_whole_process(device):
        return program_memory_bytes()
    return int(torch.accelerator.memory_allocated(device))


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most bytes in use since the last reset (where the system can't reset: since the start)."""
    if device.type == "cpu":
        return _peak_resident_bytes()
    return int(torch.accelerator.max_memory_allocated(device))


def reset_peak_memory(device: torch.device) -> None:
    """Start a new peak; does nothing where the system keeps only one for the life of a process."""
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return


def _peak_resident_bytes() -> int:
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    if found:
        return int(found.group(1)) * 1024
    import resource  # Unix only, and there only where the above is missing

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
