"""PyTorch's own encoder layers between an embedding and a head, as its tutorials build a language model."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_heads=4, num_layers=4) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, num_heads, 2 * d_model, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.positions(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device, dtype=x.dtype)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def build() -> nn.Module:
    return Encoder()
