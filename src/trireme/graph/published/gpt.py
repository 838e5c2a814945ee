"""GPT-2, GPT-3, OPT, BLOOM, GPT-NeoX, Pythia and the large dense models of that form."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed


def _gpt2(
    layers: int, width: int, heads: int, *, vocab: int = 50257, context: int = 1024, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "vocab_size": vocab,
        "n_positions": context,
        **more,
    }


def _gpt3(layers: int, width: int, heads: int) -> dict[str, Any]:
    return _gpt2(layers, width, heads, context=2048)


def _opt(layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        **more,
    }


def _bloom(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"model_type": "bloom", "n_layer": layers, "hidden_size": width, "n_head": heads, "vocab_size": 250880}


def _neox(layers: int, width: int, heads: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
    }


MODELS: tuple[Published, ...] = (
    *listed(
        "config.json of openai-community/gpt2*; Radford et al. 2019",
        gpt2=_gpt2(12, 768, 12),
        gpt2_medium=_gpt2(24, 1024, 16),
        gpt2_large=_gpt2(36, 1280, 20),
        gpt2_xl=_gpt2(48, 1600, 25),
    ),
    *listed(
        "Brown et al. 2020, Language Models are Few-Shot Learners, table 2.1 (sparse layers counted as dense; "
        "the 13B model there is 5,140 wide, which 40 heads of 128 don't fill: 5,120 here)",
        gpt3_125m=_gpt3(12, 768, 12),
        gpt3_350m=_gpt3(24, 1024, 16),
        gpt3_760m=_gpt3(24, 1536, 16),
        gpt3_1__3b=_gpt3(24, 2048, 16),
        gpt3_2__7b=_gpt3(32, 2560, 32),
        gpt3_6__7b=_gpt3(32, 4096, 32),
        gpt3_13b=_gpt3(40, 5120, 40),
        gpt3_175b=_gpt3(96, 12288, 96),
    ),
    *listed(
        "config.json of facebook/opt-*; Zhang et al. 2022, table 1 (175B: weights on request)",
        opt_125m=_opt(12, 768, 12),
        opt_350m=_opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        opt_1__3b=_opt(24, 2048, 32),
        opt_2__7b=_opt(32, 2560, 32),
        opt_6__7b=_opt(32, 4096, 32),
        opt_13b=_opt(40, 5120, 40),
        opt_30b=_opt(48, 7168, 56),
        opt_66b=_opt(64, 9216, 72),
        opt_175b=_opt(96, 12288, 96),
    ),
    *listed(
        "config.json of bigscience/bloom*; Le Scao et al. 2022, table 3",
        bloom_560m=_bloom(24, 1024, 16),
        bloom_1b1=_bloom(24, 1536, 16),
        bloom_1b7=_bloom(24, 2048, 16),
        bloom_3b=_bloom(30, 2560, 32),
        bloom_7b1=_bloom(30, 4096, 32),
        bloom_176b=_bloom(70, 14336, 112),
    ),
    *listed(
        "config.json of EleutherAI/gpt-neox-20b and EleutherAI/pythia-*; Biderman et al. 2023, table 1",
        gpt_neox_20b=_neox(44, 6144, 64, 50432),
        pythia_70m=_neox(6, 512, 8, 50304),
        pythia_160m=_neox(12, 768, 12, 50304),
        pythia_410m=_neox(24, 1024, 16, 50304),
        pythia_1b=_neox(16, 2048, 8, 50304),
        pythia_1__4b=_neox(24, 2048, 16, 50304),
        pythia_2__8b=_neox(32, 2560, 32, 50304),
        pythia_6__9b=_neox(32, 4096, 32, 50432),
        pythia_12b=_neox(36, 5120, 40, 50688),
    ),
    *listed(
        "Smith et al. 2022, Megatron-Turing NLG 530B, section 3.2",
        mt_nlg_530b=_gpt2(105, 20480, 128, vocab=51200, context=2048),
    ),
)
