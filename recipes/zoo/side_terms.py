"""A loss with side terms: label smoothing, a penalty on the scores, a second head, a router's balance."""

import torch
import torch.nn.functional as F
from torch import nn


class Routed(nn.Module):
    """Every expert runs, the router weighs them; what the router chose on average goes out beside the stream."""

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, num_experts)
        self.up = nn.Parameter(torch.randn(num_experts, width, width) * 0.2)

    def forward(self, x):
        y = self.norm(x)
        shares = self.router(y).softmax(-1)
        mixed = torch.stack([F.silu(y @ weight) for weight in self.up], dim=-1)
        return x + (mixed * shares.unsqueeze(-2)).sum(-1), shares


class SideTerms(nn.Module):
    def __init__(self, vocab_size=97, width=32, num_layers=4, num_experts=3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList([Routed(width, num_experts) for _ in range(num_layers)])
        self.head, self.next_head = nn.Linear(width, vocab_size), nn.Linear(width, vocab_size)

    def forward(self, tokens):
        x, shares = self.embed(tokens), []
        for layer in self.layers:
            x, share = layer(x)
            shares.append(share)
        return {"logits": self.head(x), "second": self.next_head(x), "shares": shares}


def build() -> nn.Module:
    return SideTerms()


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(97, (seqs, seq_len + 2), generator=generator)
    counted = torch.arange(seq_len) < torch.randint(1, seq_len + 1, (seqs, 1), generator=generator)
    return {
        "tokens": tokens[:, :-2].contiguous(),
        "labels": tokens[:, 1:-1].masked_fill(~counted, -100),
        "second": tokens[:, 2:].masked_fill(~counted, -100),
    }


def loss(outputs, batch):
    """Terms of a sum over tokens; each is counted with the tokens it belongs to."""
    labels, second = batch["labels"], batch["second"]
    total = _smoothed(outputs["logits"], labels) + 0.3 * _smoothed(outputs["second"], second)
    total = total + 1e-3 * (outputs["logits"].logsumexp(-1).square() * (labels >= 0)).sum()
    return total, int((labels >= 0).sum())


def auxiliary(outputs, batch):
    """The router's balance: a mean over the counted tokens, so micro-batches are weighted as they should be."""
    counted = batch["labels"] >= 0
    balance = sum(share.square().sum(-1) for share in outputs["shares"])
    return 0.1 * (balance * counted).sum() / counted.sum().clamp_min(1)


def _smoothed(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1)
