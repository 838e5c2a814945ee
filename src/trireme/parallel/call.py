"""Calling a module with what its forward takes of a batch, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from trireme.errors import LayoutError

Call = Callable[[nn.Module, Mapping[str, Any]], Any]
"""From a module and a batch to the module's outputs."""


def call_by_name(module: nn.Module, batch: Mapping[str, Any]) -> Any:
    """Give ``forward`` the entries of the batch that it names; one with ``**kwargs`` is given only what it names.

    Raises:
        LayoutError: It names none of them, or needs one that isn't there.
    """
    parameters = inspect.signature(module.forward).parameters
    named = {name: batch[name] for name in parameters if name in batch}
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in named]
    if missing or not named:
        kind = type(module).__name__
        raise LayoutError(
            "ranks.inputs",
            kind=kind,
            takes=", ".join(parameters),
            batch=", ".join(batch),
            missing=", ".join(missing),
        )
    return module(**named)
