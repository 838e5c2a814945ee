"""Linear layers whose products are computed in 8 bits, by torchao; the only file that knows it."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

from torch import nn

from trireme.errors import DeviceError

_MULTIPLE = 16
"""Lengths of both sides of a weight that the 8-bit kernels take."""


def convert_linears(module: nn.Module, *, emulates: bool = False) -> None:
    """Let every linear layer that 8-bit kernels can take compute in fp8, in place; weights stay what they are.

    The layer that makes logits stays as it is: its errors would be the loss's.

    Args:
        module: Before it is spread over ranks.
        emulates: Compute the same numbers without 8-bit products, slowly, on any device.

    Raises:
        DeviceError: torchao isn't installed.

    Source:
        Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; scales per tensor, taken anew for each product.
    """
    if find_spec("torchao") is None:
        raise DeviceError("train.no_torchao")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    words = {each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)}
    convert_to_float8_training(
        module,
        config=Float8LinearConfig(emulate=emulates),
        module_filter_fn=lambda layer, path: _fits(layer, words),
    )


def _fits(layer: Any, words: Collection[int]) -> bool:
    """Whether the kernels take a layer's lengths, and it makes no logits: as many outputs as there are words."""
    if not isinstance(layer, nn.Linear) or layer.out_features in words:
        return False
    return not any(size % _MULTIPLE for size in layer.weight.shape)
