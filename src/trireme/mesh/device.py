"""Which device this rank computes on, and what can be known about it without using it.

This room alone names device types; everyone else passes a ``torch.device`` on.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil
import torch

from trireme.cluster import find_device
from trireme.errors import DeviceError
from trireme.mesh.launch import LaunchEnvironment
from trireme.mesh.number_format import FormatSupport, format_support
from trireme.mesh.probe import measure_matmul_flops_per_s

_MEASURED = ("float32", "bfloat16")
"""What is measured where no catalogue knows the device: the two formats that training chooses between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What is known about a device.

    Attributes:
        name: As the driver or the kernel reports it.
        kind: torch's word for its type (``cpu``, ``cuda``, ``npu``, ``xpu``, ``mps`` ...).
        index: Which of this kind; 0 for the CPU.
        memory_bytes: All of its memory, free or not.
        num_threads: Threads that CPU operators use; of the host, for accelerators.
        formats: By dtype name, whether it computes in it natively, by emulation, or not at all.
        peak_flops_per_s: By dtype name; dense peak of the vendor, or the best matmul measured here. A format
            that is absent is unknown.
        peak_source: Address of the figures, ``"measured"``, or ``"unknown"``.
    """

    name: str
    kind: str
    index: int
    memory_bytes: int
    num_threads: int
    formats: Mapping[str, FormatSupport]
    peak_flops_per_s: Mapping[str, float]
    peak_source: str

    def peak_of(self, dtype: torch.dtype | str) -> float | None:
        """Return the peak for a dtype in FLOP/s, None where unknown."""
        return self.peak_flops_per_s.get(str(dtype).removeprefix("torch."))

    def support_of(self, dtype: torch.dtype | str) -> FormatSupport:
        """Return how the device computes in a dtype."""
        return self.formats.get(str(dtype).removeprefix("torch."), FormatSupport.MISSING)


def num_devices() -> int:
    """Return how many ranks this machine has devices for: its accelerators, one where there is none."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 1


def choose_device(environment: LaunchEnvironment | None = None, *, kind: str | None = None) -> torch.device:
    """Return this rank's device: the accelerator at its local rank, else the CPU; and make it current.

    Args:
        environment: Where this process stands; read from the environment if not given.
        kind: Insist on one type, for instance ``"cpu"`` beside an idle accelerator.

    Raises:
        DeviceError: The type isn't there, or the node has fewer devices than ranks.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = accelerator.type if accelerator is not None else "cpu"
    if kind == "cpu" or (found == "cpu" and kind is None):
        return torch.device("cpu")
    if kind not in (None, found):
        raise DeviceError("mesh.no_such_device", kind=kind, found=found)
    local_rank = (environment or LaunchEnvironment.from_environ()).local_rank
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise DeviceError("mesh.too_few_devices", local_rank=local_rank, kind=found, count=count)
    torch.accelerator.set_device_index(local_rank)
    return torch.device(found, local_rank)


def device_facts(device: torch.device, *, measure: bool = True) -> DeviceFacts:
    """Return what is known about a device; on one that no catalogue knows, measure its matmul (<= 0.5 s)."""
    name = device_name(device)
    peaks, source = _peaks(device, name, measure=measure)
    return DeviceFacts(
        name=name,
        kind=device.type,
        index=device.index or 0,
        memory_bytes=_memory_bytes(device),
        num_threads=torch.get_num_threads(),
        formats=format_support(device),
        peak_flops_per_s=peaks,
        peak_source=source,
    )


def device_name(device: torch.device) -> str:
    """Return the product name of a device as its driver or the kernel reports it."""
    if device.type == "cpu":
        return _cpu_name()
    module = torch.get_device_module(device)
    named = getattr(module, "get_device_name", None)
    return str(named(device)) if named is not None else device.type


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(errors="replace") if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _peaks(device: torch.device, name: str, *, measure: bool) -> tuple[Mapping[str, float], str]:
    known = find_device(name) if device.type != "cpu" else None
    if known is not None:
        return known.peak_flops_per_s, known.source
    if not measure:
        return MappingProxyType({}), "unknown"
    formats = format_support(device)
    chosen = [dtype for dtype in _MEASURED if formats[dtype] is not FormatSupport.MISSING]
    measured = {
        dtype: measure_matmul_flops_per_s(device, getattr(torch, dtype), limit_s=0.5 / len(chosen)) for dtype in chosen
    }
    return MappingProxyType(measured), "measured"


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return min(psutil.virtual_memory().total, _cgroup_limit_bytes())
    try:
        return int(torch.accelerator.get_memory_info(device)[1])
    except (RuntimeError, NotImplementedError):
        # Backends without a memory query (mps) share the host's memory.
        return int(psutil.virtual_memory().total)


def _cgroup_limit_bytes() -> int:
    """Return what a container may use; the kernel reports the host's memory to it."""
    unlimited = 2**63
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else unlimited
    return unlimited
