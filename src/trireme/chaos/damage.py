"""Damage to a checkpoint's files, as disks and people do it."""

from __future__ import annotations

import random
from pathlib import Path


def newest_step(root: Path) -> int | None:
    """Return the step of the newest complete checkpoint; None where there is none."""
    numbers = [path.name.removeprefix("step-") for path in root.glob("step-*")]
    return max((int(number) for number in numbers if number.isdigit()), default=None)


def damage_newest(root: Path, *, fault: str, seed: int) -> Path:
    """Damage the newest checkpoint of a run and return the file that was hit."""
    step = newest_step(root)
    assert step is not None, "a drill damages what it has seen saved"
    folder = root / f"step-{step}"
    draw = random.Random(seed)
    shards = sorted(path for path in folder.iterdir() if path.name.startswith("shard"))
    path = draw.choice(shards)
    match fault:
        case "bit_flip":
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(bytes(data))
        case "truncated":
            path.write_bytes(path.read_bytes()[: -draw.randrange(1, path.stat().st_size)])
        case "missing":
            path.unlink()
        case "manifest_missing":
            path = folder / "manifest.json"
            path.unlink()
    return path
