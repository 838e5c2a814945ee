"""Small models in the styles people write, for the interpreter's tests; vocabulary and widths divide by 4."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS = 96, 32, 4


class FusedAttention(nn.Module):
    """One matrix for q, k and v, cut up with ``split`` and literal sizes."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        q, k, v = (each.view(B, T, HEADS, C // HEADS).transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), FusedAttention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Fused q, k, v, learned positions, head tied to the embedding."""

    def __init__(self, vocab=VOCAB):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, WIDTH), nn.Embedding(24, WIDTH)
        self.h = nn.ModuleList([GptBlock() for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class FunctionalTie(Gpt):
    """The head is the embedding's matrix, transposed in the formula."""

    def __init__(self):
        super().__init__()
        del self.lm_head

    def forward(self, input_ids):
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class LibraryBlock(nn.Module):
    """``nn.MultiheadAttention`` with a boolean mask."""

    def __init__(self, *, need_weights):
        super().__init__()
        self.need_weights = need_weights
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), 1)
        y = self.ln1(x)
        y, weights = self.attn(y, y, y, attn_mask=mask, need_weights=self.need_weights)
        x = x + y
        if weights is not None:
            x = x + weights.square().mean()
        return x + self.ffn(self.ln2(x))


class Stacked(nn.Module):
    """Embedding, blocks, head: the frame of the smaller styles."""

    def __init__(self, *blocks):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(VOCAB, WIDTH), nn.Sequential(*blocks), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids):
        return self.head(self.layers(self.embed(input_ids)))


