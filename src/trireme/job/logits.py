"""Whether a run holds all logits of a micro-batch at once: chosen by their size, said, and never changing numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from trireme.config import TrainSection
from trireme.data import Batch
from trireme.errors import LayoutError
from trireme.models import deferring, output_matrices
from trireme.plan import Layout
from trireme.train import Objective
from trireme.units import format_bytes
from trireme.words import say

_LARGE_BYTES = 256 << 20
"""What fp32 logits of a micro-batch may take before ``auto`` cuts them; below, nothing is to be gained."""


def choose_logits(
    objective: Objective,
    *,
    module: nn.Module,
    batch: Batch,
    layout: Layout,
    section: TrainSection,
    notice: Callable[[str], None],
) -> Objective:
    """Give the objective as it is, or one that scores tokens without having all their logits.

    Raises:
        LayoutError: ``chunked`` is asked for and can't be.
    """
    if section.loss == "plain":
        return objective
    matrices = output_matrices(module)
    reason = ""
    if not matrices:
        reason = say("job.logits_no_matrix", kind=type(module).__name__)
    elif layout.cp > 1:
        reason = say("job.logits_context", cp=layout.cp)
    if reason and section.loss == "chunked":
        raise LayoutError("job.logits_refused", reason=reason)
    rows = max((owner.get_parameter(name).shape[0] for owner, name in matrices), default=0)
    num_bytes = 4 * rows * _tokens(batch, layout, section)
    if section.loss == "auto" and num_bytes < _LARGE_BYTES:
        return objective
    if reason:
        notice(say("job.logits_plain", size=format_bytes(num_bytes), reason=reason))
        return objective
    notice(say("job.logits_chunked", size=format_bytes(num_bytes)))
    return replace(objective, call=deferring(objective.call))


def _tokens(batch: Batch, layout: Layout, section: TrainSection) -> int:
    """Tokens of a micro-batch."""
    seqs = section.microbatch_seqs or -(-section.global_batch_seqs // (layout.dp * layout.num_microbatches))
    return seqs * int(batch.input_ids.shape[-1])
