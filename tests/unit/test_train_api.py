"""The step in someone's own loop: the example of the docstring, run as it is written."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

import trireme
from trireme import train
from trireme.errors import TrainError
from trireme.train import Stepper

LONGEST_EXAMPLE = 14


def _example() -> str:
    doc = Stepper.__doc__ or ""
    block = doc.split("::\n", 1)[1].split("Args:", 1)[0]
    return textwrap.dedent(block)


def test_the_example_of_the_docstring_trains(capsys, monkeypatch):
    monkeypatch.setattr(trireme, "Stepper", train.Stepper, raising=False)
    code = _example()
    assert len(code.strip().splitlines()) <= LONGEST_EXAMPLE
    names: dict[str, object] = {}
    exec(compile(code, "example", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert names["report"].outcome == "updated"  # type: ignore[attr-defined]


def test_a_module_gets_what_its_forward_takes_by_name():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.linear(left - right)

    module = Two()
    stepper = Stepper(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss_fn=lambda outputs, batch: outputs.square().mean(),
        loss_reduction="mean",
    )
    batch = {"right": torch.randn(4, 3), "unused": torch.zeros(4), "left": torch.randn(4, 3)}
    losses = [stepper(batch).loss for _ in range(5)]
    assert losses[-1] < losses[0]


def test_los_03_an_auxiliary_loss_beside_the_logits_is_refused_not_dropped():
    class Outputs:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits, self.aux_loss = logits, logits.mean()

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(8, 8)

        def forward(self, input_ids: torch.Tensor) -> Outputs:
            return Outputs(self.embed(input_ids))

    module = Mixture()
    stepper = Stepper(module, torch.optim.SGD(module.parameters(), lr=0.1))
    ids = torch.arange(6).view(2, 3)
    with pytest.raises(TrainError, match="aux_loss"):
        stepper({"input_ids": ids, "labels": ids})
    assert not module._forward_hooks


def test_a_token_batch_needs_nothing_but_module_and_optimizer():
    module = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 8))
    module.forward = lambda input_ids: module[1](module[0](input_ids))  # type: ignore[method-assign]
    stepper = Stepper(module, torch.optim.AdamW(module.parameters(), lr=0.05), microbatch_seqs=2)
    ids = torch.arange(24).view(4, 6) % 8
    batch = {"input_ids": ids, "labels": (ids + 1) % 8}
    losses = [stepper(batch).loss for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_module_that_takes_nothing_of_the_batch_is_told_so():
    module = nn.Linear(3, 1)
    stepper = Stepper(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss_fn=lambda outputs, batch: outputs.mean(),
        loss_reduction="mean",
    )
    with pytest.raises(TrainError, match="takes input; the batch has x"):
        stepper({"x": torch.randn(4, 3)})
