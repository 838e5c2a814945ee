"""Bytes of a parameter and all that belongs to it: itself, its gradient, the optimizer's state, by who keeps what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trireme.plan.memory import StateBytes
from trireme.plan.rank_param import RankParam
from trireme.plan.workload import OptimizerName, PrecisionName, Workload

_MOMENT_BYTES: Mapping[OptimizerName, int] = {
    "adamw": 8,
    "adamw_bf16": 4,
    "sgd": 0,
    "momentum": 4,
    "adafactor": 0,
    "lion": 4,
    "muon": 4,
}
"""Of one parameter, where moments are fp32 (``adamw_bf16``: two of 16 bits). Adafactor keeps rows and columns only.

Source:
    torch.optim (AdamW, SGD, Adafactor, Muon); Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms" (Lion).
"""


def compute_bytes(precision: PrecisionName) -> int:
    """Bytes of a number in matrix products and of what they keep; 8- and 4-bit products keep 16-bit results."""
    return 4 if precision == "fp32" else 2


def state_bytes(workload: Workload) -> StateBytes:
    """Bytes of one parameter by part, before ZeRO spreads any of it.

    Source:
        Micikevicius et al. 2018, "Mixed Precision Training", section 3.1 (fp32 weights beside 16-bit ones);
        Rajbhandari et al. 2019, "ZeRO", section 3.1 (2 + 2 + 12 bytes).
    """
    precision, framework = workload.precision, workload.framework
    moments = _MOMENT_BYTES[workload.optimizer]
    if precision == "fp32":
        return StateBytes(parameter=4, gradient=4, optimizer=moments, cast=0)
    if precision == "bf16_pure":  # moments follow the parameter's format
        return StateBytes(parameter=2, gradient=2, optimizer=moments // 2, cast=0)
    if precision.endswith("_master"):
        return StateBytes(parameter=2, gradient=2, optimizer=moments + 4, cast=0)
    if framework.weights == "master":
        return StateBytes(parameter=4, gradient=4, optimizer=moments, cast=2)
    gradient = (4 if framework.float32_gradients else 2) + (2 if framework.keeps_both_gradients else 0)
    master = 4 if framework.weights == "copy" else 0
    return StateBytes(parameter=2, gradient=gradient, optimizer=moments + master, cast=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """Bytes on one rank all through the step, and while it runs.

    Attributes:
        parameters: Weights: whole, or this rank's shard.
        casts: Copies in the format of products that stay as long as the step runs.
        gradients: What is kept from one micro-batch to the next.
        optimizer: Its state.
        casts_each: Casts of gathered weights that every micro-batch makes for itself and keeps to its backward.
        gradient_copies: In fp32, of 16-bit gradients, while an optimizer with fp32 copies of the weights works.
    """

    parameters: int
    casts: int
    gradients: int
    optimizer: int
    gradient_copies: int = 0
    casts_each: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.parameters + self.casts + self.gradients + self.optimizer

    def plus(self, other: StateParts, *, times: int = 1) -> StateParts:
        """Add the state of other parameters, several times."""
        return StateParts(
            parameters=self.parameters + times * other.parameters,
            casts=self.casts + times * other.casts,
            gradients=self.gradients + times * other.gradients,
            optimizer=self.optimizer + times * other.optimizer,
            gradient_copies=self.gradient_copies + times * other.gradient_copies,
            casts_each=self.casts_each + times * other.casts_each,
        )


NO_STATE = StateParts(parameters=0, casts=0, gradients=0, optimizer=0)
"""Of no parameters."""


def state_parts(workload: Workload, params: Iterable[RankParam]) -> StateParts:
    """Bytes of the state of these parameters under the layout's ZeRO stage.

    With fp32 weights (ours) sharding follows FSDP: weights are shards from stage 1 on, with a gathered 16-bit copy
    that stages 1 and 2 keep; stage 1 keeps whole gradients until the last micro-batch, stages 2 and 3 shards. Where
    16-bit weights are copied, stage 1 shards the optimizer's state, 2 gradients too, 3 the weights as well.
    """
    each, zero = state_bytes(workload), workload.layout.zero
    is_master = workload.framework.weights == "master" or workload.has_short_weights
    # Under a pipeline every micro-batch would gather and reduce again: FSDP keeps both whole until the last.
    keeps_whole = workload.layout.pp > 1 and (zero == 3 or (zero == 2 and is_master))
    autocast = each.cast if workload.framework.autocasts else 0
    # A cast that outlives its micro-batch would give its gradient after FSDP has summed the block's.
    casts_once = zero == 0
    weights = casts = gradients = optimizer = copies = casts_each = 0
    for param in params:
        whole = param.numel
        shard = param.shard_numel if zero else whole
        weight_numel = shard if zero == 3 or (zero and is_master) else whole
        trained = not workload.adapters_only
        weights += weight_numel * each.parameter
        gradients += trained * (whole if zero < 2 or keeps_whole else shard) * each.gradient
        copies += trained * shard * (4 if each.gradient == 2 and each.parameter == 2 and not is_master else 0)
        optimizer += trained * (shard * each.optimizer + _factor_bytes(workload, param))
        casts += whole * _kept_cast_bytes(workload, each, is_master=is_master)
        casts_each += whole * (0 if casts_once else autocast)
    return StateParts(
        parameters=weights,
        casts=casts,
        gradients=gradients,
        optimizer=optimizer,
        gradient_copies=copies,
        casts_each=casts_each,
    )


def gathered_bytes(workload: Workload) -> int:
    """Bytes of a parameter that was made whole from shards: in the shards' own format where products cast for
    themselves, else in that of products."""
    each = state_bytes(workload)
    return each.parameter if workload.framework.autocasts and each.cast else compute_bytes(workload.precision)


def _kept_cast_bytes(workload: Workload, each: StateBytes, *, is_master: bool) -> int:
    """Whole copies that stay as long as the step runs: what was gathered, or casts that are made once."""
    zero = workload.layout.zero
    if zero == 3 and workload.layout.pp == 1:
        return 0
    gathered = gathered_bytes(workload) if zero == 3 or (zero and is_master) else 0
    return gathered + (each.cast if zero == 0 else 0)


def _factor_bytes(workload: Workload, param: RankParam) -> int:
    """Adafactor: a number for each row and column of a matrix, one for each element of a vector."""
    if workload.optimizer != "adafactor":
        return 0
    if len(param.shape) < 2:
        return 4 * param.numel
    lead = param.numel // (param.shape[-1] * param.shape[-2])
    return 4 * lead * (param.shape[-1] + param.shape[-2])
