"""A plain module spread over ranks, as a program of the user's drives it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel import Call, Communication, ParallelModel, parallelize, rows_of
from trireme.plan import Layout
from trireme.train import LossScaler, Precision, apply_precision, call_module

LossFn = Callable[[Any, Mapping[str, Any]], Any]
CountFn = Callable[[Mapping[str, Any]], int]

_EXAMPLE_ROWS = 2
"""Samples that show how a module is called."""


class FleetModel:
    """One rank's share of a module.

    Attributes:
        module: The user's module; once spread, with this rank's parameters under their original names.
        layout: How it is spread.
        precision: Number formats.
        scaler: Loss scale of fp16, None for other formats.
    """

    _latest: weakref.ref[FleetModel] | None = None

    def __init__(
        self,
        module: nn.Module,
        *,
        layout: Layout,
        cuts: tuple[str, ...],
        device: torch.device,
        precision: Precision,
        call: Call | None,
        loss_fn: LossFn | None,
        example_batch: Mapping[str, Any] | None,
        notice: Callable[[str], None],
        communication: Communication | None = None,
    ) -> None:
        self._communication = communication
        self.module = module
        self.layout = layout
        self.scaler: LossScaler | None = precision.build_scaler()
        self.precision = precision
        self._cuts = cuts
        self._device = device
        self._call = call or call_module
        self._loss_fn = loss_fn
        self._notice = notice
        self._parallel: ParallelModel | None = None
        self._listeners: list[Callable[[Mapping[nn.Parameter, nn.Parameter | None]], None]] = []
        FleetModel._latest = weakref.ref(self)
        if example_batch is not None:
            self.spread(example_batch)

    @staticmethod
    def latest() -> FleetModel | None:
        """Return the model made last, if it still lives."""
        return None if FleetModel._latest is None else FleetModel._latest()

    @property
    def parallel(self) -> ParallelModel:
        """The spread model.

        Raises:
            LayoutError: No batch has shown yet how the module is called.
        """
        if self._parallel is None:
            raise LayoutError("fleet.not_spread")
        return self._parallel

    @property
    def is_spread(self) -> bool:
        """Whether the module has been cut already."""
        return self._parallel is not None

    def spread(self, example_batch: Mapping[str, Any]) -> None:
        """Cut the module as its forward on this batch shows; once."""
        if self._parallel is not None:
            return
        apply_precision(self.module, precision=self.precision)
        before = dict(self.module.named_parameters(remove_duplicate=False))
        self._parallel = parallelize(
            self.module,
            self.layout,
            example=rows_of(example_batch, 0, _EXAMPLE_ROWS),
            call=self._call,
            loss_fn=self._loss_fn,
            cuts=self._cuts,
            device=self._device,
            notice=self._notice,
            communication=self._communication,
        )
        after = dict(self.module.named_parameters(remove_duplicate=False))
        moved = {parameter: after.get(name) for name, parameter in before.items()}
        for listener in self._listeners:
            listener(moved)
        self._listeners.clear()

    def when_spread(self, listener: Callable[[Mapping[nn.Parameter, nn.Parameter | None]], None]) -> None:
        """Have ``listener`` told which parameters took the place of the module's own."""
        self._listeners.append(listener)

    def train_step(self, batch: Mapping[str, Any], loss_fn: LossFn, *, count_fn: CountFn | None = None) -> Tensor:
        """Run forward and backward of this rank's part of the global batch; returns the global mean loss.

        Args:
            batch: Tensors with samples in dim 0: this data-parallel rank's part.
            loss_fn: ``(outputs, batch) -> (loss_sum, count)``.
            count_fn: What a batch's loss is summed over, where it should be known before the forward.

        Raises:
            LayoutError: The loss isn't of that form, or the module can't be spread like this.
        """
        self._loss_fn = self._loss_fn or loss_fn
        self.spread(batch)
        scale = self.scaler.scale if self.scaler else 1.0
        self.parallel.wires.prepare(scale=scale)
        with self.precision.compute_context(self.module, keeps_casts=self.layout.zero == 0):
            return self.parallel.train_step(batch, loss_fn, count_fn=count_fn, scale=scale)

    def eval_step(self, batch: Mapping[str, Any], loss_fn: LossFn) -> Tensor:
        """Return the global mean loss of a batch without gradients."""
        self.spread(batch)
        with self.precision.compute_context(self.module, keeps_casts=self.layout.zero == 0):
            return self.parallel.eval_step(batch, loss_fn)

    def outputs(self, batch: Mapping[str, Any]) -> Any:
        """Return the module's outputs for a batch, whole, on every rank; all ranks call with the same batch."""
        self.spread(batch)
        with self.precision.compute_context(self.module, keeps_casts=self.layout.zero == 0):
            return self.parallel.outputs(batch)

    def accumulate(self) -> AbstractContextManager[None]:
        """Make one step of the ``train_step`` calls inside."""
        return self.parallel.accumulate()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters, each once."""
        return self.module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under their original names."""
        return self.module.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state under its original names, on rank 0's host; all ranks call, others get nothing."""
        return self.parallel.full_parameters()

    def train(self, mode: bool = True) -> FleetModel:
        """Set training mode."""
        self.module.train(mode)
        return self

    def eval(self) -> FleetModel:
        """Set evaluation mode."""
        return self.train(False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a forward alone can't be differentiated across ranks.

        Raises:
            LayoutError: Always; it says what works.
        """
        raise LayoutError("fleet.bare_call")
