"""Experts as people write them: a loop that picks each expert's tokens, so shapes depend on the data."""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, d_model: int, d_ffn: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, num_experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(d_model, d_ffn), nn.GELU(), nn.Linear(d_ffn, d_model)) for _ in range(num_experts)]
        )

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            if len(rows):
                mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weights[rows, places].unsqueeze(-1))
        return mixed.view_as(x)


class Block(nn.Module):
    def __init__(self, d_model: int, num_experts: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(d_model), nn.Linear(d_model, d_model)
        self.norm2, self.moe = nn.LayerNorm(d_model), Experts(d_model, 2 * d_model, num_experts)

    def forward(self, x):
        x = x + F.silu(self.mix(self.norm(x)))
        return x + self.moe(self.norm2(x))


class LoopedExperts(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_experts=4, num_layers=4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)
        self.blocks = nn.ModuleList([Block(d_model, num_experts) for _ in range(num_layers)])

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build() -> nn.Module:
    return LoopedExperts()