class StyleBlock(nn.Module):
    """Attention in some style, then a plain MLP."""

    def __init__(self, attention):
        super().__init__()
        self.norm, self.norm_2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        x = x + self.out(self.attention(self.norm(x)))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class ThreeProjections(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


class Einsum(ThreeProjections):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (layer(x).view(B, T, HEADS, C // HEADS) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", weights, v).reshape(B, T, C)


class Alibi(ThreeProjections):
    """Scores by hand with a bias that differs by head."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0 ** -(head + 1) for head in range(HEADS)]).view(1, HEADS, 1, 1))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (layer(x).view(B, T, HEADS, C // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(C // HEADS) + self.slopes * distance
        scores = scores.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        return (F.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(B, T, C)


class SideBySide(nn.Module):
    """``(B, T, 3, H, K)`` and unbind."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)


class Interleaved(SideBySide):
    """q, k and v of each head beside each other."""

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, HEADS, 3 * C // HEADS).transpose(1, 2).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)


class FusedGroups(nn.Module):
    """q, k and v of unequal widths in one matrix, half as many key heads."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.w(x).split([C, C // 2, C // 2], -1)
        q = q.view(B, T, HEADS, C // HEADS)
        k, v = (each.view(B, T, HEADS // 2, C // HEADS).repeat_interleave(2, 2) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return mixed.transpose(1, 2).reshape(B, T, C)


class RawParameters(nn.Module):
    """``x @ W + b`` without modules."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH) * 0.1), nn.Parameter(torch.zeros(3 * WIDTH))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (each.reshape(B, T, HEADS, -1).transpose(1, 2) for each in (x @ self.w + self.b).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)


class ManyParts(nn.Module):
    """q, k, v, gate and up in one matrix, one key head for all (multi-query)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(WIDTH, WIDTH + 2 * 8 + 2 * 64)
        self.down = nn.Linear(64, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v, gate, up = self.w(x).split([C, 8, 8, 64, 64], -1)
        q = q.view(B, T, HEADS, 8).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k[:, None].expand(B, HEADS, T, 8), v[:, None].expand(B, HEADS, T, 8))
        return mixed.transpose(1, 2).reshape(B, T, C) + self.down(F.silu(gate) * up)


class MultiQuery(nn.Module):
    """All query heads, then one key and one value head, taken out of one view by slices."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * 8)

    def forward(self, x):
        B, T, C = x.shape
        heads = self.qkv(x).view(B, T, HEADS + 2, 8)
        q, k, v = (each.transpose(1, 2) for each in (heads[..., :-2, :], heads[..., -2:-1, :], heads[:, :, -1:]))
        weights = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(B, T, C)


class Convolution(nn.Module):
    """Two convolutions over positions with a depthwise one between."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(WIDTH, 64, 3, padding=1), nn.Conv1d(64, 64, 3, padding=1, groups=64)
        self.c = nn.Conv1d(64, WIDTH, 1)

    def forward(self, x):
        return self.c(F.gelu(self.b(self.a(x.transpose(1, 2))))).transpose(1, 2)


class WideNorm(ThreeProjections):
    """RMS norm over all heads together, with a learned weight, on q and k."""

    def __init__(self):
        super().__init__()
        self.q_weight, self.k_weight = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x):
        B, T, _ = x.shape
        q, k = (
            y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w
            for y, w in ((self.q(x), self.q_weight), (self.k(x), self.k_weight))
        )
        q, k, v = (each.view(B, T, HEADS, -1).transpose(1, 2) for each in (q, k, self.v(x)))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _encoder_layer():
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=True, norm_first=True)


STYLES = {
    "gpt": Gpt,
    "functional_tie": FunctionalTie,
    "odd_vocabulary": lambda: Gpt(vocab=97),
    "library_attention": lambda: Stacked(*[LibraryBlock(need_weights=False) for _ in range(2)]),
    "library_weights": lambda: Stacked(LibraryBlock(need_weights=True)),
    "library_layer": lambda: Stacked(_encoder_layer(), _encoder_layer()),
    "einsum": lambda: Stacked(StyleBlock(Einsum())),
    "alibi": lambda: Stacked(StyleBlock(Alibi())),
    "side_by_side": lambda: Stacked(StyleBlock(SideBySide())),
    "interleaved": lambda: Stacked(StyleBlock(Interleaved())),
    "fused_groups": lambda: Stacked(StyleBlock(FusedGroups())),
    "raw_parameters": lambda: Stacked(StyleBlock(RawParameters())),
    "many_parts": lambda: Stacked(StyleBlock(ManyParts())),
    "multi_query": lambda: Stacked(StyleBlock(MultiQuery())),
    "convolution": lambda: Stacked(StyleBlock(Convolution())),
    "wide_norm": lambda: Stacked(StyleBlock(WideNorm())),
}


def build_decoder(num_kv_heads=2):
    from trireme.graph import DecoderShape
    from trireme.models.decoder import Decoder

    shape = DecoderShape(
        vocab_size=VOCAB,
        num_layers=2,
        d_model=WIDTH,
        num_heads=HEADS,
        num_kv_heads=num_kv_heads,
        d_ffn=64,
        max_seq_len=32,
        rope_theta=1e4,
        norm_eps=1e-5,
        tie_embeddings=False,
        dropout=0.0,
    )
    return Decoder(shape)


_GPT_SIZES = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
_SIZES = {**_GPT_SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

FAMILIES = {
    "llama": ("Llama", "ForCausalLM", _SIZES),
    "qwen2": ("Qwen2", "ForCausalLM", _SIZES),
    "qwen3": ("Qwen3", "ForCausalLM", {**_SIZES, "head_dim": 8}),
    "mistral": ("Mistral", "ForCausalLM", _SIZES),
    "gemma": ("Gemma", "ForCausalLM", {**_SIZES, "head_dim": 8}),
    "phi": ("Phi", "ForCausalLM", {**_SIZES, "resid_pdrop": 0.0}),
    "phi3": ("Phi3", "ForCausalLM", {**_SIZES, "pad_token_id": 0}),
    "ernie": ("Ernie4_5", "ForCausalLM", {**_SIZES, "head_dim": 8}),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {
            "vocab_size": VOCAB,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": HEADS,
            "n_positions": 64,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "opt": (
        "OPT",
        "ForCausalLM",
        {
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": WIDTH,
            "dropout": 0.0,
        },
    ),
    "bloom": ("Bloom", "ForCausalLM", {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS}),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", {**_GPT_SIZES, "intermediate_size": 64, "max_position_embeddings": 64}),
    "falcon": ("Falcon", "ForCausalLM", _GPT_SIZES),
    "bert": (
        "Bert",
        "ForMaskedLM",
        {
            **_GPT_SIZES,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    ),
    "mixtral": ("Mixtral", "ForCausalLM", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3Moe", "ForCausalLM", {**_SIZES, **_EXPERTS, "head_dim": 8, "num_experts": 4}),
    "deepseek_v3": (
        "DeepseekV3",
        "ForCausalLM",
        {
            **_SIZES,
            **_EXPERTS,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "first_k_dense_replace": 1,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {
            "vocab_size": VOCAB,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": HEADS,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
}
"""Prefix and head of the class in transformers, and tiny sizes."""


def build_family(name, **changed):
    """A tiny model of transformers; experts are batched, for a loop over them depends on the data."""
    import transformers

    prefix, head, sizes = FAMILIES[name]
    config = getattr(transformers, f"{prefix}Config")(**{**sizes, **changed})
    model = getattr(transformers, prefix + head)(config)
    if name in ("mixtral", "qwen3_moe", "deepseek_v3"):
        model.set_experts_implementation("batched_mm")
    return model


def in_double(make):
    """What ``make`` builds, in fp64, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return make()
        finally:
            torch.set_default_dtype(default)


def build(name, **changed):
    """The model of this name, in fp64, the same on every rank."""
    if name in STYLES:
        return in_double(STYLES[name])
    if name.startswith("decoder"):
        return in_double(lambda: build_decoder(*(int(part) for part in name.split("_")[1:])))
    return in_double(lambda: build_family(name, **changed))
