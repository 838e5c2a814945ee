"""Recomputation of activations in backward: nothing kept, or only what is dear to compute again.

What each kind keeps of a block from its forward to its backward:

- ``none``: everything autograd saves.
- ``full``: the block's inputs alone.
- ``selective``: the inputs, and the results of products with weights (``mm``, ``addmm``, grouped products), which cost
  most FLOPs a byte. Norms, activations and the attention core are computed again: few FLOPs for the bytes they take.

While a block's backward runs, all that it would have kept stands again, for that block alone.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trireme.errors import LayoutError
from trireme.parallel.side_effect import SideEffects
from trireme.parallel.unit import Forward, wrap_forward

Recompute = Literal["none", "selective", "full"]

MARK = "_trireme_recompute"

_KEPT = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten._grouped_mm.default,
    }
)
"""Kept by ``selective``. The attention core's batched products grow with the square of the length and are often
overwritten in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRule:
    """Which blocks recompute what, before it is known which blocks there are.

    ``every`` takes each n-th block from the first on; ``layers`` are paths, with ``*`` for anything.
    """

    kind: Recompute
    every: int = 1
    layers: tuple[str, ...] = ()

    def kinds(self, blocks: Sequence[str]) -> dict[str, Recompute]:
        """Give what each block recomputes.

        Raises:
            LayoutError: A path names no block.
        """
        for pattern in self.layers:
            if not fnmatch.filter(blocks, pattern):
                raise LayoutError("ranks.no_block", path=pattern, blocks=", ".join(blocks))
        chosen = {
            path
            for place, path in enumerate(blocks)
            if place % self.every == 0
            and (not self.layers or any(fnmatch.fnmatchcase(path, pattern) for pattern in self.layers))
        }
        return {path: self.kind if path in chosen else "none" for path in blocks}


def recompute(module: nn.Module, kind: Recompute = "full") -> nn.Module:
    """Mark a module: what its backward needs is computed again once the module is trained by Trireme.

    The mark goes with copies of the module and is read by ``Stepper``, ``parallelize``, ``run`` and ``fleet``; for a
    block it goes before what the layout says. ``none`` keeps a module's activations where its layout recomputes.

    Args:
        module: Any module that is called; of a list of modules, each.
        kind: What is recomputed.

    Raises:
        LayoutError: There is no such kind.
    """
    if kind not in ("none", "selective", "full"):
        raise LayoutError("parallel.recompute_kind", kind=kind)
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        for each in module:
            setattr(each, MARK, kind)
    else:
        setattr(module, MARK, kind)
    return module


def marked_modules(root: nn.Module) -> dict[str, Recompute]:
    """Give the marked modules below a root by path."""
    return {path: getattr(each, MARK) for path, each in root.named_modules() if MARK in vars(each)}


def apply_marks(root: nn.Module, *, blocks: Mapping[str, Recompute] | None = None) -> None:
    """Have marked modules recompute; those inside of a block that recomputes anyway are left to it."""
    taken = {path for path, kind in (blocks or {}).items() if kind != "none"}
    for path, kind in marked_modules(root).items():
        if path in (blocks or {}):
            continue
        module = root.get_submodule(path)
        inside = any(path.startswith(f"{each}.") for each in taken)
        if kind == "none" or inside or next(module.parameters(), None) is None:
            continue
        recompute_block(module, path=path, kind=kind)
        taken.add(path)


def recompute_block(block: nn.Module, *, path: str, kind: Recompute) -> None:
    """Have one module recompute."""
    effects = SideEffects(block, path=path)
    wrap_forward(block, functools.partial(recomputed, kind=kind, effects=effects))


def recomputed(forward: Forward, *, kind: Recompute, effects: SideEffects | None = None) -> Forward:
    """Wrap a block's forward. Interpreters that are active on it are entered again when it is recomputed."""
    if kind == "none":
        return forward
    context: dict[str, Any] = {"context_fn": _selective_contexts} if kind == "selective" else {}

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if effects is None or not effects.is_due:
            return checkpoint(forward, *args, use_reentrant=False, **context, **kwargs)
        with effects.watched():
            return checkpoint(forward, *args, use_reentrant=False, **context, **kwargs)

    return run


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]


def _policy(_context: Any, function: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if function in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
