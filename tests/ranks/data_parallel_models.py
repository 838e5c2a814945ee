"""Small models on which data parallelism must be exact, and the one device they are compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 97
"""Odd on purpose: no number of ranks divides it."""


class Block(nn.Module):
    """Norm, gated product, residual; 13 rows that four ranks can't share evenly."""

    def __init__(self, width, *, has_experts=False):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 13)
        self.down = nn.Linear(13, width, bias=False)
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.get_default_dtype()))
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4)) if has_experts else None

    def forward(self, x):
        y = self.norm(x)
        y = self.down(F.silu(self.up(y))) * self.scale
        if self.experts is not None:
            y = y + self._dispatch(x)
        return x + y

    def _dispatch(self, x):
        """Send each row to the expert its first value names: on a small batch some get nothing."""
        flat = x.flatten(0, -2)
        choice = (flat[:, 0].detach() * 3).floor().long() % len(self.experts)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            chosen = (choice == index).nonzero().flatten()
            if len(chosen):
                out = out.index_add(0, chosen, expert(flat[chosen]))
        return out.view_as(x)


class Tied(nn.Module):
    """A tiny language model: tied head, a head that nobody uses, a frozen table, mixed requires_grad."""

    def __init__(self, *, width=8, layers=3, has_experts=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.position = nn.Embedding(3, width)  # fewer rows than ranks
        self.blocks = nn.ModuleList(Block(width, has_experts=has_experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Linear(width, 5)
        self.sometimes = nn.Linear(width, width)
        self.frozen = nn.Parameter(torch.ones(6, width), requires_grad=False)
        self.blocks[0].up.bias.requires_grad_(False)

    def forward(self, ids, use_extra=False):
        x = self.embedding(ids) + self.position(ids % 3) + self.frozen.sum(0)
        for block in self.blocks:
            x = block(x)
        if use_extra:
            x = x + self.sometimes(x)
        return self.head(self.norm(x))


def build(dtype=torch.float64, **options):
    """Build the same model on every rank."""
    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    try:
        return Tied(**options)
    finally:
        torch.set_default_dtype(torch.float32)


def global_batch(step, *, rows, length=6):
    """Give token ids and targets; rows have very different numbers of supervised tokens, the second none."""
    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(VOCAB, (rows, length), generator=generator)
    targets = torch.randint(VOCAB, (rows, length), generator=generator)
    for row in range(rows):
        targets[row, 1 + (row * 5 + step) % length :] = -100
    targets[1] = -100
    return ids, targets


def loss_sum(logits, targets):
    """Sum of the cross-entropy over supervised tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
