"""What a built module has and costs, for any module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from trireme.graph import count_params, flops_per_token
from trireme.models.decoder import Decoder
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """Parameters by group and FLOPs, with the formula that gave them.

    Units: ``flops_per_token`` counts forward and backward.
    """

    num_params: int
    num_trainable: int
    groups: Mapping[str, int]
    flops_per_token: float
    formula: str


def describe_model(module: nn.Module, *, seq_len: int) -> ModelSummary:
    """Count a module's parameters (shared ones once) by group, and what a token costs.

    Of a ``Decoder`` all is known exactly. Of another module the FLOPs are those of its matrices; the
    formula's text says what that leaves out.
    """
    parameters = list(module.parameters())
    groups = count_params(module.shape).by_group() if isinstance(module, Decoder) else _groups(module)
    if isinstance(module, Decoder):
        flops = flops_per_token(module.shape, seq_len=seq_len)
        value, formula = flops.value_flops, flops.formula
    else:
        value, formula = 6.0 * _count_matrix_params(module), say("model.flops_other")
    return ModelSummary(
        num_params=sum(parameter.numel() for parameter in parameters),
        num_trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        groups={name: count for name, count in groups.items() if count},
        flops_per_token=value,
        formula=formula,
    )


def _groups(module: nn.Module) -> dict[str, int]:
    """Count parameters by the module they belong to first: lookups, vectors, and the children by name."""
    groups: dict[str, int] = {}
    seen: set[int] = set()
    for name, owner in module.named_modules():
        for parameter in owner.parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            group = _group_of(name, owner, parameter.ndim)
            groups[group] = groups.get(group, 0) + parameter.numel()
    return groups


def _group_of(name: str, owner: nn.Module, ndim: int) -> str:
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if ndim < 2 and "norm" in type(owner).__name__.lower():
        return "norms"
    path = name.lower()
    if "attn" in path or "attention" in path:
        return "attention"
    if "mlp" in path or "ffn" in path or "feed_forward" in path:
        return "feed_forward"
    return "head" if "head" in path else "other"


def _count_matrix_params(module: nn.Module) -> int:
    """Count parameters of two dims or more that tokens are multiplied with; a lookup alone is none.

    An embedding whose weight another module uses as well is a tied head and counts.
    """
    lookups: dict[int, int] = {}
    products: dict[int, int] = {}
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            if parameter.ndim >= 2:
                found = lookups if isinstance(owner, nn.Embedding) else products
                found[id(parameter)] = parameter.numel()
    return sum(products.values())
