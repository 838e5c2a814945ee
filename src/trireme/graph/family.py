"""Find the family that can read a config.json, and load its file only then."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from trireme.errors import ModelError
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings

FAMILIES: Mapping[str, str] = {
    "bert": "bert:build_bert",
    "bloom": "gpt:build_bloom",
    "deepseek_v2": "deepseek:build_deepseek_v2",
    "deepseek_v3": "deepseek:build_deepseek_v3",
    "ernie4_5": "llama:build_ernie",
    "ernie4_5_moe": "mixture:build_ernie_moe",
    "gemma": "gemma:build_gemma",
    "gemma2": "gemma:build_gemma2",
    "gemma3": "gemma:build_gemma3",
    "gemma3_text": "gemma:build_gemma3_text",
    "glm": "glm:build_glm",
    "glm4": "glm:build_glm4",
    "glm4_moe": "glm:build_glm4_moe",
    "gpt2": "gpt:build_gpt2",
    "gpt_neox": "gpt:build_gpt_neox",
    "gpt_oss": "mixture:build_gpt_oss",
    "kimi_k2": "deepseek:build_deepseek_v3",
    "llama": "llama:build_llama",
    "llama4": "llama4:build_llama4",
    "llama4_text": "llama4:build_llama4_text",
    "mistral": "llama:build_mistral",
    "mixtral": "mixture:build_mixtral",
    "olmo2": "llama:build_olmo2",
    "opt": "gpt:build_opt",
    "phi": "phi:build_phi",
    "phi3": "phi:build_phi3",
    "qwen2": "llama:build_qwen2",
    "qwen2_moe": "mixture:build_qwen2_moe",
    "qwen3": "llama:build_qwen3",
    "qwen3_moe": "mixture:build_qwen3_moe",
    "t5": "t5:build_t5",
    "vit": "vit:build_vit",
}
"""``model_type`` -> file and function below ``families``."""


def read_config(source: Mapping[str, Any] | str | Path, *, name: str = "") -> ModelGraph:
    """Build the graph of a Hugging Face model from its config.json: a mapping, the file, or its folder.

    Raises:
        ModelError: The file can't be read, its family isn't known, or a setting is missing or impossible.
    """
    if isinstance(source, Mapping):
        return build_graph(source, name=name or "config")
    path = Path(source)
    file = path / "config.json" if path.is_dir() else path
    return build_graph(_read_json(file), name=name or str(path))


def build_graph(values: Mapping[str, Any], *, name: str) -> ModelGraph:
    """Build the graph from the mapping of a config.json.

    Raises:
        ModelError: As for :func:`read_config`.
    """
    family = values.get("model_type")
    if not isinstance(family, str) or not family:
        raise ModelError("graph.no_family", model=name)
    where = FAMILIES.get(family)
    if where is None:
        near = difflib.get_close_matches(family, FAMILIES, n=3, cutoff=0.3) or sorted(FAMILIES)[:3]
        raise ModelError("graph.unknown_family", model=name, family=family, near=", ".join(near))
    module, _, function = where.partition(":")
    build = getattr(importlib.import_module(f"trireme.graph.families.{module}"), function)
    return cast(Callable[[Settings], ModelGraph], build)(Settings(values, name=name))


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError("graph.unreadable", path=file, reason=error.strerror or type(error).__name__) from None
    except ValueError as error:
        raise ModelError("graph.not_json", path=file, reason=error) from None
    if not isinstance(values, dict):
        raise ModelError("graph.not_json", path=file, reason=type(values).__name__)
    return values
