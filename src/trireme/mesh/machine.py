"""The machine at hand as a cluster of the catalogue."""

from __future__ import annotations

from dataclasses import replace

import torch

from trireme.cluster import NODES, Cluster, find_device, parse_cluster
from trireme.mesh.device import device_facts, device_name
from trireme.mesh.launch import LaunchEnvironment


def machine_cluster(launch: LaunchEnvironment, *, device: torch.device) -> Cluster | None:
    """Return what the ranks run on, with the links such nodes usually have.

    None where no catalogue knows the device, or nodes hold different numbers of ranks.
    """
    key = _node_key(device)
    num_nodes, rest = divmod(launch.world_size, launch.local_world_size)
    if key is None or rest:
        return None
    cluster = parse_cluster(f"{key}:{launch.local_world_size}x{num_nodes}")
    if device.type != "cpu":
        return cluster
    # Ranks on a processor share the machine's memory, of which no catalogue knows.
    share = device_facts(device, measure=False).memory_bytes // launch.local_world_size
    return replace(cluster, accelerator=replace(cluster.accelerator, memory_bytes=share))


def _node_key(device: torch.device) -> str | None:
    if device.type == "cpu":
        return "cpu"
    row = find_device(device_name(device))
    return next((key for key, node in NODES.items() if row is not None and node.accelerator == row), None)
