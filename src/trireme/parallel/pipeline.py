"""The executor: runs the action list that the plan made and the simulator timed, action by action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trireme.errors import LayoutError
from trireme.parallel.arrival import Arrival, arrive
from trireme.parallel.route import batch_key
from trireme.parallel.split import SplitBackward
from trireme.parallel.stage import StageSet
from trireme.parallel.sync import GradientSync
from trireme.parallel.tracing_private import hooks_noted
from trireme.parallel.transport import Delivery, Lane, Transport
from trireme.parallel.value import is_absent, notes_of
from trireme.plan import Action, Message, Schedule, ScheduleName, build_schedule

LossOf = Callable[[Any, Mapping[str, Any], int], Tensor]
"""From what the module returned, the micro-batch and its number to what backward starts from."""


@dataclass(slots=True, kw_only=True)
class _Live:
    """A micro-batch in a stage between its forward and its backward."""

    roots: list[Tensor]
    arrivals: list[Arrival]
    hooked: set[Any]
    split: SplitBackward | None = None


class Executor:
    """Runs steps of a pipeline on this rank.

    Args:
        stages: The stages of this rank.
        lane: The ranks of the pipeline.
        schedule: Name of the schedule.
        vp: Stages a rank, for schedules that have a choice.
        sync: Told of every backward, as ``GradientSync`` says; ``start_step`` and ``finish`` are the caller's.
        window: Messages from one rank for which receives are posted ahead.
    """

    def __init__(
        self,
        stages: StageSet,
        *,
        lane: Lane,
        schedule: ScheduleName,
        vp: int = 1,
        sync: GradientSync | None = None,
        window: int = 2,
    ) -> None:
        self.stages, self.lane, self.sync = stages, lane, sync
        self._name, self._vp = schedule, vp
        self.transport = Transport(lane, window=window)
        self._schedules: dict[int, Schedule] = {}
        self._forwards = 0

    def schedule(self, num_microbatches: int) -> Schedule:
        """Give the schedule for a number of micro-batches."""
        if num_microbatches not in self._schedules:
            made = build_schedule(self._name, pp=self.lane.degree, num_microbatches=num_microbatches, vp=self._vp)
            if made.stages_of(self.lane.rank) != self.stages.stages:
                raise LayoutError(
                    "parallel.pipeline_other_stages",
                    schedule=self._name,
                    wanted=", ".join(map(str, made.stages_of(self.lane.rank))),
                    found=", ".join(map(str, self.stages.stages)),
                )
            self._schedules[num_microbatches] = made
        return self._schedules[num_microbatches]

    def run(
        self, microbatches: Sequence[Mapping[str, Any]], *, loss_of: LossOf, only_forward: bool = False
    ) -> list[Tensor]:
        """Run one step: every micro-batch forward and, unless told otherwise, backward.

        Args:
            microbatches: The same on every rank of the pipeline; sizes may differ from one to the next.
            loss_of: Gives what backward starts from; called where the last stage is.
            only_forward: To evaluate.

        Returns:
            What ``loss_of`` gave for each micro-batch, detached, where the last stage is; nothing elsewhere.

        Raises:
            LayoutError: The stages don't fit the schedule or each other.
            TrainError: Another rank is gone.
        """
        schedule = self.schedule(len(microbatches))
        kinds = [(batch_key(self.stages.module, batch), only_forward) for batch in microbatches]
        delivery = self.transport.start(schedule, kinds, only_forward=only_forward)
        step = _Step(self, schedule, delivery, microbatches, loss_of, first_number=self._forwards)
        self._forwards += len(microbatches)
        with torch.set_grad_enabled(not only_forward):
            for action in schedule.ranks[self.lane.rank]:
                if action.kind == "F" or not only_forward:
                    step.act(action)
        delivery.finish()
        return [step.losses[number] for number in sorted(step.losses)]


@dataclass(slots=True)
class _Step:
    """The state of one step."""

    executor: Executor
    schedule: Schedule
    delivery: Delivery
    microbatches: Sequence[Mapping[str, Any]]
    loss_of: LossOf
    first_number: int = field(kw_only=True)
    losses: dict[int, Tensor] = field(default_factory=dict)
    live: dict[tuple[int, int], _Live] = field(default_factory=dict)
    here: dict[Message, Any] = field(default_factory=dict)
    weights_left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.microbatches)
        self.weights_left = dict.fromkeys(self.executor.stages.stages, count)

    def act(self, action: Action) -> None:
        """Carry out one action."""
        match action.kind:
            case "F":
                self._forward(action)
            case "B":
                self._told(action, self._backward, is_last=self._is_last(action))
            case "I":
                self._told(action, self._backward_inputs, is_last=False)
            case "W":
                is_last = self._is_last(action)
                self._told(action, self._backward_weights, is_last=False)
                if is_last and self.executor.sync is not None:
                    self.executor.sync.after_backward(action.stage, is_last=True)

    def _is_last(self, action: Action) -> bool:
        """Whether a stage's weights get nothing more in this step."""
        self.weights_left[action.stage] -= 1
        return self.weights_left[action.stage] == 0

    def _told(self, action: Action, act: Callable[[Action], None], *, is_last: bool) -> None:
        sync = self.executor.sync
        if sync is not None:
            sync.before_backward(action.stage, is_last=is_last)
        act(action)
        if sync is not None:
            sync.after_backward(action.stage, is_last=is_last)

    def _forward(self, action: Action) -> None:
        _, stage, microbatch = action
        arrivals = self._arrivals(action)
        batch = self.microbatches[microbatch]
        received = [arrival.tensor for arrival in arrivals]
        hooked: set[Any] = set()
        with hooks_noted(hooked):
            made = self.executor.stages.forward(stage, batch, received, number=self.first_number + microbatch)
            roots = list(made.to_send)
            if stage == self.schedule.num_stages - 1:
                roots = [self._loss(made.outputs, batch, microbatch)]
        if stage < self.schedule.num_stages - 1:
            self._hand_on(action, roots)
        if torch.is_grad_enabled():
            self.live[stage, microbatch] = _Live(roots=roots, arrivals=arrivals, hooked=hooked)

    def _loss(self, outputs: Any, batch: Mapping[str, Any], microbatch: int) -> Tensor:
        loss = self.loss_of(outputs, batch, microbatch)
        if is_absent(loss):
            raise LayoutError("parallel.pipeline_absent_loss")
        self.losses[microbatch] = loss.detach()
        return loss

    def _arrivals(self, action: Action) -> list[Arrival]:
        if action.stage == 0:
            return []
        message = Message("F", action.stage - 1, action.stage, action.microbatch)
        if message in self.here:
            return [arrive(tensor, differentiates=needs) for tensor, needs in self.here.pop(message)]
        received = self.delivery.receive(message)
        return [arrive(item[0], differentiates=item[1].differentiates) for item in received if item is not None]

    def _hand_on(self, action: Action, tensors: Sequence[Tensor]) -> None:
        message = Message("F", action.stage, action.stage + 1, action.microbatch)
        if self.schedule.message_of(action) is None:
            self.here[message] = [(_alias(tensor), tensor.requires_grad) for tensor in tensors]
        else:
            self.delivery.send(message, tensors)

    def _gradients(self, action: Action, live: _Live) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs that have a gradient, and those gradients."""
        _, stage, microbatch = action
        if stage == self.schedule.num_stages - 1:
            return live.roots, [torch.ones_like(root) for root in live.roots]
        message = Message("B", stage + 1, stage, microbatch)
        if message in self.here:
            found = self.here.pop(message)
        else:
            found = [None if item is None else item[0] for item in self.delivery.receive(message)]
        pairs = [(root, gradient) for root, gradient in zip(live.roots, found, strict=True) if gradient is not None]
        return [root for root, _ in pairs], [gradient for _, gradient in pairs]

    def _backward(self, action: Action) -> None:
        live = self.live.pop((action.stage, action.microbatch))
        roots, gradients = self._gradients(action, live)
        if roots:
            torch.autograd.backward(roots, gradients)
        self._hand_back(action, live)

    def _backward_inputs(self, action: Action) -> None:
        live = self.live[action.stage, action.microbatch]
        roots, gradients = self._gradients(action, live)
        anchors = [arrival.anchor for arrival in live.arrivals if arrival.anchor is not None]
        live.split = SplitBackward(roots=roots, gradients=gradients, anchors=anchors, hooked=live.hooked)
        live.split.to_inputs()
        self._hand_back(action, live)

    def _backward_weights(self, action: Action) -> None:
        live = self.live.pop((action.stage, action.microbatch))
        assert live.split is not None  # schedules put I before W
        live.split.to_weights()

    def _hand_back(self, action: Action, live: _Live) -> None:
        if action.stage == 0:
            return
        message = Message("B", action.stage, action.stage - 1, action.microbatch)
        gradients = [arrival.take_gradient() for arrival in live.arrivals]
        if self.schedule.message_of(action) is None:
            self.here[message] = gradients
        else:
            self.delivery.send(message, gradients)


def _alias(tensor: Tensor) -> Tensor:
    """The same memory without the graph behind it."""
    alias = tensor.detach()
    vars(alias).update(notes_of(tensor))
    return alias
