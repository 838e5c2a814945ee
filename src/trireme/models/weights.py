"""Weights into a module, all or nothing: what is missing, too many or of another shape is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.words import say

_NAMES_SHOWN = 4


@torch.no_grad()
def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into ``module`` by name, in place; dtype and device stay the module's.

    A tensor that the module holds under several names (a tie) is complete once one of them is given.

    Raises:
        ModelError: A name is missing or unexpected, or a shape differs; nothing is changed then.
    """
    targets = module.state_dict(keep_vars=True)
    check_weights({name: tuple(tensor.shape) for name, tensor in tensors.items()}, targets)
    for name, tensor in tensors.items():
        targets[name].copy_(tensor)


def check_weights(shapes: Mapping[str, Sequence[int]], targets: Mapping[str, Tensor]) -> None:
    """Check that ``shapes`` are exactly those of ``targets``, ties counted once.

    Raises:
        ModelError: They aren't; names are given.
    """
    given = {id(target) for name, target in targets.items() if name in shapes}
    raise_if_different(
        missing=[name for name, target in targets.items() if id(target) not in given],
        unexpected=[name for name in shapes if name not in targets],
        mis_shaped=[
            (name, tuple(shapes[name]), tuple(target.shape))
            for name, target in targets.items()
            if name in shapes and tuple(shapes[name]) != tuple(target.shape)
        ],
    )


def raise_if_different(
    *, missing: Sequence[str], unexpected: Sequence[str], mis_shaped: Iterable[tuple[str, object, object]]
) -> None:
    """Raise one error that names every kind of difference, if there is any."""
    details: list[str] = []
    if missing:
        details.append(say("model.weights_missing", names=_some(missing)))
    if unexpected:
        details.append(say("model.weights_unexpected", names=_some(unexpected)))
    details += [
        say("model.weights_shape", name=name, found=_shape(found), expected=_shape(expected))
        for name, found, expected in list(mis_shaped)[:_NAMES_SHOWN]
    ]
    if details:
        raise ModelError("model.weights_differ", details="; ".join(details))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return say("model.names_more", names=shown, more=more) if more > 0 else shown


def _shape(value: object) -> str:
    return str(list(value)) if isinstance(value, (tuple, list, torch.Size)) else str(value)
