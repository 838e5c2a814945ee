"""An MLP-Mixer over image patches: no attention, linear layers across patches and across channels."""

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MixerBlock(nn.Module):
    def __init__(self, num_patches: int, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.across_patches, self.across_channels = Mlp(num_patches, 2 * num_patches), Mlp(channels, 4 * channels)

    def forward(self, x):
        x = x + self.across_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across_channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, num_patches=16, patch=12, channels=32, num_blocks=4, num_classes=7) -> None:
        super().__init__()
        self.stem = nn.Linear(patch, channels)
        self.blocks = nn.ModuleList([MixerBlock(num_patches, channels) for _ in range(num_blocks)])
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, num_classes)

    def forward(self, patches):
        x = self.stem(patches)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def build() -> nn.Module:
    return Mixer()


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """Sixteen patches an image, whatever ``seq_len``; the length of a mixer is part of its weights."""
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(seqs, 16, 12, generator=generator)
    return {"patches": patches, "classes": torch.randint(7, (seqs,), generator=generator)}


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["classes"], reduction="sum"), len(batch["classes"])
