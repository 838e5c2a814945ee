"""Two stacks of blocks, one for text and one for features, of unlike widths; a third reads both."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Stacks(nn.Module):
    def __init__(self, vocab_size=97, width=32, features=12) -> None:
        super().__init__()
        self.embed, self.stem = nn.Embedding(vocab_size, width), nn.Linear(features, 2 * width)
        self.text = nn.ModuleList([Block(width) for _ in range(3)])
        self.seen = nn.ModuleList([Block(2 * width) for _ in range(2)])
        self.join = nn.Linear(3 * width, width)
        self.both = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens, features):
        x, y = self.embed(tokens), self.stem(features)
        for block in self.text:
            x = block(x)
        for block in self.seen:
            y = block(y)
        x = self.join(torch.cat([x, y], dim=-1))
        for block in self.both:
            x = block(x)
        return self.head(x)


def build() -> nn.Module:
    return Stacks()


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(97, (seqs, seq_len), generator=generator)
    features = torch.randn(seqs, seq_len, 12, generator=generator)
    counted = torch.arange(seq_len) < torch.randint(1, seq_len + 1, (seqs, 1), generator=generator)
    return {"tokens": tokens, "features": features, "labels": tokens.masked_fill(~counted, -100)}


def loss(outputs, batch):
    labels = batch["labels"]
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum"), int((labels >= 0).sum())
