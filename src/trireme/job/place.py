"""What a run stands on, as the planner asks it."""

from __future__ import annotations

from trireme.job.planning import Place
from trireme.mesh import (
    FormatSupport,
    LaunchEnvironment,
    choose_device,
    device_name,
    format_support,
    machine_cluster,
    measures_whole_process,
)


def find_place(launch: LaunchEnvironment) -> Place:
    """Look at this rank's device; all others are taken to be alike."""
    device = choose_device(launch)
    # A CPU often computes bf16 and gains nothing by it, which only a trial tells.
    gains = not measures_whole_process(device) and format_support(device)["bfloat16"] is FormatSupport.NATIVE
    return Place(
        device_name=device_name(device),
        cluster=machine_cluster(launch, device=device),
        num_ranks=launch.world_size,
        precision="bf16" if gains else "fp32",
    )
