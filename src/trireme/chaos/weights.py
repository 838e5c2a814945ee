"""Whether two checkpoints hold the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

from trireme.checkpoint import open_checkpoint


def same_weights(one: Path, other: Path) -> bool:
    """Return whether all tensors of two checkpoints are equal in every bit: weights and optimizer state."""
    import torch

    ours, theirs = open_checkpoint(one), open_checkpoint(other)
    if set(ours.names) != set(theirs.names):
        return False
    return all(
        torch.equal(ours.tensor(name).view(torch.uint8), theirs.tensor(name).view(torch.uint8))
        if ours.tensor(name).dim()
        else ours.tensor(name).item() == theirs.tensor(name).item()
        for name in ours.names
    )
