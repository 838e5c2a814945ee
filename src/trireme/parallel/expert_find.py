"""Find the experts of an unmodified model, and say of what looks like experts but isn't dealt out why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from trireme.parallel.expert_stacked import taken_by
from trireme.parallel.expert_trial import try_rows, try_stacked, try_tokens
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSet:
    """Experts among which the tokens of one layer choose.

    Attributes:
        path: The module whose forward sends tokens to them.
        num_experts: How many they are.
        style: Stacked in parameters whose dim 0 counts them and called with choices (``chosen``), the same with
            routing weights used in a way of their own (``chosen_weighted``), stacked and called with equally many
            rows for each (``blocks``), or modules of their own (``modules``).
        members: Paths of the experts' modules, or of the one that stacks them.
        by_token: Whether the module at ``path`` treats each token by itself, so that it may be given any of them.
    """

    path: str
    num_experts: int
    style: Literal["chosen", "chosen_weighted", "blocks", "modules"]
    members: tuple[str, ...]
    by_token: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundExperts:
    """The experts of a model; ``whole`` gives what stays on every rank, by path, with the reason."""

    sets: tuple[ExpertSet, ...]
    whole: Mapping[str, str]


def find_experts(module: nn.Module) -> FoundExperts:
    """Find experts that can be dealt out to ranks; the module may be on meta and isn't changed.

    What counts is how a module is called and what it does, not which class it is: stacked experts are tried out
    on a small copy. Experts in a list or dict of modules are known by the word in the list's or their class's name.
    """
    sets: list[ExpertSet] = []
    whole: dict[str, str] = {}
    known: dict[object, str | None] = {}
    for path, owner in module.named_modules():
        if any(path.startswith(f"{found}.") for each in sets for found in each.members):
            continue
        found = _stacked(path, owner, known) or _listed(path, owner, module, known)
        if isinstance(found, ExpertSet):
            sets.append(found)
        elif found is not None:
            whole[path] = found
    return FoundExperts(sets=tuple(sets), whole=whole)


def _stacked(path: str, module: nn.Module, known: dict[object, str | None]) -> ExpertSet | str | None:
    own = [each for each in module._parameters.values() if each is not None]
    if max((each.ndim for each in own), default=0) < 2 or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return None
    named = _named_experts(path, (module,))
    if not named and max(each.ndim for each in own) < 3:
        return None
    stacked = _stack_size(module, own)
    if stacked is None or "forward" in module.__dict__:
        return say("parallel.expert_unlike") if named else None
    takes = len(taken_by(module))
    key = (type(module), takes, tuple(each.shape for each in own))
    if key not in known:
        known[key] = try_stacked(module, stacked, takes=takes) if takes in (1, 3) else None
    style = known[key]
    if style is None:
        return say("parallel.expert_trial") if named else None
    return ExpertSet(path=path, num_experts=stacked, style=style, members=(path,))  # type: ignore[arg-type]


def _stack_size(module: nn.Module, own: list[nn.Parameter]) -> int | None:
    """Give the number of experts if all parameters have a place for each in dim 0, none being further in."""
    sizes = {each.shape[0] if each.ndim >= 2 else 0 for each in own}
    further = len(own) < len(list(module.parameters()))
    return next(iter(sizes)) if len(sizes) == 1 and min(sizes) >= 2 and not further else None


def _listed(
    path: str, container: nn.Module, root: nn.Module, known: dict[object, str | None]
) -> ExpertSet | str | None:
    if not isinstance(container, (nn.ModuleList, nn.ModuleDict)) or not _named_experts(path, container.children()):
        return None
    members = dict(container.named_children())
    if len(members) < 2 or len({_shape_of(each) for each in members.values()}) > 1:
        return say("parallel.expert_unequal")
    first = next(iter(members.values()))
    if not list(first.parameters()) or _shares_parameters(root, container):
        return say("parallel.expert_shared")
    width = next((width for width in _widths(first) if try_rows(first, width)), None)
    if width is None:
        return say("parallel.expert_rows")
    runs_itself = type(container).forward is not nn.Module.forward
    runner = path if runs_itself else path.rpartition(".")[0]
    return ExpertSet(
        path=runner,
        num_experts=len(members),
        style="modules",
        members=tuple(f"{path}.{name}" if path else name for name in members),
        by_token=_by_token(root.get_submodule(runner), width, known),
    )


def _by_token(runner: nn.Module, width: int, known: dict[object, str | None]) -> bool:
    key = (type(runner), width, tuple(tuple(each.shape) for each in runner.parameters()))
    if key not in known:
        known[key] = "yes" if try_tokens(runner, width) else None
    return known[key] is not None


def _named_experts(path: str, modules: Iterable[nn.Module]) -> bool:
    """Whether the name in the model or a class's name says experts; shared ones are met by every token."""
    last = path.rpartition(".")[2].lower()
    kinds = " ".join(type(each).__name__ for each in modules).lower()
    return "shared" not in last and ("expert" in last or "expert" in kinds)


def _shape_of(member: nn.Module) -> object:
    return type(member), tuple((name, tuple(each.shape)) for name, each in member.named_parameters())


def _shares_parameters(root: nn.Module, container: nn.Module) -> bool:
    """Whether a parameter of the experts has a second name, within them or elsewhere."""
    inside = {id(each) for each in container.parameters()}
    names = sum(id(each) in inside for _, each in root.named_parameters(remove_duplicate=False))
    return names > len(inside)


def _widths(member: nn.Module) -> Iterator[int]:
    seen: dict[int, None] = {}
    for each in member.parameters():
        seen.update(dict.fromkeys(reversed(each.shape)))
    return iter(seen)
