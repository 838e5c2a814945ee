"""A run whose steps take milliseconds, for drills of minutes: it needs no file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TINY_SETTINGS: Mapping[str, Any] = {
    "model": {"name": "llama-1m", "num_layers": 2, "d_model": 32, "num_heads": 4, "num_kv_heads": 2, "d_ffn": 64},
    "data": {
        "sources": ["corpus:songci#60"],
        "seq_len": 32,
        "tokenizer_vocab_size": 300,
        "eval_fraction": 0.0,
        "build_workers": 1,
    },
    "train": {
        "max_steps": 40,
        "global_batch_seqs": 4,
        "lr": 1e-3,
        "schedule": "constant",
        "sample_every_steps": 10**9,
        "eval_every_steps": 10**9,
        "num_threads": 1,
    },
    "checkpoint": {"every_steps": 5, "keep_last": 3},
    "precision": {"policy": "fp32"},
    "observe": {"plot": False, "peak_flops_per_s": 1e11},
}


def lay_out_tiny(folder: Path, *, train: Mapping[str, Any] | None = None) -> Path:
    """Write the run file into ``folder`` and return its path; ``train`` replaces settings of that section."""
    settings = {**TINY_SETTINGS, "train": {**TINY_SETTINGS["train"], **(train or {})}}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")  # JSON is YAML
    return path
