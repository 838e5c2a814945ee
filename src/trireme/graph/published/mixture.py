"""Mixtral, DeepSeek-V2 and V3, Kimi K2, Moonlight, GPT-OSS, ERNIE 4.5, GLM."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed, llama_like


def _mixtral(layers: int, width: int, heads: int, ffn: int, *, vocab: int, context: int) -> dict[str, Any]:
    return llama_like(
        "mixtral",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=8,
        ffn=ffn,
        vocab=vocab,
        context=context,
        num_local_experts=8,
        num_experts_per_tok=2,
    )


def _deepseek(
    family: str, *, expert: int, experts: int, top_k: int, shared: int, first: int, q_rank: int | None, **more: Any
) -> dict[str, Any]:
    return llama_like(
        family,
        moe_intermediate_size=expert,
        n_routed_experts=experts,
        num_experts_per_tok=top_k,
        n_shared_experts=shared,
        first_k_dense_replace=first,
        q_lora_rank=q_rank,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        **more,
    )


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return llama_like(
        "gpt_oss",
        layers=layers,
        width=2880,
        heads=64,
        kv_heads=8,
        ffn=2880,
        vocab=201088,
        context=131072,
        head_dim=64,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        attention_bias=True,
    )


def _ernie_moe(
    layers: int, width: int, heads: int, kv_heads: int, *, ffn: int, expert: int, top_k: int, **more: Any
) -> dict[str, Any]:
    return llama_like(
        "ernie4_5_moe",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=103424,
        context=131072,
        moe_intermediate_size=expert,
        moe_num_experts=64,
        moe_k=top_k,
        **more,
    )


def _glm_moe(
    layers: int, width: int, *, ffn: int, expert: int, experts: int, first: int, qk_norm: bool
) -> dict[str, Any]:
    return llama_like(
        "glm4_moe",
        layers=layers,
        width=width,
        heads=96,
        kv_heads=8,
        ffn=ffn,
        vocab=151552,
        context=131072,
        head_dim=128,
        attention_bias=True,
        use_qk_norm=qk_norm,
        moe_intermediate_size=expert,
        n_routed_experts=experts,
        num_experts_per_tok=8,
        n_shared_experts=1,
        first_k_dense_replace=first,
        n_group=1,
        topk_group=1,
    )


_V3_SIZE: dict[str, Any] = {"layers": 61, "width": 7168, "ffn": 18432, "expert": 2048}

MODELS: tuple[Published, ...] = (
    *listed(
        "config.json of mistralai/Mixtral-8x7B-v0.1, Mixtral-8x22B-v0.1; Jiang et al. 2024, table 1",
        mixtral_8x7b=_mixtral(32, 4096, 32, 14336, vocab=32000, context=32768),
        mixtral_8x22b=_mixtral(56, 6144, 48, 16384, vocab=32000, context=65536),
    ),
    *listed(
        "config.json of deepseek-ai/DeepSeek-V2*, -V3; DeepSeek-AI 2024 (without the layer for predicting ahead)",
        deepseek_v2_lite=_deepseek(
            "deepseek_v2",
            layers=27,
            width=2048,
            heads=16,
            ffn=10944,
            vocab=102400,
            context=163840,
            expert=1408,
            experts=64,
            top_k=6,
            shared=2,
            first=1,
            q_rank=None,
        ),
        deepseek_v2=_deepseek(
            "deepseek_v2",
            layers=60,
            width=5120,
            heads=128,
            ffn=12288,
            vocab=102400,
            context=163840,
            expert=1536,
            experts=160,
            top_k=6,
            shared=2,
            first=1,
            q_rank=1536,
        ),
        deepseek_v3=_deepseek(
            "deepseek_v3",
            **_V3_SIZE,
            heads=128,
            vocab=129280,
            context=163840,
            experts=256,
            top_k=8,
            shared=1,
            first=3,
            q_rank=1536,
        ),
    ),
    *listed(
        "config.json of moonshotai/Kimi-K2-Base, moonshotai/Moonlight-16B-A3B",
        kimi_k2=_deepseek(
            "kimi_k2",
            **_V3_SIZE,
            heads=64,
            vocab=163840,
            context=131072,
            experts=384,
            top_k=8,
            shared=1,
            first=1,
            q_rank=1536,
            n_group=1,
            topk_group=1,
        ),
        moonlight_16b_a3b=_deepseek(
            "deepseek_v3",
            layers=27,
            width=2048,
            heads=16,
            ffn=11264,
            vocab=163840,
            context=8192,
            expert=1408,
            experts=64,
            top_k=6,
            shared=2,
            first=1,
            q_rank=None,
            n_group=1,
            topk_group=1,
        ),
    ),
    *listed(
        "config.json of openai/gpt-oss-20b, -120b; OpenAI 2025, model card, table 1",
        gpt_oss_20b=_gpt_oss(24, 32),
        gpt_oss_120b=_gpt_oss(36, 128),
    ),
    *listed(
        "config.json of baidu/ERNIE-4.5-*-PT (head tied); ERNIE team 2025, ERNIE 4.5 technical report",
        ernie_4__5_0__3b=llama_like(
            "ernie4_5",
            layers=18,
            width=1024,
            heads=16,
            kv_heads=2,
            ffn=3072,
            vocab=103424,
            context=131072,
            head_dim=128,
        ),
        ernie_4__5_21b_a3b=_ernie_moe(
            28, 2560, 20, 4, ffn=12288, expert=1536, top_k=6, moe_num_shared_experts=2, moe_layer_start_index=1
        ),
        ernie_4__5_300b_a47b=_ernie_moe(
            54, 8192, 64, 8, ffn=28672, expert=3584, top_k=8, moe_num_shared_experts=0, moe_layer_start_index=3
        ),
    ),
    *listed(
        "config.json of THUDM/glm-4-9b-hf, GLM-4-32B-0414, zai-org/GLM-4.5, GLM-4.5-Air (without the layer for "
        "predicting ahead)",
        glm_4_9b=llama_like(
            "glm", layers=40, width=4096, heads=32, kv_heads=2, ffn=13696, vocab=151552, context=131072, head_dim=128
        ),
        glm_4_32b_0414=llama_like(
            "glm4",
            layers=61,
            width=6144,
            heads=48,
            kv_heads=2,
            ffn=23040,
            vocab=151552,
            context=32768,
            head_dim=128,
            attention_bias=False,
        ),
        glm_4__5=_glm_moe(92, 5120, ffn=12288, expert=1536, experts=160, first=3, qk_norm=True),
        glm_4__5_air=_glm_moe(46, 4096, ffn=10944, expert=1408, experts=128, first=1, qk_norm=False),
    ),
)
