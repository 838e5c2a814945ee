"""A loss over the whole batch: two towers, and every pair of rows is compared with every other."""

import torch
import torch.nn.functional as F
from torch import nn

loss_reduction = "batch"


class Tower(nn.Module):
    def __init__(self, features: int, width: int, num_blocks: int) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(num_blocks)
            ]
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return F.normalize(x, dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, width=32) -> None:
        super().__init__()
        self.text, self.image = Tower(9, width, 2), Tower(14, width, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, text, image):
        return self.text(text) * self.scale.exp(), self.image(image)


def build() -> nn.Module:
    return TwoTowers()


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """One vector a row and side; ``seq_len`` has no meaning here."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "text": torch.randn(seqs, 9, generator=generator),
        "image": torch.randn(seqs, 14, generator=generator),
    }


def loss(outputs, batch):
    """A mean over the rows of the whole batch, which is all that can be said of a loss like this."""
    text, image = outputs
    scores, own = text @ image.T, torch.arange(len(text), device=text.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
