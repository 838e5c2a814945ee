"""Checkpoints that can't be torn: saved whole or not at all, verified when opened, restored strictly."""

from trireme.checkpoint.listing import CheckpointInfo, list_checkpoints, newest_checkpoint
from trireme.checkpoint.manifest import FORMAT_VERSION
from trireme.checkpoint.prune import prune_checkpoints
from trireme.checkpoint.read import Checkpoint, open_checkpoint
from trireme.checkpoint.record import Manifest, SliceRecord, TensorRecord
from trireme.checkpoint.restore import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    check_resumable,
    find_nonfinite,
    restore_tensors,
    weights_only,
)
from trireme.checkpoint.save import SaveStage, save_checkpoint

__all__ = [
    "FORMAT_VERSION",
    "MODEL_PREFIX",
    "OPTIMIZER_PREFIX",
    "Checkpoint",
    "CheckpointInfo",
    "Manifest",
    "SaveStage",
    "SliceRecord",
    "TensorRecord",
    "check_resumable",
    "find_nonfinite",
    "list_checkpoints",
    "newest_checkpoint",
    "open_checkpoint",
    "prune_checkpoints",
    "restore_tensors",
    "save_checkpoint",
    "weights_only",
]
