"""Random state: a fresh seed for every step, and all generators in and out of a checkpoint.

Torch is seeded anew at each step from (seed, step), so dropout is a function of the step and neither
an evaluation nor a sample in between can shift it. The states of all generators are saved as well,
for whatever else draws from them (a callback, a user's module, Python's own).
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trireme.errors import CheckpointError, DeviceError
from trireme.mesh import rng_states, seed_everywhere, set_rng_states

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def seed_step(seed: int, *, step: int, device: torch.device) -> None:
    """Seed torch for one step."""
    seed_everywhere(device, mix(seed, step))


def seed_run(seed: int, *, device: torch.device) -> None:
    """Seed Python, numpy and torch at the start of a run."""
    random.seed(seed)
    np.random.seed(mix(seed, 0) & 0xFFFFFFFF)
    seed_everywhere(device, mix(seed, 0))


def mix(seed: int, step: int) -> int:
    """Return a 63-bit number that differs in about half its bits for neighbouring seeds and steps.

    Source: the finaliser of SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014, figure 20.
    """
    value = seed
    for word in (step, 1):
        value = (value ^ (word * _GOLDEN)) + _GOLDEN & _MASK
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value >> 1


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Return the state of every generator as JSON."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": {kind: _text(state) for kind, state in rng_states(device).items()},
    }


def merge_rng(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the states of all ranks as JSON, equal ones once; that of a single rank as it is."""
    if len(states) == 1:
        return states[0]
    different: list[dict[str, Any]] = []
    of_rank = []
    for state in states:
        if state not in different:
            different.append(state)
        of_rank.append(different.index(state))
    return {"states": different, "of_rank": of_rank}


def rng_of_rank(saved: Any, *, rank: int) -> Any:
    """Return a rank's part of what ``merge_rng`` gave, None where it is missing; more ranks take theirs in turn."""
    if not isinstance(saved, Mapping) or "of_rank" not in saved:
        return saved
    try:
        of_rank, states = saved["of_rank"], saved["states"]
        return states[of_rank[rank % len(of_rank)]]
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        return None


def restore_rng(saved: Any, *, device: torch.device, rank: int = 0) -> None:
    """Put every generator back.

    Raises:
        CheckpointError: A state is missing, damaged or of another kind of device; names it and the rank.
    """
    restorers: dict[str, Callable[[Any], None]] = {
        "python": _restore_python,
        "numpy": _restore_numpy,
        "torch": lambda states: set_rng_states(device, {kind: _tensor(text) for kind, text in states.items()}),
    }
    if not isinstance(saved, Mapping) or set(saved) != set(restorers):
        raise CheckpointError("train.rng_damaged", name="*", rank=rank, cause=", ".join(restorers))
    for name, restore in restorers.items():
        try:
            restore(saved[name])
        except (ValueError, TypeError, AttributeError, RuntimeError, DeviceError) as error:
            raise CheckpointError("train.rng_damaged", name=name, rank=rank, cause=error) from error


@contextmanager
def kept_rng(device: torch.device) -> Iterator[None]:
    """Leave every generator as it was before the block."""
    saved = capture_rng(device)
    try:
        yield
    finally:
        restore_rng(saved, device=device)


def _restore_python(saved: Any) -> None:
    version, words, gauss = saved
    random.setstate((version, tuple(words), gauss))


def _restore_numpy(saved: Any) -> None:
    name, keys, position, has_gauss, cached = saved
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _tensor(text: Any) -> torch.Tensor:
    if not isinstance(text, str):
        raise ValueError(f"{type(text).__name__}")
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
