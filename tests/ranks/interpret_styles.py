"""Further styles of attention, gating, convolution and recurrence, each as a block between embedding and head."""

from __future__ import annotations

import math

import interpret_models
import torch
import torch.nn.functional as F
from interpret_models import HEADS, WIDTH, Stacked, StyleBlock, ThreeProjections
from torch import nn

K = WIDTH // HEADS


def _heads(x, num_heads=HEADS):
    B, T, _ = x.shape
    return x.view(B, T, num_heads, -1).transpose(1, 2)


def _merged(x):
    return x.transpose(1, 2).flatten(2)


def _causal(scores):
    T = scores.shape[-1]
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=scores.device).triu(1), float("-inf"))


class AlibiMask(ThreeProjections):
    """Slopes made in the forward, folded into one additive mask for the fused kernel."""

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        slopes = torch.pow(2.0, -torch.arange(1, HEADS + 1, dtype=x.dtype))
        place = torch.arange(T)
        bias = -slopes[:, None, None] * (place[:, None] - place[None, :]).abs()
        bias = bias[None].expand(B, HEADS, T, T) + torch.full((T, T), float("-inf"), dtype=x.dtype).triu(1)
        return _merged(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


class AlibiFused(ThreeProjections):
    """BLOOM's way: heads folded into the batch, ``baddbmm`` adds the bias."""

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (_heads(layer(x)).reshape(B * HEADS, T, K) for layer in (self.q, self.k, self.v))
        slopes = torch.tensor([2.0 ** -(head + 1) for head in range(HEADS)], dtype=x.dtype)
        alibi = (slopes[None, :, None, None] * torch.arange(T)).expand(B, HEADS, 1, T).reshape(B * HEADS, 1, T)
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=1 / math.sqrt(K))
        weights = _causal(scores.view(B, HEADS, T, T)).softmax(-1).view(B * HEADS, T, T)
        return _merged(torch.bmm(weights, v).view(B, HEADS, T, K))


class RelativeTable(ThreeProjections):
    """A learned bias per head and distance, looked up in a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, HEADS)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        distance = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).clamp(0, 31)
        scores = q @ k.transpose(-1, -2) / math.sqrt(K) + self.table(distance).permute(2, 0, 1).unsqueeze(0)
        return _merged(_causal(scores).softmax(-1) @ v)


class SwinTable(ThreeProjections):
    """The same as a bare parameter, indexed and reshaped."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, HEADS))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        distance = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).clamp(0, 31)
        bias = self.table[distance.view(-1)].view(T, T, -1).permute(2, 0, 1).contiguous()
        return _merged(((q * K**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1) @ v)


class EinsumWeights(nn.Module):
    """Weights of three dims, every product an einsum."""

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(WIDTH, HEADS, K) * 0.2) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(HEADS, K, WIDTH) * 0.2)

    def forward(self, x):
        q, k, v = (torch.einsum("btd,dhk->bthk", x, w) for w in (self.wq, self.wk, self.wv))
        weights = _causal(torch.einsum("b t h k, b s h k -> b h t s", q, k)).softmax(-1)
        return torch.einsum("bhts,bshk,hkd->btd", weights, v, self.wo)


class EinsumFused(nn.Module):
    """q, k and v as one weight ``[3, H, K, D]``; ellipses; no arrow for the last product."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, HEADS, K, WIDTH) * 0.2)
        self.o = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.2)

    def forward(self, x):
        q, k, v = torch.einsum("...d,nhkd->n...hk", x, self.w)
        weights = torch.einsum("...thk,...shk->...hts", q, k).softmax(-1)
        return torch.einsum("btc,cx", torch.einsum("...hts,...shk->...thk", weights, v).flatten(2), self.o)


class EinsumGroups(nn.Module):
    """Grouped queries with the group as a dim of its own."""

    def __init__(self, groups=2):
        super().__init__()
        self.groups = groups
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * groups * K)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.groups, HEADS // self.groups, K)
        k, v = self.kv(x).view(B, T, 2, self.groups, K).unbind(2)
        weights = _causal(torch.einsum("btgrk,bsgk->bgrts", q, k) * K**-0.5).softmax(-1)
        return torch.einsum("bgrts,bsgk->btgrk", weights, v).reshape(B, T, WIDTH)


class CausalConvolution(nn.Module):
    """A short depthwise convolution on whole channels, as state-space models have; then a gate."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(64, WIDTH)
        self.conv = nn.Conv1d(64, 64, 4, padding=3, groups=64)

    def forward(self, x):
        y, z = self.up(x).chunk(2, dim=-1)
        y = self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.down(F.silu(y) * F.silu(z))


