"""Faults on purpose: each changes one thing in a running layout, and a verification that can be trusted tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from trireme.errors import VerifyError
from trireme.plan import Layout
from trireme.verify import fault_inside, fault_outside
from trireme.verify.stand import Stand
from trireme.words import say

Inject = Callable[[Stand], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake that a parallel system can make.

    ``name`` is what ``--inject`` takes, with ``verify.fault_<name>`` of the catalogue to say what it does (dashes
    become underscores). ``bites`` says whether a layout has what the fault breaks, ``example`` names a layout that
    has. ``injected`` makes the mistake on this rank for as long as the context lasts.
    """

    name: str
    example: str
    bites: Callable[[Layout], bool]
    injected: Inject

    @property
    def about(self) -> str:
        """What it does, in the user's language."""
        return say(f"verify.fault_{self.name.replace('-', '_')}")


def _has_parts(layout: Layout) -> bool:
    return layout.dp * layout.num_microbatches > 1


_ALL = (
    Fault(name="token-scale", example="dp=2", bites=_has_parts, injected=fault_outside.mean_of_means),
    Fault(
        name="dp-average", example="dp=2", bites=lambda layout: layout.dp > 1, injected=fault_outside.average_over_dp
    ),
    Fault(name="dp-rows", example="dp=2", bites=lambda layout: layout.dp > 1, injected=fault_outside.same_rows),
    Fault(
        name="accumulation",
        example="pp=2",
        bites=lambda layout: layout.num_microbatches > 1,
        injected=fault_outside.last_microbatch_only,
    ),
    Fault(
        name="microbatch-scale",
        example="pp=2",
        bites=lambda layout: layout.num_microbatches > 1,
        injected=fault_outside.divide_by_microbatches,
    ),
    Fault(
        name="stage-mask",
        example="pp=2",
        bites=lambda layout: layout.pp > 1,
        injected=fault_outside.mask_on_first_stage,
    ),
    Fault(
        name="shard-step",
        example="zero1,dp=2",
        bites=lambda layout: layout.zero > 0 and layout.dp_shard > 1,
        injected=fault_outside.one_rank_never_steps,
    ),
    Fault(
        name="dp-bucket",
        example="dp=2",
        bites=lambda layout: layout.dp * layout.cp > 1 and layout.zero == 0,
        injected=fault_inside.first_bucket_not_summed,
    ),
    Fault(
        name="clip-per-stage",
        example="pp=2",
        bites=lambda layout: layout.pp > 1,
        injected=fault_inside.norm_of_this_rank,
    ),
    Fault(
        name="replicated-gradient",
        example="tp=2",
        bites=lambda layout: layout.tp > 1,
        injected=fault_inside.replicated_gradients_stay_partial,
    ),
    Fault(
        name="norm-gradient",
        example="tp=2,sp",
        bites=lambda layout: layout.tp > 1,
        injected=fault_inside.parameters_meet_shards_unsummed,
    ),
    Fault(
        name="tied-allreduce",
        example="pp=2",
        bites=lambda layout: layout.pp > 1,
        injected=fault_inside.tied_gradients_stay_apart,
    ),
    Fault(
        name="cp-offset",
        example="cp=2",
        bites=lambda layout: layout.cp > 1,
        injected=fault_inside.queries_of_the_first_rank,
    ),
    Fault(
        name="expert-token",
        example="ep=2,dp=2",
        bites=lambda layout: layout.ep > 1,
        injected=fault_inside.one_token_lost,
    ),
    Fault(
        name="recompute-rng",
        example="dp=2,recompute=full",
        bites=lambda layout: layout.recompute != "none",
        injected=fault_inside.other_draws_when_recomputed,
    ),
    Fault(
        name="qkv-rows",
        example="tp=2",
        bites=lambda layout: layout.tp > 1,
        injected=fault_inside.fused_matrices_in_one_piece,
    ),
    Fault(
        name="bias-per-rank",
        example="tp=2",
        bites=lambda layout: layout.tp > 1,
        injected=fault_inside.bias_on_every_rank,
    ),
)

FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _ALL})
"""By name, in the order in which they are listed."""


def find_fault(name: str) -> Fault:
    """Give the fault of this name.

    Raises:
        VerifyError: There is none.
    """
    if name not in FAULTS:
        raise VerifyError("verify.unknown_fault", name=name, known=", ".join(FAULTS))
    return FAULTS[name]


def check_fault(name: str | None, layout: Layout) -> None:
    """Refuse a fault that this layout has no place for.

    Raises:
        VerifyError: It is unknown, or can't bite.
    """
    if name is None:
        return
    fault = find_fault(name)
    if not fault.bites(layout):
        raise VerifyError("verify.fault_cant_bite", name=name, about=fault.about, layout=layout, example=fault.example)
