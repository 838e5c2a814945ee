"""What a layer costs a rank in seconds and parameters, kept for every layer and place that was asked about."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.time_block import block_passes
from trireme.plan.time_place import Place
from trireme.plan.time_rates import Rates
from trireme.plan.time_work import Passes, Work

if TYPE_CHECKING:
    from trireme.graph import Block
    from trireme.plan.framework import Framework

_KEPT = 20_000


class LocalParams(NamedTuple):
    """Parameters of a block that one rank holds before ZeRO shards them: whole or cut by tp, and experts."""

    dense: float
    experts: float


class LayerWork(NamedTuple):
    """A block's work at a place and what it holds there; ``block`` keeps the identity that it is kept under alive."""

    block: Block
    place: Place
    passes: Passes
    params: LocalParams


_memo: OrderedDict[tuple[object, ...], LayerWork] = OrderedDict()


def layer_work(block: Block, place: Place, *, narrow: bool = True) -> LayerWork:
    """Give a block's work at a place; equal layers are one object, so identity finds them again."""
    key = (id(block), narrow, *place.key)
    found = _memo.get(key)
    if found is None:
        passes = block_passes(block, place, narrow=narrow)
        found = LayerWork(block, place, passes, local_params(block, place))
        _memo[key] = found
        if len(_memo) > _KEPT:
            _memo.popitem(last=False)
    return found


def local_params(block: Block, place: Place) -> LocalParams:
    """Count what a rank holds: matrices are cut by tp, vectors are whole, experts are spread over ep."""
    dense = experts = 0.0
    for op in block.ops:
        if op.kind == "experts":
            experts += op.num_params / (place.ep * (place.expert_tp if place.ep > 1 else place.tp))
        else:
            dense += sum(param.numel / (place.tp if len(param.shape) > 1 else 1) for param in op.params)
    return LocalParams(dense, experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """Seconds of one layer on one micro-batch; ``repeated`` is what its recomputation adds to the backward."""

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    repeated_s: float

    @property
    def backward_s(self) -> float:
        """All that happens after the loss."""
        return self.input_grad_s + self.weight_grad_s + self.repeated_s


def layer_seconds(
    work: LayerWork, *, rates: Rates, framework: Framework, recompute: str, adapters_only: bool = False
) -> LayerSeconds:
    """Turn a layer's work into seconds under these rates and habits."""
    is_fused = work.place.fused

    def spent(part: Work) -> float:
        busy_s = rates.compute_s(part, is_fused=is_fused, framework=framework)
        return busy_s + rates.exchange_s(part, framework=framework)

    passes = work.passes
    forward_s = spent(passes.forward)
    return LayerSeconds(
        forward_s=forward_s,
        input_grad_s=spent(passes.input_grad),
        weight_grad_s=0.0 if adapters_only else spent(passes.weight_grad),
        repeated_s=_repeated_s(passes, forward_s, spent=spent, framework=framework, recompute=recompute),
    )


def _repeated_s(
    passes: Passes, forward_s: float, *, spent: Callable[[Work], float], framework: Framework, recompute: str
) -> float:
    if recompute == "none":
        return 0.0
    if recompute == "full":
        return forward_s
    if framework.repeats == "half":
        return 0.5 * forward_s
    return spent(passes.between_products() if framework.repeats == "between" else passes.repeated)
