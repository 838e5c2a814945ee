"""Qwen2, Qwen2.5, Qwen3 and the Qwen mixtures of experts."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed, llama_like


def _qwen2(
    layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocab: int = 152064, *, tied: bool = False
) -> dict[str, Any]:
    return llama_like(
        "qwen2",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        context=131072,
        tie_word_embeddings=tied,
    )


def _qwen3(layers: int, width: int, heads: int, ffn: int, *, tied: bool = False) -> dict[str, Any]:
    return llama_like(
        "qwen3",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=8,
        ffn=ffn,
        vocab=151936,
        context=40960,
        head_dim=128,
        tie_word_embeddings=tied,
    )


def _qwen2_moe(
    layers: int, width: int, heads: int, kv_heads: int, *, ffn: int, expert: int, shared: int, experts: int, top_k: int
) -> dict[str, Any]:
    return llama_like(
        "qwen2_moe",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=151936,
        context=32768,
        moe_intermediate_size=expert,
        shared_expert_intermediate_size=shared,
        num_experts=experts,
        num_experts_per_tok=top_k,
    )


def _qwen3_moe(layers: int, width: int, heads: int, *, ffn: int, expert: int) -> dict[str, Any]:
    return llama_like(
        "qwen3_moe",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=4,
        ffn=ffn,
        vocab=151936,
        context=40960,
        head_dim=128,
        moe_intermediate_size=expert,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
    )


MODELS: tuple[Published, ...] = (
    *listed(
        "config.json of Qwen/Qwen2-*; Qwen team 2024, Qwen2 technical report, table 1",
        qwen2_0__5b=_qwen2(24, 896, 14, 2, 4864, 151936, tied=True),
        qwen2_1__5b=_qwen2(28, 1536, 12, 2, 8960, 151936, tied=True),
        qwen2_7b=_qwen2(28, 3584, 28, 4, 18944),
        qwen2_72b=_qwen2(80, 8192, 64, 8, 29568),
    ),
    *listed(
        "config.json of Qwen/Qwen2.5-*; Qwen team 2024, Qwen2.5 technical report, table 1",
        qwen2__5_0__5b=_qwen2(24, 896, 14, 2, 4864, 151936, tied=True),
        qwen2__5_1__5b=_qwen2(28, 1536, 12, 2, 8960, 151936, tied=True),
        qwen2__5_3b=_qwen2(36, 2048, 16, 2, 11008, 151936, tied=True),
        qwen2__5_7b=_qwen2(28, 3584, 28, 4, 18944),
        qwen2__5_14b=_qwen2(48, 5120, 40, 8, 13824),
        qwen2__5_32b=_qwen2(64, 5120, 40, 8, 27648),
        qwen2__5_72b=_qwen2(80, 8192, 64, 8, 29568),
    ),
    *listed(
        "config.json of Qwen/Qwen3-*; Qwen team 2025, Qwen3 technical report, tables 1 and 2",
        qwen3_0__6b=_qwen3(28, 1024, 16, 3072, tied=True),
        qwen3_1__7b=_qwen3(28, 2048, 16, 6144, tied=True),
        qwen3_4b=_qwen3(36, 2560, 32, 9728, tied=True),
        qwen3_8b=_qwen3(36, 4096, 32, 12288),
        qwen3_14b=_qwen3(40, 5120, 40, 17408),
        qwen3_32b=_qwen3(64, 5120, 64, 25600),
        qwen3_30b_a3b=_qwen3_moe(48, 2048, 32, ffn=6144, expert=768),
        qwen3_235b_a22b=_qwen3_moe(94, 4096, 64, ffn=12288, expert=1536),
    ),
    *listed(
        "config.json of Qwen/Qwen1.5-MoE-A2.7B, Qwen/Qwen2-57B-A14B",
        qwen1__5_moe_a2__7b=_qwen2_moe(24, 2048, 16, 16, ffn=5632, expert=1408, shared=5632, experts=60, top_k=4),
        qwen2_57b_a14b=_qwen2_moe(28, 3584, 28, 4, ffn=18944, expert=2560, shared=20480, experts=64, top_k=8),
    ),
)