class GroupedConvolution(nn.Module):
    """Channels in four groups, between two pointwise convolutions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv1d(WIDTH, 64, 1),
            nn.Conv1d(64, 32, 3, padding=1, groups=4),
            nn.Conv1d(32, WIDTH, 1),
        )

    def forward(self, x):
        return self.c(self.b(self.a(x.mT).relu()).relu()).mT


class FirstDepthwise(nn.Module):
    """A depthwise convolution straight on the residual stream."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.mix(self.conv(x.transpose(1, 2)).transpose(1, 2))


class OddLibrary(nn.Module):
    """``nn.MultiheadAttention`` with everything that is rarely used."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x):
        keys = x[..., : self.attention.kdim], x[..., : self.attention.vdim]
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[0, -2:] = True
        return self.attention(x, *keys, key_padding_mask=padding, need_weights=False)[0]


class GatedHalves(nn.Module):
    """Gated units by every way to halve a matrix."""

    def __init__(self, halves):
        super().__init__()
        self.halves = halves
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(64, WIDTH)

    def forward(self, x):
        gate, up = self.halves(self.up(x))
        return self.down(F.silu(gate) * up)


class HeadNorm(ThreeProjections):
    """q and k normed by head, with one weight for all heads or one for each."""

    def __init__(self, *, shared):
        super().__init__()
        shape = (K,) if shared else (HEADS, K)
        self.q_weight, self.k_weight = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x):
        B, T, _ = x.shape
        q, k = (F.rms_norm(layer(x).view(B, T, HEADS, K), (K,)) for layer in (self.q, self.k))
        q, k = ((y * w).transpose(1, 2) for y, w in ((q, self.q_weight), (k, self.k_weight)))
        return _merged(F.scaled_dot_product_attention(q, k, _heads(self.v(x)), is_causal=True))


class Latent(nn.Module):
    """Keys and values through a narrow latent, part of each head turned by one key for all heads."""

    def __init__(self):
        super().__init__()
        self.q, self.kv_a, self.norm = nn.Linear(WIDTH, HEADS * 12), nn.Linear(WIDTH, 16 + 4), nn.RMSNorm(16)
        self.kv_b, self.o = nn.Linear(16, HEADS * (8 + 8)), nn.Linear(HEADS * 8, WIDTH)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, HEADS, 12).transpose(1, 2)
        latent, turned = self.kv_a(x).split([16, 4], -1)
        k, v = self.kv_b(self.norm(latent)).view(B, T, HEADS, 16).transpose(1, 2).split([8, 8], -1)
        keys = k.new_empty(B, HEADS, T, 12)
        keys[..., :8] = k
        keys[..., 8:] = turned.view(B, 1, T, 4).expand(-1, HEADS, -1, -1)
        return self.o(_merged(F.scaled_dot_product_attention(q, keys, v, is_causal=True)))


class LinearAttention(ThreeProjections):
    """No softmax: running sums of keys times values, by head."""

    def forward(self, x):
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        mixed = (q.unsqueeze(-2) @ state).squeeze(-2)
        return _merged(mixed / (q * k.cumsum(2)).sum(-1, keepdim=True))


class Recurrent(nn.Module):
    """A decayed state carried by a loop over positions, outputs stacked."""

    def __init__(self):
        super().__init__()
        self.r, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay, self.out = nn.Parameter(torch.rand(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        r, k, v = self.r(x).sigmoid(), self.k(x).exp(), self.v(x)
        decay, outs = torch.exp(-self.decay.exp()), []
        top = torch.zeros_like(k[:, 0])
        for t in range(x.shape[1]):
            top = decay * top + k[:, t] * v[:, t]
            outs.append(top)
        return self.out(r * torch.stack(outs, 1))


class LibraryRecurrence(nn.Module):
    """``nn.GRU``: its kernel hides everything."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


