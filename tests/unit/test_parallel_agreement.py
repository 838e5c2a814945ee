"""What all ranks must have alike, and what a cut batch can't have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel import call_by_name, capture
from trireme.parallel.agreement import check_kept, check_statistics


def test_statistics_over_a_batch_that_is_cut_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    check_statistics(module, num_parts=1)
    with pytest.raises(LayoutError, match=r"1 \(BatchNorm1d\) takes statistics over the batch.* 2 parts"):
        check_statistics(module, num_parts=2)
    check_statistics(nn.Sequential(nn.LayerNorm(4)), num_parts=2)


class Averaging(nn.Module):
    """Subtracts a running mean of its activations and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers:
            x = layer(x)
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean


def test_a_buffer_that_keeps_activations_is_found_and_refused_where_the_batch_is_cut() -> None:
    trace = capture(Averaging(), {"x": torch.randn(2, 4)}, call=call_by_name)
    assert trace.statistics == ("mean",)
    check_kept(trace.statistics, num_parts=1)
    with pytest.raises(LayoutError, match="into buffer mean and this layout cuts the batch into 2 parts"):
        check_kept(trace.statistics, num_parts=2)
