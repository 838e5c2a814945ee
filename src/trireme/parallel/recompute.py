"""Recomputation of a block's activations in its backward: nothing kept, or only what is dear to compute again."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trireme.parallel.unit import Forward

Recompute = Literal["none", "selective", "full"]

_KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._grouped_mm.default,
    }
)
"""Kept by ``selective``: products with weights, most FLOPs per byte. Norms, activations and the attention core, whose
batched products grow with the square of the length and are often overwritten in place, are computed again."""


def recomputed(forward: Forward, *, kind: Recompute) -> Forward:
    """Wrap a block's forward. Interpreters that are active on it are entered again when it is recomputed."""
    if kind == "none":
        return forward
    context: dict[str, Any] = {"context_fn": _selective_contexts} if kind == "selective" else {}

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **context, **kwargs)

    return run


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(_context: Any, function: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if function in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