class ParallelBranches(ThreeProjections):
    """Attention and MLP read the same norm and are added (GPT-J, Falcon)."""

    def __init__(self):
        super().__init__()
        self.o, self.up, self.down = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, 64),
            nn.Linear(64, WIDTH, bias=False),
        )

    def forward(self, x):
        q, k, v = (_heads(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(_merged(F.scaled_dot_product_attention(q, k, v, is_causal=True))) + self.down(self.up(x).relu())


class LoopedExperts(nn.Module):
    """A mixture whose every expert is a module that sees all tokens, weighted."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(4)
        )

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        top, chosen = shares.topk(2, -1)
        shares = torch.zeros_like(shares).scatter(-1, chosen, top)
        return sum(expert(x) * shares[..., place, None] for place, expert in enumerate(self.experts))


class MixerTokens(nn.Module):
    """An MLP over positions, then one over channels (needs 12 tokens)."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))

    def forward(self, x):
        return self.tokens(x.transpose(1, 2)).transpose(1, 2)


class TrackedMean(nn.Module):
    """Statistics over the batch."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Linear(64, WIDTH)

    def forward(self, x):
        return self.down(self.norm(self.up(x).transpose(1, 2)).relu().transpose(1, 2))


def _block(attention):
    return lambda: Stacked(StyleBlock(attention()))


_STYLES = {
    "alibi_mask": AlibiMask,
    "alibi_fused": AlibiFused,
    "relative_table": RelativeTable,
    "swin_table": SwinTable,
    "einsum_weights": EinsumWeights,
    "einsum_fused": EinsumFused,
    "einsum_groups": EinsumGroups,
    "einsum_one_group": lambda: EinsumGroups(groups=1),
    "causal_convolution": CausalConvolution,
    "grouped_convolution": GroupedConvolution,
    "first_depthwise": FirstDepthwise,
    "library_zero": lambda: OddLibrary(add_zero_attn=True),
    "library_bias": lambda: OddLibrary(add_bias_kv=True),
    "library_widths": lambda: OddLibrary(kdim=16, vdim=24),
    "library_all": lambda: OddLibrary(kdim=16, vdim=24, add_bias_kv=True, add_zero_attn=True),
    "gate_chunk": lambda: GatedHalves(lambda x: x.chunk(2, -1)),
    "gate_split": lambda: GatedHalves(lambda x: torch.split(x, 64, dim=-1)),
    "gate_unbind": lambda: GatedHalves(lambda x: x.unflatten(-1, (2, 64)).unbind(-2)),
    "gate_index": lambda: GatedHalves(lambda x: (x[..., :64], x[..., 64:])),
    "gate_interleaved": lambda: GatedHalves(lambda x: (x[..., ::2], x[..., 1::2])),
    "gate_last": lambda: GatedHalves(lambda x: x.view(*x.shape[:-1], 64, 2).unbind(-1)),
    "gate_glu": lambda: GatedHalves(lambda x: x.tensor_split(2, -1)),
    "head_norm": lambda: HeadNorm(shared=True),
    "norm_by_head": lambda: HeadNorm(shared=False),
    "latent": Latent,
    "linear_attention": LinearAttention,
    "recurrent": Recurrent,
    "library_recurrence": LibraryRecurrence,
    "parallel_branches": ParallelBranches,
    "looped_experts": LoopedExperts,
    "mixer_tokens": MixerTokens,
}
MORE_STYLES = {name: _block(attention) for name, attention in _STYLES.items()}


def build_any(name):
    """A model by name, of these styles or of ``interpret_models``; ``family:form`` sets how experts run."""
    family, _, form = name.partition(":")
    if form:
        model = interpret_models.build(family)
        model.set_experts_implementation(form)
        return model
    if name.endswith("_heads"):
        return interpret_models.build(name.removesuffix("_heads"), num_key_value_heads=HEADS)
    if name not in MORE_STYLES:
        return interpret_models.build(name)
    return interpret_models.in_double(MORE_STYLES[name])
