"""Section ``model``: which module is trained."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trireme.config.schema import Number, Section, Whole


class ModelSection(Section):
    """Exactly one of ``name``, ``factory`` and ``path`` says which module is trained."""

    name: str | None = Field(
        None, description="A reference decoder by size, e.g. llama-19m; `trireme models` lists them."
    )
    factory: str | None = Field(
        None, description="package.module:function or file.py:function that returns any torch.nn.Module."
    )
    factory_args: dict[str, Any] = Field({}, description="Keyword arguments for the factory.")
    path: str | None = Field(None, description="A Hugging Face folder (config.json, safetensors); needs extra hf.")
    init_from: str | None = Field(
        None, description="Take weights only from a checkpoint or a Hugging Face folder; training starts at step 0."
    )
    vocab_size: Whole | None = Field(
        None, ge=2, description="Default: the tokenizer's, rounded up to a multiple of 64."
    )
    num_layers: Whole | None = Field(None, ge=1, description="Overrides the named size.")
    d_model: Whole | None = Field(None, ge=1, description="Width; overrides the named size.")
    num_heads: Whole | None = Field(None, ge=1, description="Query heads; overrides the named size.")
    num_kv_heads: Whole | None = Field(None, ge=1, description="Key/value heads; overrides the named size.")
    d_ffn: Whole | None = Field(None, ge=1, description="Feed-forward width; overrides the named size.")
    max_seq_len: Whole | None = Field(None, ge=1, description="Longest sequence in tokens; overrides the named size.")
    rope_theta: Number | None = Field(
        None, gt=0, description="Base of the rotary frequencies; overrides the named size."
    )
    norm_eps: Number | None = Field(None, gt=0, description="Epsilon of RMSNorm; overrides the named size.")
    tie_embeddings: bool | None = Field(None, description="Share embedding and head; overrides the named size.")
    dropout: Number | None = Field(
        None, ge=0, lt=1, description="Dropout on residual branches; overrides the named size."
    )
