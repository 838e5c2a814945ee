"""The random generators that torch draws from: the CPU's and that of the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trireme.errors import DeviceError

_CPU = "cpu"


def rng_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the generator states that a step on ``device`` may advance, by device type, as uint8 CPU tensors."""
    states = {_CPU: torch.get_rng_state()}
    if device.type != _CPU:
        states[device.type] = torch.get_device_module(device).get_rng_state(device).cpu()
    return states


def set_rng_states(device: torch.device, states: Mapping[str, torch.Tensor]) -> None:
    """Put generator states back.

    Raises:
        DeviceError: The states are those of other device types, so the same numbers can't be drawn.
    """
    wanted = {_CPU, device.type}
    if set(states) != wanted:
        raise DeviceError("mesh.rng_devices", found=", ".join(sorted(states)), wanted=", ".join(sorted(wanted)))
    torch.set_rng_state(states[_CPU])
    if device.type != _CPU:
        torch.get_device_module(device).set_rng_state(states[device.type], device)


def seed_everywhere(device: torch.device, seed: int) -> None:
    """Seed the CPU's generator and that of ``device``."""
    torch.default_generator.manual_seed(seed)
    if device.type != _CPU:
        torch.get_device_module(device).manual_seed(seed)
