"""Tiny models of every public family, built by transformers, to hold the torch-free graph against."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SEQS, SEQ_LEN, TARGET_LEN = 2, 40, 28
IMAGE, PATCH = 56, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers that a tiny model is made of; ``fixed`` for measuring, ``drawn`` for counting."""

    layers: int = 2
    heads: int = 6
    kv_heads: int = 2
    head_width: int = 16
    width: int = 96
    ffn: int = 160
    expert_ffn: int = 48
    experts: int = 4
    top_k: int = 2
    shared: int = 2
    vocab: int = 97
    tied: bool = False
    bias: bool = False
    window: int = 16
    first_dense: int = 1

    @staticmethod
    def drawn(seed: int) -> Sizes:
        """Odd sizes: head width times heads isn't the model's width, layers aren't alike."""
        draw = random.Random(seed)
        kv_heads = draw.choice([1, 2, 3])
        heads = kv_heads * draw.choice([1, 2, 4])
        return Sizes(
            layers=draw.randint(1, 4),
            heads=heads,
            kv_heads=kv_heads,
            head_width=4 * draw.randint(1, 5),
            width=heads * 8 * draw.randint(1, 3),
            ffn=draw.randint(20, 90),
            expert_ffn=draw.randint(10, 30),
            experts=4 * draw.randint(1, 3),
            top_k=draw.randint(1, 4),
            shared=draw.randint(1, 3),
            vocab=draw.randint(30, 130),
            tied=draw.random() < 0.5,
            bias=draw.random() < 0.5,
            first_dense=draw.randint(0, 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A class of transformers with its config, and the name of its class."""

    model_class: Any
    config: Any

    def values(self) -> dict[str, Any]:
        """What a config.json of this model would say."""
        return {**self.config.to_dict(), "architectures": [self.model_class.__name__]}

    def inputs(self) -> dict[str, Any]:
        """One micro-batch."""
        import torch

        if self.config.model_type == "vit":
            return {"pixel_values": torch.randn(SEQS, 3, IMAGE, IMAGE)}
        ids = torch.arange(SEQS * SEQ_LEN).reshape(SEQS, SEQ_LEN) % (self.config.vocab_size - 2) + 1
        if self.config.model_type == "t5":
            return {"input_ids": ids, "decoder_input_ids": ids[:, :TARGET_LEN], "use_cache": False}
        return {"input_ids": ids, "use_cache": False} if self.config.model_type != "bert" else {"input_ids": ids}


def tiny_model(name: str, sizes: Sizes) -> Tiny:
    """Build the config of family ``name`` at those sizes."""
    import transformers

    transformers.logging.set_verbosity_error()
    class_name, config_name, keys = FAMILY_MODELS[name](sizes)
    return Tiny(model_class=getattr(transformers, class_name), config=getattr(transformers, config_name)(**keys))


Recipe = tuple[str, str, dict[str, Any]]


def _usual(s: Sizes, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": s.vocab,
        "hidden_size": s.width,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": s.tied,
        **more,
    }


def _plain_heads(s: Sizes, **more: Any) -> dict[str, Any]:
    keys = _usual(s, **more)
    del keys["num_key_value_heads"]
    return keys


def _experts(s: Sizes, **more: Any) -> dict[str, Any]:
    return {"moe_intermediate_size": s.expert_ffn, "num_experts_per_tok": s.top_k, **more}


def _latent(s: Sizes, **more: Any) -> dict[str, Any]:
    # Equal widths of keys and values, so that torch's fused attention takes them on a CPU.
    return _usual(
        s,
        num_key_value_heads=s.heads,
        kv_lora_rank=2 * s.head_width,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=20,
        head_dim=8,
        n_routed_experts=s.experts,
        n_shared_experts=s.shared,
        first_k_dense_replace=s.first_dense,
        **{**_experts(s), **more},
    )


def _gpt2(s: Sizes) -> Recipe:
    return (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": s.vocab,
            "n_embd": s.width,
            "n_layer": s.layers,
            "n_head": s.heads,
            "n_positions": 64,
            "n_inner": s.ffn if s.bias else None,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    )


def _opt(s: Sizes, **more: Any) -> Recipe:
    return (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": s.vocab,
            "hidden_size": s.width,
            "ffn_dim": s.ffn,
            "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads,
            "max_position_embeddings": 64,
            "dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        },
    )


def _t5(s: Sizes, **more: Any) -> Recipe:
    return (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": s.vocab,
            "d_model": s.width,
            "d_ff": s.ffn,
            "d_kv": s.head_width,
            "num_layers": s.layers,
            "num_decoder_layers": s.layers + 1,
            "num_heads": s.heads,
            "dropout_rate": 0.0,
            **more,
        },
    )


def _vit(s: Sizes, class_name: str) -> Recipe:
    keys = {
        "hidden_size": s.width,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "image_size": IMAGE,
        "patch_size": PATCH,
        "num_labels": 11,
        "qkv_bias": not s.bias,
    }
    return class_name, "ViTConfig", keys


def _bert(s: Sizes, class_name: str) -> Recipe:
    keys = _plain_heads(s, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, tie_word_embeddings=True)
    return class_name, "BertConfig", keys


FAMILY_MODELS: Mapping[str, Callable[[Sizes], Recipe]] = {
    "llama": lambda s: (
        "LlamaForCausalLM",
        "LlamaConfig",
        _usual(s, head_dim=s.head_width, attention_bias=s.bias, mlp_bias=s.bias),
    ),
    "llama classifier": lambda s: ("LlamaForSequenceClassification", "LlamaConfig", _usual(s, num_labels=5)),
    "llama bare": lambda s: ("LlamaModel", "LlamaConfig", _usual(s)),
    "mistral": lambda s: (
        "MistralForCausalLM",
        "MistralConfig",
        _usual(s, head_dim=s.head_width, sliding_window=s.window),
    ),
    "mistral wide": lambda s: ("MistralForCausalLM", "MistralConfig", _usual(s, sliding_window=4 * SEQ_LEN)),
    "qwen2": lambda s: ("Qwen2ForCausalLM", "Qwen2Config", _usual(s)),
    "qwen2 sliding": lambda s: (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        _usual(s, use_sliding_window=True, sliding_window=s.window, max_window_layers=1),
    ),
    "qwen3": lambda s: (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        _usual(s, head_dim=s.head_width, attention_bias=s.bias),
    ),
    "olmo2": lambda s: ("Olmo2ForCausalLM", "Olmo2Config", _usual(s, attention_bias=s.bias)),
    "ernie4_5": lambda s: (
        "Ernie4_5ForCausalLM",
        "Ernie4_5Config",
        _usual(s, head_dim=s.head_width, use_bias=s.bias),
    ),
    "gemma": lambda s: ("GemmaForCausalLM", "GemmaConfig", _usual(s, head_dim=s.head_width)),
    "gemma2": lambda s: (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _usual(s, head_dim=s.head_width, sliding_window=s.window),
    ),
    "gemma3_text": lambda s: (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _usual(s, head_dim=s.head_width, sliding_window=s.window, sliding_window_pattern=2),
    ),
    "phi": lambda s: ("PhiForCausalLM", "PhiConfig", _usual(s, qk_layernorm=s.bias)),
    "phi3": lambda s: ("Phi3ForCausalLM", "Phi3Config", _usual(s, max_position_embeddings=4096)),
    "opt": lambda s: _opt(s, word_embed_proj_dim=s.width - 4, enable_bias=not s.bias),
    "opt post-norm": lambda s: _opt(s, do_layer_norm_before=False),
    "bloom": lambda s: (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": s.vocab, "hidden_size": s.width, "n_layer": s.layers, "n_head": s.heads},
    ),
    "gpt2": _gpt2,
    "gpt_neox": lambda s: (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        _plain_heads(s, use_parallel_residual=not s.bias, attention_bias=not s.bias),
    ),
    "glm": lambda s: ("GlmForCausalLM", "GlmConfig", _usual(s, head_dim=s.head_width)),
    "glm4": lambda s: ("Glm4ForCausalLM", "Glm4Config", _usual(s, head_dim=s.head_width, attention_bias=s.bias)),
    "glm4_moe": lambda s: (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        _usual(
            s,
            n_routed_experts=s.experts,
            n_shared_experts=s.shared,
            first_k_dense_replace=s.first_dense,
            use_qk_norm=not s.bias,
            attention_bias=s.bias,
            **_experts(s),
        ),
    ),
    "mixtral": lambda s: (
        "MixtralForCausalLM",
        "MixtralConfig",
        _usual(s, num_local_experts=s.experts, num_experts_per_tok=s.top_k),
    ),
    "qwen2_moe": lambda s: (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        _usual(s, num_experts=s.experts, shared_expert_intermediate_size=s.ffn, mlp_only_layers=[0], **_experts(s)),
    ),
    "qwen3_moe": lambda s: (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        _usual(s, num_experts=s.experts, head_dim=s.head_width, norm_topk_prob=True, **_experts(s)),
    ),
    "deepseek_v2": lambda s: ("DeepseekV2ForCausalLM", "DeepseekV2Config", _latent(s, q_lora_rank=None)),
    "deepseek_v3": lambda s: (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        _latent(s, q_lora_rank=40, n_group=2, topk_group=1, attention_bias=s.bias),
    ),
    "gpt_oss": lambda s: (
        "GptOssForCausalLM",
        "GptOssConfig",
        _usual(
            s,
            num_local_experts=s.experts,
            num_experts_per_tok=s.top_k,
            head_dim=s.head_width,
            sliding_window=s.window,
        ),
    ),
    "ernie4_5_moe": lambda s: (
        "Ernie4_5_MoeForCausalLM",
        "Ernie4_5_MoeConfig",
        _usual(
            s,
            moe_num_experts=s.experts,
            moe_k=s.top_k,
            moe_intermediate_size=s.expert_ffn,
            moe_num_shared_experts=s.shared - 1,
            moe_layer_start_index=s.first_dense,
            use_bias=s.bias,
        ),
    ),
    "llama4_text": lambda s: (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        _usual(
            s,
            # transformers runs every expert on every token; one expert makes that the routed cost.
            num_local_experts=1,
            intermediate_size_mlp=s.ffn + 8,
            head_dim=s.head_width,
            interleave_moe_layer_step=2,
            attention_chunk_size=None,
        ),
    ),
    "bert": lambda s: _bert(s, "BertForMaskedLM"),
    "bert pretraining": lambda s: _bert(s, "BertForPreTraining"),
    "bert bare": lambda s: _bert(s, "BertModel"),
    "bert classifier": lambda s: _bert(s, "BertForSequenceClassification"),
    "t5": lambda s: _t5(s),
    "t5 gated": lambda s: _t5(s, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "vit": lambda s: _vit(s, "ViTForImageClassification"),
    "vit bare": lambda s: _vit(s, "ViTModel"),
}

NO_SDPA = frozenset({"bloom", "gemma2", "gpt_oss"})
"""Families that transformers runs with eager attention only (score biases, caps, sinks)."""

NO_LOGITS = frozenset(
    {"llama bare", "llama classifier", "bert bare", "bert classifier", "bert pretraining", "vit bare"}
)
"""Heads that aren't measured: their cost is a row per sequence."""

MEASURED = tuple(name for name in FAMILY_MODELS if name not in NO_LOGITS)
