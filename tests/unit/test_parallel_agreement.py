"""What all ranks must have alike, and what a cut batch can't have."""

from __future__ import annotations

import pytest
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel.agreement import check_statistics


def test_statistics_over_a_batch_that_is_cut_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    check_statistics(module, num_parts=1)
    with pytest.raises(LayoutError, match=r"1 \(BatchNorm1d\) takes statistics over the batch.* 2 parts"):
        check_statistics(module, num_parts=2)
    check_statistics(nn.Sequential(nn.LayerNorm(4)), num_parts=2)
