"""A Llama written by hand: RMS norm, rotary positions from buffers, grouped key heads, gated feed-forward."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.width = num_heads, num_kv_heads, d_model // num_heads
        self.wq = nn.Linear(d_model, num_heads * self.width, bias=False)
        self.wk = nn.Linear(d_model, num_kv_heads * self.width, bias=False)
        self.wv = nn.Linear(d_model, num_kv_heads * self.width, bias=False)
        self.wo = nn.Linear(num_heads * self.width, d_model, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = rotate(self.wq(x).view(B, T, self.num_heads, self.width), cos, sin)
        k = rotate(self.wk(x).view(B, T, self.num_kv_heads, self.width), cos, sin)
        v = self.wv(x).view(B, T, self.num_kv_heads, self.width)
        k, v = (self.repeat(each) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().view(B, T, -1))

    def repeat(self, x):
        B, T, G, K = x.shape
        times = self.num_heads // G
        return x[:, :, :, None, :].expand(B, T, G, times, K).reshape(B, T, self.num_heads, K)


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ffn: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(d_model, d_ffn, bias=False), nn.Linear(d_model, d_ffn, bias=False)
        self.w2 = nn.Linear(d_ffn, d_model, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int, d_ffn: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(d_model, num_heads, num_kv_heads), FeedForward(d_model, d_ffn)
        self.attention_norm, self.ffn_norm = RMSNorm(d_model), RMSNorm(d_model)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=72, num_layers=4) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList([Block(d_model, num_heads, num_kv_heads, d_ffn) for _ in range(num_layers)])
        self.norm, self.output = RMSNorm(d_model), nn.Linear(d_model, vocab_size, bias=False)
        width = d_model // num_heads
        angles = torch.outer(torch.arange(64.0), 10000 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("cos", angles.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None, :], persistent=False)

    def forward(self, tokens):
        x, length = self.tok_embeddings(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.output(self.norm(x))


def build() -> nn.Module:
    return Llama()
