"""What a model is and costs, known from its numbers alone (no torch).

The graph of public families loads on first use: who asks only for a reference decoder doesn't pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trireme.graph.decoder import (
    DecoderShape,
    FlopCount,
    ParamCounts,
    count_matmul_params,
    count_params,
    flops_per_token,
)
from trireme.graph.preset import ALIASES, FOLLOWS_DATA, PRESETS
from trireme.graph.resolve import (
    check_model_section,
    check_seq_len,
    check_shape,
    check_vocab_size,
    find_preset,
    resolve_shape,
)

if TYPE_CHECKING:
    from trireme.graph.block import Block, BlockParam, SavedTensor
    from trireme.graph.cost import (
        ModelFlops,
        ModelParams,
        count_model_flops,
        count_model_params,
        estimate_cache_bytes,
        estimate_saved_bytes,
    )
    from trireme.graph.families.plain import read_numbers
    from trireme.graph.families.reference import read_shape
    from trireme.graph.family import FAMILIES, read_config
    from trireme.graph.model import LayerRun, MicroBatch, ModelGraph, ModelParam, Section, Stack, Tie
    from trireme.graph.name import find_graph, find_model, model_names, model_source
    from trireme.graph.numbers import DecoderNumbers
    from trireme.graph.op import AttentionCount, AttentionShape, ExpertShape, Matmul, Op, OpKind, Param
    from trireme.graph.section import graph_for_data, graph_of_section
    from trireme.graph.tape import logits_loss
    from trireme.graph.tensor import Kernels, Kind, Load, Rows, Saved, Tensor, count_rows

_LAZY = {
    "block": ("Block", "BlockParam", "SavedTensor"),
    "cost": (
        "ModelFlops",
        "ModelParams",
        "count_model_flops",
        "count_model_params",
        "estimate_cache_bytes",
        "estimate_saved_bytes",
    ),
    "families.plain": ("read_numbers",),
    "families.reference": ("read_shape",),
    "family": ("FAMILIES", "read_config"),
    "model": ("MicroBatch", "LayerRun", "ModelGraph", "ModelParam", "Section", "Stack", "Tie"),
    "name": ("find_graph", "find_model", "model_names", "model_source"),
    "numbers": ("DecoderNumbers",),
    "op": ("AttentionCount", "AttentionShape", "ExpertShape", "Matmul", "Op", "OpKind", "Param"),
    "section": ("graph_for_data", "graph_of_section"),
    "tape": ("logits_loss",),
    "tensor": ("Kernels", "Kind", "Load", "Rows", "Saved", "Tensor", "count_rows"),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "ALIASES",
    "FAMILIES",
    "FOLLOWS_DATA",
    "PRESETS",
    "AttentionCount",
    "AttentionShape",
    "Block",
    "BlockParam",
    "DecoderNumbers",
    "DecoderShape",
    "ExpertShape",
    "FlopCount",
    "Kernels",
    "Kind",
    "LayerRun",
    "Load",
    "Matmul",
    "MicroBatch",
    "ModelFlops",
    "ModelGraph",
    "ModelParam",
    "ModelParams",
    "Op",
    "OpKind",
    "Param",
    "ParamCounts",
    "Rows",
    "Saved",
    "SavedTensor",
    "Section",
    "Stack",
    "Tensor",
    "Tie",
    "check_model_section",
    "check_seq_len",
    "check_shape",
    "check_vocab_size",
    "count_matmul_params",
    "count_model_flops",
    "count_model_params",
    "count_params",
    "count_rows",
    "estimate_cache_bytes",
    "estimate_saved_bytes",
    "find_graph",
    "find_model",
    "find_preset",
    "flops_per_token",
    "graph_for_data",
    "graph_of_section",
    "logits_loss",
    "model_names",
    "model_source",
    "read_config",
    "read_numbers",
    "read_shape",
    "resolve_shape",
]
