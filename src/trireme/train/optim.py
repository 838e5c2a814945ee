"""AdamW and its parameter groups.

Weight decay pulls matrices (two or more dimensions, embeddings and the output head among them)
towards zero and leaves norms, biases and every other one-dimensional parameter alone. Embeddings
are decayed because a tied one is the output matrix as well and can't be both; what many recipes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from trireme.config import TrainSection
from trireme.errors import TrainError
from trireme.mesh import has_fused_optimizer
from trireme.parallel import ChunkedOptimizer, Piece, StateHome, StochasticRounding
from trireme.train.precision import Precision

MATRICES = "matrices"
VECTORS = "vectors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamGroup:
    """Parameters that share their decay; a row of the table before step 1."""

    name: str
    weight_decay: float
    parameter_names: tuple[str, ...]
    num_params: int


def group_parameters(module: nn.Module, *, weight_decay: float) -> tuple[ParamGroup, ...]:
    """Return the groups: each trainable parameter once (a tied one too), frozen ones in none."""
    by_name: dict[str, list[tuple[str, nn.Parameter]]] = {MATRICES: [], VECTORS: []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            by_name[MATRICES if parameter.dim() >= 2 else VECTORS].append((name, parameter))
    decays = {MATRICES: weight_decay, VECTORS: 0.0}
    return tuple(_group(key, members, weight_decay=decays[key]) for key, members in by_name.items() if members)


def _group(key: str, members: Sequence[tuple[str, nn.Parameter]], *, weight_decay: float) -> ParamGroup:
    return ParamGroup(
        name=key,
        weight_decay=weight_decay,
        parameter_names=tuple(name for name, _ in members),
        num_params=sum(parameter.numel() for _, parameter in members),
    )


def build_optimizer(module: nn.Module, section: TrainSection) -> torch.optim.AdamW:
    """Return AdamW over the module's groups, fused where the device has the kernel.

    Build it after the module is on its device and in its number format. Each group carries its
    ``name`` and ``parameter_names``.

    Raises:
        TrainError: No parameter is trainable.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2.
    """
    groups = group_parameters(module, weight_decay=section.weight_decay)
    if not groups:
        raise TrainError("train.nothing_trainable")
    parameters = dict(module.named_parameters())
    options = [
        {
            "params": [parameters[name] for name in group.parameter_names],
            "weight_decay": group.weight_decay,
            "name": group.name,
        }
        for group in groups
    ]
    fused = all(has_fused_optimizer(device) for device in {parameter.device for parameter in parameters.values()})
    return torch.optim.AdamW(
        options,
        lr=section.lr,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        fused=fused,
        # Not fused means the plain loop: the foreach form needs a second copy of the state at its peak.
        foreach=False if not fused else None,
    )


def place_state(
    optimizer: torch.optim.Optimizer,
    *,
    module: nn.Module,
    precision: Precision,
    home: StateHome | None = None,
    seed: int = 0,
    pieces: Callable[[], Mapping[str, Piece]] | None = None,
) -> torch.optim.Optimizer:
    """Give the optimizer its fp32 copies, its rounding or another place for its state, where any of it is wanted.

    Args:
        optimizer: Built on the module's parameters, without state.
        module: In its number format.
        precision: Says whether there are copies, and how weights are rounded.
        home: Where state lives. Default: beside the weights.
        seed: Of stochastic rounding.
        pieces: What this rank holds of each parameter. Default: all of it.

    Raises:
        LayoutError: The optimizer can't be taken apart, or there is no room for its state.
    """
    if home is None and not precision.keeps_master and not precision.stochastic_rounding:
        return optimizer
    rounding = StochasticRounding(module, seed=seed, pieces=pieces) if precision.stochastic_rounding else None
    # Where nothing of the format's own is wanted, state has the format that torch would give it.
    return ChunkedOptimizer(
        optimizer,
        home=home,
        keeps_master=precision.keeps_master,
        rounding=rounding,
        widens=precision.keeps_master or precision.stochastic_rounding,
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group the learning rate; a group's ``lr_ratio``, if it has one, scales it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)


def set_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Tell an optimizer that rounds at random which step this is."""
    if isinstance(optimizer, ChunkedOptimizer):
        optimizer.set_step(step)


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the optimizer's parameters in its own order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def grad_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm over all gradients, a scalar on their device; zero if there are none."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros(())
    # A sum of squares needs more digits and a wider range than 16 bits have.
    wide = torch.promote_types(grads[0].dtype, torch.float32)
    norms = [norm.to(wide) for norm in torch._foreach_norm(grads, 2, dtype=wide)]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def scale_gradients(parameters: Sequence[torch.Tensor], *, factor: float) -> None:
    """Multiply every gradient in place; a factor of one touches nothing."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if grads and factor != 1.0:
        torch._foreach_mul_(grads, factor)


def step_scaled(optimizer: torch.optim.Optimizer, *, factor: float) -> None:
    """Let the optimizer step with its gradients times ``factor``.

    A fused optimizer multiplies as it reads them, which saves a pass over memory. torch has no public
    name for this: its GradScaler sets the same attribute for the time of the step. An optimizer over a spread model
    knows itself how to step on what this rank holds.
    """
    own = getattr(optimizer, "step_scaled", None)
    if own is not None:
        own(factor)
    elif factor == 1.0:
        optimizer.step()
    elif optimizer.defaults.get("fused") and getattr(optimizer, "_step_supports_amp_scaling", False):
        device = optimizer.param_groups[0]["params"][0].device
        optimizer.grad_scale = torch.tensor(1.0 / factor, dtype=torch.float32, device=device)  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale  # type: ignore[attr-defined]
    else:
        scale_gradients(trained_parameters(optimizer), factor=factor)
        optimizer.step()


def clip_factor(norm: float, *, limit: float | None) -> float:
    """Return what gradients of this norm are multiplied by so that their norm is at most ``limit``."""
    if limit is None or norm <= limit or not math.isfinite(norm):
        return 1.0
    return limit / norm
