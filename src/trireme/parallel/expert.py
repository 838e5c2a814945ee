"""Deal the experts of an unmodified model out to ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from trireme.errors import LayoutError
from trireme.parallel.expert_find import ExpertSet, FoundExperts, find_experts
from trireme.parallel.expert_modules import deal_modules
from trireme.parallel.expert_route import ExpertRanks, ExpertTraffic, Router
from trireme.parallel.expert_share import ExpertShare, check_share
from trireme.parallel.expert_stacked import deal_stacked


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRows:
    """The part of a stacked parameter that a rank owns: places in dim 0."""

    start: int
    length: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtExperts:
    """What became of a model's experts.

    Attributes:
        found: What was dealt out, and what stays whole with its reason.
        parameters: Names of the experts' parameters on this rank, whose gradients are summed over the ranks that
            hold the same experts and no others.
        rows: Of those that stack experts, which rows of the whole are here.
        absent: Names of parameters that other ranks own.
        units: Paths of modules that hold nothing but experts of this rank, by layer: what may be sharded further
            over the ranks that hold the same experts.
        traffic: What each layer's experts were asked for, by path.
    """

    found: FoundExperts
    parameters: frozenset[str]
    rows: Mapping[str, OwnedRows]
    absent: frozenset[str]
    units: tuple[tuple[str, ...], ...]
    traffic: Mapping[str, ExpertTraffic]


def deal_experts(
    module: nn.Module, ranks: ExpertRanks, *, found: FoundExperts | None = None, capacity_ratio: float | None = None
) -> DealtExperts:
    """Keep this rank's experts, and let the module's forward reach those of the others.

    Do so after stages are cut and before tensor-parallel planning, recomputation and sharding: planning must see
    experts as one operation, and whatever is sharded is what is left here. All ranks of the group must run the same
    number of forwards. The module keeps its classes, attributes and parameter names.

    Args:
        module: Changed in place; on meta or real.
        ranks: Those that share out experts, and those that hold the same tokens.
        found: What ``find_experts`` gave. Default: it is asked.
        capacity_ratio: Choices an expert takes from one rank, over an even share; more are dropped, and counted in
            ``traffic``. Default: nothing is dropped.

    Raises:
        LayoutError: Some layer has fewer experts than there are ranks.
    """
    found = find_experts(module) if found is None else found
    share = {each.path: _share(each, ranks) for each in found.sets}
    traffic = {each.path: ExpertTraffic() for each in found.sets}
    before = dict(module.named_parameters(remove_duplicate=False))
    rows: dict[str, OwnedRows] = {}
    for each in found.sets:
        router = Router(
            share=share[each.path],
            ranks=ranks,
            capacity_ratio=capacity_ratio,
            weights_travel=each.style == "chosen_weighted",
            traffic=traffic[each.path],
        )
        rows |= _deal(module, each, router)
    left = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    members = tuple(f"{path}." for each in found.sets for path in each.members)
    return DealtExperts(
        found=found,
        parameters=frozenset(name for name in left if name.startswith(members)) if members else frozenset(),
        rows=rows,
        absent=frozenset(before) - left,
        units=tuple(_own_members(each, share[each.path]) for each in found.sets),
        traffic=traffic,
    )


def _share(found: ExpertSet, ranks: ExpertRanks) -> ExpertShare:
    share = ExpertShare(num_experts=found.num_experts, degree=ranks.ep.degree, rank=ranks.ep.rank)
    check_share(share, path=found.path)
    return share


def _deal(module: nn.Module, found: ExpertSet, router: Router) -> dict[str, OwnedRows]:
    runner, share = module.get_submodule(found.path), router.share
    if hasattr(runner, "_trireme_experts"):
        raise LayoutError("parallel.expert_again", path=found.path)
    if found.style == "modules":
        members = [module.get_submodule(path) for path in found.members]
        deal_modules(found.path, runner, members, router, by_token=found.by_token)
        return {}
    deal_stacked(runner, router)
    part = OwnedRows(start=share.start, length=share.length, total=share.num_experts)
    prefix = f"{found.path}." if found.path else ""
    return {f"{prefix}{name}": part for name, each in runner._parameters.items() if each is not None}


def _own_members(found: ExpertSet, share: ExpertShare) -> tuple[str, ...]:
    return found.members if found.style != "modules" else tuple(found.members[place] for place in share.owned)
