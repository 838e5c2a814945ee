"""Random numbers of any module by counting: whatever the micro-batches, and drawn again in recomputation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trireme.interpret import CountedRandomness
from trireme.models import CountedDropout, DropoutClock, set_dropout_clock

X_BTD = torch.randn(4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Function(nn.Module):
    """Some draw in the middle of a module."""

    def __init__(self, draw):
        super().__init__()
        self.inner, self.draw = nn.Linear(8, 8, dtype=torch.float64), draw

    def forward(self, x):
        return self.draw(self.inner(x)) + self.draw(x)


def _attend(x):
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3, is_causal=True).transpose(1, 2).flatten(2)


class LibraryAttention(nn.Module):
    def __init__(self, *, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True, dtype=torch.float64)
        self.need_weights = need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


DRAWS = {
    "module": nn.Dropout(0.3),
    "function": lambda x: F.dropout(x, 0.3),
    "torch": lambda x: torch.dropout(x, 0.3, True),
    "in_place": lambda x: F.dropout(x * 1.0, 0.3, inplace=True),
    "flat": lambda x: F.dropout(x.flatten(0, 1), 0.3).view_as(x),
    "channels": lambda x: F.dropout2d(x[..., None], 0.3)[..., 0],
    "channel_module": nn.Dropout1d(0.3),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "attention": _attend,
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.4)),
    "bernoulli_in_place": lambda x: x * torch.empty_like(x).bernoulli_(0.4),
    "rand_like": lambda x: x * (torch.rand_like(x) < 0.4),
    "rand": lambda x: x + torch.randn(x.shape, dtype=x.dtype),
    "jitter": lambda x: x * torch.empty_like(x).uniform_(0.9, 1.1),
    "normal": lambda x: x + torch.empty_like(x).normal_(0.0, 0.1),
    "gumbel": lambda x: F.gumbel_softmax(x, dim=-1),
}


def _unheard(sentence: str) -> None:
    pass


def _run(model, x, *, step=3, first_row=0, heard=_unheard):
    randomness = CountedRandomness(model, seed=7, ranks={}, notice=heard)
    with randomness.at(step=step, first_row=first_row, rows=x.shape[0]):
        return model(x)


def _model(name):
    torch.manual_seed(0)
    if name.startswith("library"):
        return LibraryAttention(need_weights=name.endswith("weights"))
    return Function(DRAWS[name])


@pytest.mark.parametrize("name", [*DRAWS, "library", "library_weights"])
def test_a_split_batch_draws_what_the_whole_one_does_and_a_step_draws_anew(name):
    model = _model(name)
    whole = _run(model, X_BTD)
    torch.manual_seed(9)  # torch's own generator has no say
    parts = [_run(model, X_BTD[row : row + size], first_row=row) for row, size in ((0, 1), (1, 2), (3, 1))]
    assert (torch.cat(parts) - whole).abs().max() < 1e-14  # products of another size round otherwise
    assert not torch.allclose(_run(model, X_BTD, step=4), whole)


def test_dropout_drops_about_its_share_and_scales_the_rest():
    model = nn.Sequential(nn.Dropout(0.25))
    result = _run(model, torch.ones(64, 64, 8))
    assert result.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert (result == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.equal(_run(model.eval(), X_BTD), X_BTD)


def test_alpha_dropout_keeps_mean_and_variance():
    x = torch.randn(64, 64, 16, generator=torch.Generator().manual_seed(2))
    result = _run(nn.Sequential(nn.AlphaDropout(0.2)), x)
    assert result.mean().item() == pytest.approx(0.0, abs=0.02)
    assert result.std().item() == pytest.approx(1.0, abs=0.02)


def test_a_plain_dropout_drops_what_the_decoders_own_drops_at_the_same_place():
    model, clock = nn.Sequential(), DropoutClock(seed=7)
    model.add_module("mlp", nn.Dropout(0.25))
    own = CountedDropout(0.25, site="mlp", clock=clock)
    set_dropout_clock(own, step=3, first_row=5)
    assert torch.equal(_run(model, X_BTD, first_row=5), own(X_BTD))


def test_calls_of_one_module_and_modules_of_one_model_draw_apart():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            return torch.stack([self.a(x), self.a(x), self.b(x), F.dropout(x, 0.5), F.dropout(x, 0.5)])

    results = _run(Twice(), torch.ones(4, 64))
    for i in range(5):
        for j in range(i):
            assert not torch.equal(results[i], results[j])


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.ReLU()) for _ in range(3)]
        ).double()
        self.recomputes = False

    def forward(self, x):
        for layer in (*self.layers, *self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputes else layer(x)
        return x


def test_recomputation_draws_what_its_forward_drew_whatever_ran_in_between():
    torch.manual_seed(0)
    model = Recomputed()
    grads = []
    for recomputes in (False, True):
        model.recomputes = recomputes
        model.zero_grad()
        randomness = CountedRandomness(model, seed=7, ranks={}, notice=_unheard)
        losses = []
        for row in range(4):  # as in a pipeline, all forwards come before the first backward
            with randomness.at(step=1, first_row=row, rows=1):
                losses.append(model(X_BTD[row : row + 1]).square().sum())
        for loss in losses:
            loss.backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, again in zip(*grads, strict=True):
        assert torch.equal(plain, again)


def test_what_is_the_same_for_all_rows_is_drawn_once_for_all():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(1, 6, 8, dtype=torch.float64))

        def forward(self, x):
            return x + F.dropout(self.table, 0.5)

    model = Positions()
    whole = _run(model, X_BTD)
    parts = [_run(model, X_BTD[row : row + 2], first_row=row) for row in (0, 2)]
    assert torch.equal(torch.cat(parts), whole)


def test_rows_that_can_not_be_placed_are_told_by_the_path():
    heard: list[str] = []

    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x.flatten(0, 1)[:5])

    _run(Chosen(), X_BTD, heard=heard.append)
    assert len(heard) == 1
    assert "drop" in heard[0]
