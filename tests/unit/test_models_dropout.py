"""Dropout by counting: what is dropped depends on the place alone, compiled or not."""

from __future__ import annotations

import torch
from torch import nn

from trireme.models import CountedDropout, DropoutClock, set_dropout_clock


class Layer(nn.Module):
    def __init__(self, clock: DropoutClock, *, site: str) -> None:
        super().__init__()
        self.dropout = CountedDropout(0.25, site=site, clock=clock)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return self.dropout(x_BTD) + 1.0


class Net(nn.Module):
    """More layers than the times that a compiler tries anew before it gives up."""

    def __init__(self) -> None:
        super().__init__()
        clock = DropoutClock(seed=1)
        self.layers = nn.ModuleList(Layer(clock, site=f"layers.{index}.mlp") for index in range(12))

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD


X_BTD = torch.ones(4, 8, 16)


def _at(net: Net, *, step: int, first_row: int = 0, rows: int = 4) -> torch.Tensor:
    set_dropout_clock(net, step=step, first_row=first_row)
    return net(X_BTD[:rows])


def test_a_split_batch_drops_what_the_whole_one_does_and_a_step_draws_anew() -> None:
    net = Net()
    whole = _at(net, step=3)
    parts = [_at(net, step=3, first_row=row, rows=1) for row in range(4)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(_at(net, step=4), whole)


def test_compiled_layers_drop_the_same_and_are_compiled_once() -> None:
    plain, compiled = Net(), Net()
    for layer in compiled.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for step, row in ((0, 0), (1, 0), (2, 4), (70_000, 1 << 40)):
                expected = _at(plain, step=step, first_row=row)
                assert torch.equal(_at(compiled, step=step, first_row=row), expected)
    finally:
        torch.compiler.reset()


def test_nothing_of_the_clock_is_in_a_checkpoint() -> None:
    assert Net().state_dict() == {}
