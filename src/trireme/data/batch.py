"""One step's samples as arrays: what the loader hands to training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NOT_LEARNED = -100
"""The label of a position that nothing is learned at."""

PADDING_DOCUMENT = -1
"""The document id of padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one rank at one step.

    Shapes:
        sample_ids: [B] int64, global over an epoch. The others: [B, T] int32.
        labels: the next token; -100 at padding and where the next token is part of a prompt.
        position_ids: restart at 0 in each piece of a document, and at 0 where padding begins.
        document_ids: 0, 1, ... within the row; -1 on padding.

    Units:
        num_real_tokens: positions that are not padding. num_target_tokens: labels that are not -100.
    """

    step: int
    sample_ids: np.ndarray
    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    document_ids: np.ndarray
    num_real_tokens: int
    num_target_tokens: int
