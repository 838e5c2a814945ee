"""The one strategy that a program has, and the calls that use it."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trireme.errors import LayoutError
from trireme.fleet.model import FleetModel
from trireme.fleet.optimizer import FleetOptimizer
from trireme.fleet.recompute import teach_modules
from trireme.fleet.strategy import DistributedStrategy
from trireme.mesh import LaunchEnvironment, choose_device, join_ranks
from trireme.parallel import Call, Communication
from trireme.plan import Layout, parse_layout, parse_plan
from trireme.train import Precision, build_precision

Strategy = DistributedStrategy | str | Path | Mapping[str, Any] | None
"""Fleet's strategy, a layout in one line, the path of a plan.json, or a mapping of a layout's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What ``init`` settled."""

    layout: Layout
    cuts: tuple[str, ...]
    device: torch.device
    precision: Precision
    communication: Communication


_session: Session | None = None


def init(strategy: Strategy = None, *, is_collective: bool = True, role_maker: None = None) -> None:
    """Join the ranks that were started and settle how they share the work; calling again settles anew.

    Args:
        strategy: How. Default: every rank a whole copy (data parallel).
        is_collective: Fleet's word; there is no parameter server here, so True.
        role_maker: Fleet's word; ranks are told by the launcher, so None.

    Raises:
        LayoutError: It doesn't fit the number of ranks, or asks for what is not here.
    """
    global _session
    if not is_collective or role_maker is not None:
        raise LayoutError("fleet.collective_only")
    teach_modules()
    launch, device = LaunchEnvironment.from_environ(), choose_device()
    if not dist.is_initialized():
        join_ranks(launch, device=device)
        atexit.register(shutdown)
    _session = _settle(strategy, ranks=dist.get_world_size(), device=device)


def shutdown() -> None:
    """Leave the group of ranks; at the program's end this happens by itself."""
    global _session
    _session = None
    if dist.is_initialized():
        dist.destroy_process_group()


def worker_index() -> int:
    """Return this process's rank."""
    return LaunchEnvironment.from_environ().rank


def worker_num() -> int:
    """Return the number of ranks."""
    return LaunchEnvironment.from_environ().world_size


def distributed_model(
    model: nn.Module,
    *,
    strategy: Strategy = None,
    example_batch: Mapping[str, Any] | None = None,
    call: Call | None = None,
    loss_fn: Callable[[Any, Mapping[str, Any]], Any] | None = None,
) -> FleetModel:
    """Spread a plain module over the ranks.

    It happens now if there is an ``example_batch``, else at the first step, whose batch shows how the module is
    called. Optimizers may be built before or after.

    Args:
        model: Unmodified, on any device or meta.
        strategy: Instead of what ``init`` was given.
        example_batch: A short batch of the kind that will come.
        call: ``(model, batch) -> outputs``. Default: what its forward takes, by name.
        loss_fn: The loss that will be used; given here with an example, the output layer can stay cut.
    """
    settled = (
        _current() if strategy is None else _settle(strategy, ranks=dist.get_world_size(), device=_current().device)
    )
    return FleetModel(
        model,
        layout=settled.layout,
        cuts=settled.cuts,
        device=settled.device,
        precision=settled.precision,
        call=call,
        loss_fn=loss_fn,
        example_batch=example_batch,
        notice=_tell,
        communication=settled.communication,
    )


def distributed_optimizer(
    optimizer: torch.optim.Optimizer,
    *,
    strategy: Strategy = None,
    model: FleetModel | None = None,
    clip_grad_norm: float | None = None,
) -> FleetOptimizer:
    """Make an optimizer step on what this rank holds, with the true global norm.

    Args:
        optimizer: Built on ``model.parameters()``.
        strategy: Fleet's word; the model's own strategy counts, so None or the same.
        model: Whose parameters it holds. Default: the model that ``distributed_model`` made last.
        clip_grad_norm: Largest global gradient norm; None: no clipping.

    Raises:
        LayoutError: There is no model, or the optimizer can't be exact on shards.
    """
    found = model or FleetModel.latest()
    if found is None:
        raise LayoutError("fleet.no_model")
    return FleetOptimizer(optimizer, model=found, clip_grad_norm=clip_grad_norm)


def _current() -> Session:
    if _session is None:
        init()
    assert _session is not None, "init settles it or raises"
    return _session


def _settle(strategy: Strategy, *, ranks: int, device: torch.device) -> Session:
    layout, cuts = _layout_of(strategy, ranks=ranks)
    if layout.world_size != ranks:
        raise LayoutError("fleet.other_ranks", layout=layout, needs=layout.world_size, ranks=ranks)
    asked = strategy.communication if isinstance(strategy, DistributedStrategy) else Communication()
    return Session(
        layout=layout,
        cuts=cuts,
        device=device,
        precision=_precision_of(strategy, device=device),
        communication=asked,
    )


def _precision_of(strategy: Strategy, *, device: torch.device) -> Precision:
    if not isinstance(strategy, DistributedStrategy):
        return build_precision("fp32", device=device)
    precision = build_precision(strategy.precision, device=device, notice=_tell)  # type: ignore[arg-type]
    return Precision(
        policy=precision.policy,
        device=device,
        init_loss_scale=strategy.init_loss_scale,
        loss_scale_growth_steps=strategy.loss_scale_growth_steps,
    )


def _layout_of(strategy: Strategy, *, ranks: int) -> tuple[Layout, tuple[str, ...]]:
    if isinstance(strategy, (str, Path)) and str(strategy).endswith(".json"):
        try:
            plan = parse_plan(Path(strategy).read_text(encoding="utf-8"))
        except OSError as error:
            raise LayoutError("fleet.no_plan", path=strategy, reason=error.strerror) from error
        return plan.layout, plan.cuts
    if isinstance(strategy, DistributedStrategy):
        parsed = strategy.parse(ranks=ranks)
    else:
        parsed = parse_layout(str(strategy) if isinstance(strategy, Path) else strategy or {}, ranks=ranks)
    for text in parsed.notices:
        _tell(text)
    return parsed.layout, ()


def _tell(text: str) -> None:
    """Warn once, from one rank: what is told holds for all."""
    if worker_index() == 0:
        warnings.warn(text, stacklevel=2)
