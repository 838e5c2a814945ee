"""Published models by name, a table per maker or kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trireme.graph.published import encoder, gpt, llama, mixture, qwen, small
from trireme.graph.published.entry import Published

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {entry.name: entry for module in (gpt, llama, qwen, small, mixture, encoder) for entry in module.MODELS}
)
"""Name -> settings with their source."""

ALSO_CALLED: Mapping[str, str] = MappingProxyType(
    {
        "bloom": "bloom-176b",
        "deepseek-r1": "deepseek-v3",
        "gpt3": "gpt3-175b",
        "gpt-3-175b": "gpt3-175b",
        "gpt2-small": "gpt2",
        "llama-1-33b": "llama-1-30b",
        "llama-3.1-8b-instruct": "llama-3.1-8b",
        "mistral-7b-v0.1": "mistral-7b",
        "phi-3-mini-4k": "phi-3-mini",
    }
)
"""Other names of the same shape."""

__all__ = ["ALSO_CALLED", "PUBLISHED", "Published"]
