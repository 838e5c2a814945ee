"""Calls that draw random numbers: what one stage draws, another can't draw again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trireme.interpret import is_counted

_DRAWS = frozenset(
    {
        "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "binomial",
        "rand_like", "randn_like", "randint_like", "gumbel_softmax", "native_dropout",
        "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_",
    }
)  # fmt: skip
_DROPS = frozenset(
    {"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"}
)
_TAKES_GENERATOR = (torch.rand, torch.randn, torch.randint)


def draws(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call's result depends on chance."""
    name = getattr(function, "__name__", "")
    return name in _DRAWS or (name in _DROPS and _is_training(args, kwargs))


def _is_training(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    told = kwargs.get("training", next((value for value in args[1:] if isinstance(value, bool)), True))
    return bool(told)


def common_number(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, seed: int
) -> Tensor | None:
    """Draw one number that every stage draws alike (whether a layer is dropped, say); None if more are asked for."""
    if function not in _TAKES_GENERATOR or "generator" in kwargs:
        return None
    if not _asks_one(args, kwargs):
        return None
    if is_counted(function):  # by place and step: alike on every stage, and the number of one device
        counted: Tensor = function(*args, **kwargs)
        return counted
    generator = torch.Generator().manual_seed(seed % 2**63)  # on the host, where numbers that decide are drawn
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    if device.type != generator.device.type:
        return None
    drawn: Tensor = function(*args, **{**kwargs, "generator": generator})
    return drawn


def _asks_one(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the size that is asked for, one sequence or several numbers, has one element."""
    shape = kwargs.get("size", args)
    if "size" not in kwargs and args and isinstance(args[-1], (tuple, list)):
        shape = args[-1]
    return all(isinstance(length, int) and length == 1 for length in shape)
