"""BERT, T5, Flan-T5 and ViT."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed


def _bert(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


def _t5(layers: int, width: int, heads: int, ffn: int, *, head_width: int = 64, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "num_layers": layers,
        "d_model": width,
        "num_heads": heads,
        "d_kv": head_width,
        "d_ff": ffn,
        "vocab_size": 32128,
        **more,
    }


def _flan(layers: int, width: int, heads: int, ffn: int) -> dict[str, Any]:
    return _t5(layers, width, heads, ffn, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def _vit(layers: int, width: int, heads: int, ffn: int, *, patch: int) -> dict[str, Any]:
    return {
        "model_type": "vit",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "image_size": 224,
        "patch_size": patch,
        "num_labels": 1000,
    }


MODELS: tuple[Published, ...] = (
    *listed(
        "config.json of google-bert/bert-*-uncased; Devlin et al. 2018",
        bert_base=_bert(12, 768, 12),
        bert_large=_bert(24, 1024, 16),
    ),
    *listed(
        "config.json of google-t5/t5-*; Raffel et al. 2019",
        t5_small=_t5(6, 512, 8, 2048),
        t5_base=_t5(12, 768, 12, 3072),
        t5_large=_t5(24, 1024, 16, 4096),
        t5_3b=_t5(24, 1024, 32, 16384, head_width=128),
        t5_11b=_t5(24, 1024, 128, 65536, head_width=128),
    ),
    *listed(
        "config.json of google/flan-t5-*; Chung et al. 2022",
        flan_t5_small=_flan(8, 512, 6, 1024),
        flan_t5_base=_flan(12, 768, 12, 2048),
        flan_t5_large=_flan(24, 1024, 16, 2816),
        flan_t5_xl=_flan(24, 2048, 32, 5120),
        flan_t5_xxl=_flan(24, 4096, 64, 10240),
    ),
    *listed(
        "config.json of google/vit-*-patch*-224; Dosovitskiy et al. 2020, table 1 (1,000 classes)",
        vit_base_16=_vit(12, 768, 12, 3072, patch=16),
        vit_large_16=_vit(24, 1024, 16, 4096, patch=16),
        vit_huge_14=_vit(32, 1280, 16, 5120, patch=14),
    ),
)
