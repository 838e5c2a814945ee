"""Gemma 1 to 3 and Phi 1.5 to 4."""

from __future__ import annotations

from typing import Any

from trireme.graph.published.entry import Published, listed, llama_like


def _gemma(family: str, layers: int, width: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    more = {"vocab": 256000, "context": 8192, "head_dim": 256, **more}
    return llama_like(family, layers=layers, width=width, heads=heads, kv_heads=kv_heads, ffn=ffn, **more)


def _gemma3(layers: int, width: int, heads: int, kv_heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    more = {"vocab": 262208, "context": 131072, "sliding_window": 1024, **more}
    text = _gemma("gemma3_text", layers, width, heads, kv_heads, ffn, **more)
    return {"model_type": "gemma3", "text_config": text}


def _phi3(layers: int, width: int, heads: int, ffn: int, *, vocab: int = 32064, **more: Any) -> dict[str, Any]:
    more = {"context": 4096, "kv_heads": heads, **more}
    return llama_like("phi3", layers=layers, width=width, heads=heads, ffn=ffn, vocab=vocab, **more)


MODELS: tuple[Published, ...] = (
    *listed(
        "config.json of google/gemma-2b, -7b; Gemma team 2024, table 1",
        gemma_2b=_gemma("gemma", 18, 2048, 8, 1, 16384),
        gemma_7b=_gemma("gemma", 28, 3072, 16, 16, 24576),
    ),
    *listed(
        "config.json of google/gemma-2-*; Gemma team 2024, Gemma 2, table 1",
        gemma_2_2b=_gemma("gemma2", 26, 2304, 8, 4, 9216, sliding_window=4096),
        gemma_2_9b=_gemma("gemma2", 42, 3584, 16, 8, 14336, sliding_window=4096),
        gemma_2_27b=_gemma("gemma2", 46, 4608, 32, 16, 36864, head_dim=128, sliding_window=4096),
    ),
    *listed(
        "config.json of google/gemma-3-*-pt (language part); Gemma team 2025, Gemma 3, table 1",
        gemma_3_1b=_gemma("gemma3_text", 26, 1152, 4, 1, 6912, vocab=262144, context=32768, sliding_window=512),
        gemma_3_4b=_gemma3(34, 2560, 8, 4, 10240),
        gemma_3_12b=_gemma3(48, 3840, 16, 8, 15360),
        gemma_3_27b=_gemma3(62, 5376, 32, 16, 21504, head_dim=128),
    ),
    *listed(
        "config.json of microsoft/phi-1_5, phi-2, Phi-3-mini-4k, Phi-3-medium-4k, phi-4",
        phi_1__5=llama_like("phi", layers=24, width=2048, heads=32, ffn=8192, vocab=51200, context=2048),
        phi_2=llama_like("phi", layers=32, width=2560, heads=32, ffn=10240, vocab=51200, context=2048),
        phi_3_mini=_phi3(32, 3072, 32, 8192, sliding_window=2047),
        phi_3_medium=_phi3(40, 5120, 40, 17920, kv_heads=10, sliding_window=2047),
        phi_4=_phi3(40, 5120, 40, 17920, kv_heads=10, vocab=100352, context=16384),
    ),
)
