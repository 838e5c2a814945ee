"""The reference decoders by name.

Sizes without a published counterpart follow the proportions of the published ones; they are made to
learn on a laptop, so their context follows the data (``FOLLOWS_DATA``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trireme.graph.decoder import DecoderShape


def _small(
    vocab_size: int, num_layers: int, d_model: int, heads: tuple[int, int], d_ffn: int, *, tied: bool = False
) -> DecoderShape:
    num_heads, num_kv_heads = heads
    return DecoderShape(
        vocab_size=vocab_size,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        d_ffn=d_ffn,
        max_seq_len=2048,
        tie_embeddings=tied,
    )


def _llama(num_layers: int, d_model: int, num_heads: int, d_ffn: int, *, norm_eps: float) -> DecoderShape:
    return DecoderShape(
        vocab_size=32000,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        d_ffn=d_ffn,
        max_seq_len=4096 if norm_eps == 1e-5 else 2048,
        norm_eps=norm_eps,
    )


def _llama3(num_layers: int, d_model: int, num_heads: int, d_ffn: int, *, tied: bool = False) -> DecoderShape:
    return DecoderShape(
        vocab_size=128256,
        num_layers=num_layers,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=8,
        d_ffn=d_ffn,
        max_seq_len=8192,
        rope_theta=500000.0,
        tie_embeddings=tied,
    )


_SMALL: dict[str, DecoderShape] = {
    "llama-1m": _small(2048, 4, 128, (4, 2), 352, tied=True),
    "llama-3m": _small(4096, 6, 192, (6, 2), 512, tied=True),
    "llama-8m": _small(4096, 8, 288, (6, 3), 768, tied=True),
    "llama-19m": _small(8192, 8, 384, (8, 4), 1024),
    "llama-60m": _small(32000, 8, 512, (8, 4), 1408),
    "llama-125m": _small(32000, 12, 768, (12, 4), 2048),
    "llama-350m": _small(32000, 24, 1024, (16, 8), 2816),
    "llama-760m": _small(32000, 24, 1536, (24, 8), 4608),
}

PRESETS: Mapping[str, DecoderShape] = MappingProxyType(
    {
        **_SMALL,
        "llama-1b": _llama3(16, 2048, 32, 8192, tied=True),
        "llama-3b": _llama3(28, 3072, 24, 8192, tied=True),
        "llama-7b": _llama(32, 4096, 32, 11008, norm_eps=1e-5),
        "llama-8b": _llama3(32, 4096, 32, 14336),
        "llama-13b": _llama(40, 5120, 40, 13824, norm_eps=1e-5),
        "llama-30b": _llama(60, 6656, 52, 17920, norm_eps=1e-6),
        "llama-65b": _llama(80, 8192, 64, 22016, norm_eps=1e-6),
        "llama-70b": _llama3(80, 8192, 64, 28672),
        "llama-405b": _llama3(126, 16384, 128, 53248),
    }
)
"""Name -> shape.

Source:
    llama-1b, llama-3b: the text models of Llama 3.2 (config.json of the released weights). llama-8b, -70b,
    -405b: Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3; context 8,192 is that of
    pre-training, before rotary scaling. llama-7b, -13b: Touvron et al. 2023b, "Llama 2", appendix A.1.
    llama-30b (32.5 B parameters), -65b: Touvron et al. 2023a, "LLaMA", table 2.
"""

FOLLOWS_DATA: frozenset[str] = frozenset(_SMALL)
"""Presets whose longest sequence is that of the data, unless ``model.max_seq_len`` says otherwise."""

ALIASES: Mapping[str, str] = MappingProxyType({"llama-33b": "llama-30b", "llama-32b": "llama-30b"})
"""Other names people use for the same published shape."""
