"""Where a module may be cut: the layers of its stacks, found from its tree alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from trireme.parallel.memo import signature_of

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def find_blocks(module: nn.Module) -> tuple[str, ...]:
    """Give the paths of the modules that may begin a stage, in the order of the tree.

    These are the members of every stack: a container with alike members. Where nothing is repeated, they are the
    children of the module, or of the only child that holds its parameters. A stack within a member of a stack
    (experts in a layer) isn't one of its own, unless the members of the outer one all differ (stages of layers);
    nor is a row of single operations beside stacks of layers.
    """
    found = tuple(_stacked(module, ""))
    layers = tuple(path for path in found if _has_children(module.get_submodule(path)))
    return layers or found or tuple(_children(module, ""))


def _stacked(module: nn.Module, path: str) -> Iterator[str]:
    for name, child in module.named_children():
        place = _join(path, name)
        members = _members(child, place) if isinstance(child, _CONTAINERS) else []
        is_stack = _is_stack(members)
        if is_stack or _is_stage_list(members):
            for member_path, member in members:
                inner = [] if is_stack else list(_stacked(member, member_path))
                yield from inner or [member_path]
        else:
            yield from _stacked(child, place)


def _members(container: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Members that hold parameters; lists in lists are opened, for a list itself is never called."""
    members: list[tuple[str, nn.Module]] = []
    for name, member in container.named_children():
        place = _join(path, name)
        if isinstance(member, (nn.ModuleList, nn.ModuleDict)):
            members += _members(member, place)
        elif next(member.parameters(), None) is not None:
            members.append((place, member))
    return members


def _is_stack(members: list[tuple[str, nn.Module]]) -> bool:
    """Two members are alike."""
    return len(members) > 1 and max(Counter(signature_of(member) for _, member in members).values()) > 1


def _is_stage_list(members: list[tuple[str, nn.Module]]) -> bool:
    """Members of one class but of different sizes, each of several modules."""
    members = [(path, member) for path, member in members if _has_children(member)]
    return len(members) > 1 and max(Counter(type(member) for _, member in members).values()) > 1


def _children(module: nn.Module, path: str) -> Iterator[str]:
    members = _members(module, path)
    if len(members) == 1:
        inner = list(_children(members[0][1], members[0][0]))
        yield from inner or [members[0][0]]
    else:
        yield from (place for place, _ in members)


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
