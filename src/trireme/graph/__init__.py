"""What a model is and costs, known from its numbers alone (no torch)."""

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

__all__ = [
    "ALIASES",
    "FOLLOWS_DATA",
    "PRESETS",
    "DecoderShape",
    "FlopCount",
    "ParamCounts",
    "check_model_section",
    "check_seq_len",
    "check_shape",
    "check_vocab_size",
    "count_matmul_params",
    "count_params",
    "find_preset",
    "flops_per_token",
    "resolve_shape",
]
