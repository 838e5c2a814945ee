"""Llama 1 to 4, Mistral, OLMo 2, TinyLlama."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed, llama_like


def _llama(layers: int, width: int, heads: int, ffn: int, *, context: int = 2048, **more: Any) -> dict[str, Any]:
    return llama_like("llama", layers=layers, width=width, heads=heads, ffn=ffn, vocab=32000, context=context, **more)


def _llama3(layers: int, width: int, heads: int, ffn: int, *, context: int = 8192, **more: Any) -> dict[str, Any]:
    return llama_like(
        "llama", layers=layers, width=width, heads=heads, kv_heads=8, ffn=ffn, vocab=128256, context=context, **more
    )


def _llama4(experts: int, *, step: int, context: int) -> dict[str, Any]:
    text = llama_like(
        "llama4_text",
        layers=48,
        width=5120,
        heads=40,
        kv_heads=8,
        ffn=8192,
        vocab=202048,
        context=context,
        head_dim=128,
        intermediate_size_mlp=16384,
        num_local_experts=experts,
        num_experts_per_tok=1,
        interleave_moe_layer_step=step,
        use_qk_norm=experts == 16,
    )
    return {"model_type": "llama4", "text_config": text}


def _olmo2(layers: int, width: int, heads: int, ffn: int, *, kv_heads: int | None = None) -> dict[str, Any]:
    return llama_like(
        "olmo2", layers=layers, width=width, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=100352, context=4096
    )


def _mistral(
    *, layers: int = 32, width: int = 4096, heads: int = 32, ffn: int = 14336, vocab: int = 32000, **more: Any
) -> dict[str, Any]:
    more = {"context": 32768, "sliding_window": None, **more}
    return llama_like("mistral", layers=layers, width=width, heads=heads, kv_heads=8, ffn=ffn, vocab=vocab, **more)


MODELS: tuple[Published, ...] = (
    *listed(
        "Touvron et al. 2023, LLaMA, table 2",
        llama_1_7b=_llama(32, 4096, 32, 11008),
        llama_1_13b=_llama(40, 5120, 40, 13824),
        llama_1_30b=_llama(60, 6656, 52, 17920),
        llama_1_65b=_llama(80, 8192, 64, 22016),
    ),
    *listed(
        "config.json of meta-llama/Llama-2-*-hf; Touvron et al. 2023, Llama 2, table 1",
        llama_2_7b=_llama(32, 4096, 32, 11008, context=4096),
        llama_2_13b=_llama(40, 5120, 40, 13824, context=4096),
        llama_2_70b=_llama(80, 8192, 64, 28672, context=4096, kv_heads=8),
    ),
    *listed(
        "config.json of meta-llama/Meta-Llama-3*; Grattafiori et al. 2024, The Llama 3 Herd of Models, table 3",
        llama_3_8b=_llama3(32, 4096, 32, 14336),
        llama_3_70b=_llama3(80, 8192, 64, 28672),
        llama_3_405b=_llama3(126, 16384, 128, 53248),
        llama_3__1_8b=_llama3(32, 4096, 32, 14336, context=131072),
        llama_3__1_70b=_llama3(80, 8192, 64, 28672, context=131072),
        llama_3__1_405b=_llama3(126, 16384, 128, 53248, context=131072),
        llama_3__2_1b=_llama3(16, 2048, 32, 8192, context=131072, tie_word_embeddings=True, head_dim=64),
        llama_3__2_3b=_llama3(28, 3072, 24, 8192, context=131072, tie_word_embeddings=True, head_dim=128),
        llama_3__3_70b=_llama3(80, 8192, 64, 28672, context=131072),
    ),
    *listed(
        "config.json of meta-llama/Llama-4-* (text_config)",
        llama_4_scout=_llama4(16, step=1, context=10485760),
        llama_4_maverick=_llama4(128, step=2, context=1048576),
    ),
    *listed(
        "config.json of mistralai/Mistral-7B-v0.1, -v0.3, Mistral-Nemo-Base-2407, Mistral-Large-Instruct-2407",
        mistral_7b=_mistral(sliding_window=4096),
        mistral_7b_v0__3=_mistral(vocab=32768),
        mistral_nemo_12b=_mistral(layers=40, width=5120, vocab=131072, head_dim=128, context=131072),
        mistral_large_123b=_mistral(
            layers=88, width=12288, heads=96, ffn=28672, vocab=32768, head_dim=128, context=131072
        ),
    ),
    *listed(
        "config.json of allenai/OLMo-2-*; OLMo team 2024, 2 OLMo 2 Furious",
        olmo_2_1b=_olmo2(16, 2048, 16, 8192),
        olmo_2_7b=_olmo2(32, 4096, 32, 11008),
        olmo_2_13b=_olmo2(40, 5120, 40, 13824),
        olmo_2_32b=_olmo2(64, 5120, 40, 27648, kv_heads=8),
    ),
    *listed("config.json of TinyLlama/TinyLlama-1.1B", tinyllama_1__1b=_llama(22, 2048, 32, 5632, kv_heads=4)),
)
