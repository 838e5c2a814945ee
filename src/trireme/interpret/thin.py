"""Plan alike layers once: stacks are walked with two layers of each kind, and the others follow them.

Layers are alike if they are of one class and hold parameters and buffers of the same names, shapes and formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn

_KEPT = 2
"""The first of a kind may be treated apart by the model's forward (it computes what the others reuse)."""


@contextmanager
def thinned(module: nn.Module, stacks: list[str]) -> Iterator[dict[str, str]]:
    """Leave out repeated layers for a while.

    Args:
        module: Whole again afterwards.
        stacks: Paths of containers of layers, each ending in a dot.

    Yields:
        By path of a layer left out: path of the one that stands for it.
    """
    outer = [stack for stack in stacks if not any(stack != other and stack.startswith(other) for other in stacks)]
    kept: list[tuple[nn.Module, dict[str, nn.Module | None]]] = []
    stands_for: dict[str, str] = {}
    try:
        for stack in outer:
            container = module.get_submodule(stack.rstrip("."))
            layers = dict(container._modules)
            followed = _followed(layers)
            kept.append((container, layers))
            container._modules = {name: layer for name, layer in layers.items() if name not in followed}
            stands_for.update({f"{stack}{name}.": f"{stack}{other}." for name, other in followed.items()})
        yield stands_for
    finally:
        for container, layers in kept:
            container._modules = layers


def _followed(layers: dict[str, nn.Module | None]) -> dict[str, str]:
    """Give, for each layer that may be left out, the last kept one that is like it."""
    seen: dict[object, list[str]] = {}
    result: dict[str, str] = {}
    for name, layer in layers.items():
        if layer is None:
            continue
        alike = seen.setdefault(_likeness(layer), [])
        if len(alike) < _KEPT:
            alike.append(name)
        else:
            result[name] = alike[-1]
    return result


def _likeness(layer: nn.Module) -> object:
    tensors = [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]
    return type(layer), tuple((name, tuple(value.shape), value.dtype, value.requires_grad) for name, value in tensors)


def followed_name(name: str, stands_for: Mapping[str, str]) -> str:
    """Give the name of the parameter that decides for this one."""
    for path, other in stands_for.items():
        if name.startswith(path):
            return other + name.removeprefix(path)
    return name
