"""Recurrences: a GRU of the library, then a state carried by hand from position to position."""

import torch
from torch import nn


class Carried(nn.Module):
    """A gated running mean over positions, written as a loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate, self.value = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        gates, values = torch.sigmoid(self.gate(self.norm(x))), self.value(x)
        state, states = torch.zeros_like(values[:, 0]), []
        for position in range(x.shape[1]):
            state = gates[:, position] * state + (1 - gates[:, position]) * values[:, position]
            states.append(state)
        return x + torch.stack(states, dim=1)


class Recurrent(nn.Module):
    def __init__(self, vocab_size=97, width=32) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(vocab_size, width), nn.GRU(width, width, num_layers=1, batch_first=True)
        self.layers = nn.ModuleList([Carried(width) for _ in range(4)])
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        x, _ = self.gru(self.embed(tokens))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build() -> nn.Module:
    return Recurrent()
