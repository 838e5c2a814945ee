"""Checkpoints that can't be torn: saved whole or not at all, verified when opened, restored strictly."""

from trireme.checkpoint.commit import begin_save, blank_manifest
from trireme.checkpoint.compare import Difference, compare_checkpoints, is_checkpoint_root, repair_manifests
from trireme.checkpoint.deal import Deal, Part, PieceNote, TensorNote, deal_pieces, describe_pieces, tied_names
from trireme.checkpoint.listing import CheckpointInfo, list_checkpoints, newest_checkpoint
from trireme.checkpoint.manifest import FORMAT_VERSION
from trireme.checkpoint.order import LeadOrder, Retention, WriteOrder
from trireme.checkpoint.piece import StatePiece, whole_pieces
from trireme.checkpoint.prune import prune_checkpoints
from trireme.checkpoint.ranges import full_ranges
from trireme.checkpoint.rank_saver import RankSaver
from trireme.checkpoint.read import Checkpoint, check_slices, open_checkpoint
from trireme.checkpoint.record import Manifest, Ranges, SliceRecord, TensorRecord
from trireme.checkpoint.remote import check_place, copy_checkpoint, fetch_newest
from trireme.checkpoint.restore import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    check_resumable,
    find_nonfinite,
    restore_tensors,
    weights_only,
)
from trireme.checkpoint.save import SaveStage, save_checkpoint
from trireme.checkpoint.writer_link import Answer

__all__ = [
    "FORMAT_VERSION",
    "MODEL_PREFIX",
    "OPTIMIZER_PREFIX",
    "Answer",
    "Checkpoint",
    "CheckpointInfo",
    "Deal",
    "Difference",
    "LeadOrder",
    "Manifest",
    "Part",
    "PieceNote",
    "Ranges",
    "RankSaver",
    "Retention",
    "SaveStage",
    "SliceRecord",
    "StatePiece",
    "TensorNote",
    "TensorRecord",
    "WriteOrder",
    "begin_save",
    "blank_manifest",
    "check_place",
    "check_resumable",
    "check_slices",
    "compare_checkpoints",
    "copy_checkpoint",
    "deal_pieces",
    "describe_pieces",
    "fetch_newest",
    "find_nonfinite",
    "full_ranges",
    "is_checkpoint_root",
    "list_checkpoints",
    "newest_checkpoint",
    "open_checkpoint",
    "prune_checkpoints",
    "repair_manifests",
    "restore_tensors",
    "save_checkpoint",
    "tied_names",
    "weights_only",
    "whole_pieces",
]
