"""Ranks and devices: what this process was told, what it computes on, and ranks for one machine."""

from trireme.mesh.compute import (
    allow_tf32,
    autocast_kind,
    collective_backend,
    has_fused_optimizer,
    host_device,
    set_threads,
    usable_cores,
    wants_pinned_memory,
)
from trireme.mesh.device import DeviceFacts, choose_device, device_facts, device_name, num_devices
from trireme.mesh.group import join_ranks, joined_ranks
from trireme.mesh.host_memory import pin_host_memory, unpin_host_memory
from trireme.mesh.launch import LaunchEnvironment
from trireme.mesh.local import RankError, preload_on_ranks, run_on_ranks
from trireme.mesh.machine import machine_cluster
from trireme.mesh.memory import (
    measures_whole_process,
    memory_in_use_bytes,
    peak_memory_bytes,
    program_memory_bytes,
    reset_peak_memory,
)
from trireme.mesh.number_format import FormatSupport, check_format, format_support
from trireme.mesh.probe import measure_matmul_flops_per_s, synchronize
from trireme.mesh.probe_link import LinkFigures, measure_link
from trireme.mesh.probe_memory import measure_memory_bytes_per_s
from trireme.mesh.random_state import rng_states, seed_everywhere, set_rng_states

__all__ = [
    "DeviceFacts",
    "FormatSupport",
    "LaunchEnvironment",
    "LinkFigures",
    "RankError",
    "allow_tf32",
    "autocast_kind",
    "check_format",
    "choose_device",
    "collective_backend",
    "device_facts",
    "device_name",
    "format_support",
    "has_fused_optimizer",
    "host_device",
    "join_ranks",
    "joined_ranks",
    "machine_cluster",
    "measure_link",
    "measure_matmul_flops_per_s",
    "measure_memory_bytes_per_s",
    "measures_whole_process",
    "memory_in_use_bytes",
    "num_devices",
    "peak_memory_bytes",
    "pin_host_memory",
    "preload_on_ranks",
    "program_memory_bytes",
    "reset_peak_memory",
    "rng_states",
    "run_on_ranks",
    "seed_everywhere",
    "set_rng_states",
    "set_threads",
    "synchronize",
    "unpin_host_memory",
    "usable_cores",
    "wants_pinned_memory",
]
