"""Callbacks under Hugging Face's names. They read; all they may change are three wishes.

A callback gets ``(args, state, control, **kwargs)`` as in ``transformers.TrainerCallback``: ``args``
are the settings, ``state`` is read-only, and ``control`` takes ``should_stop``, ``should_save`` and
``should_evaluate`` (Hugging Face's ``should_training_stop`` means ``should_stop``). Metrics and logs
come by keyword. Neither model nor optimizer is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trireme.errors import TrainError

_ALIASES = {"should_training_stop": "should_stop"}
_WISHES = ("should_stop", "should_save", "should_evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackState:
    """Where the run is; the names are those of ``transformers.TrainerState``."""

    global_step: int
    max_steps: int
    epoch: float
    num_input_tokens_seen: int
    best_metric: float | None
    best_global_step: int | None
    is_world_process_zero: bool = True

    @property
    def step(self) -> int:
        """Finished steps."""
        return self.global_step


class Control:
    """What callbacks may wish for; each wish is granted once, after the current step."""

    should_stop: bool
    should_save: bool
    should_evaluate: bool

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all wishes."""
        for wish in _WISHES:
            setattr(self, wish, False)

    def __setattr__(self, name: str, value: object) -> None:
        name = _ALIASES.get(name, name)
        if name not in _WISHES or not isinstance(value, bool):
            raise TrainError("train.control_closed", name=name, value=value, known=", ".join((*_WISHES, *_ALIASES)))
        object.__setattr__(self, name, value)

    @property
    def should_training_stop(self) -> bool:
        """Hugging Face's name of ``should_stop``."""
        return self.should_stop


class Callback:
    """Subclass it and write the methods you need; each is called as its name says."""

    def on_init_end(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """All is built; nothing has run."""

    def on_train_begin(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """The first step, or the first after a resume, is next."""

    def on_train_end(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """The last step is done and saved."""

    def on_epoch_begin(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """The next step begins a pass over the samples."""

    def on_epoch_end(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """The step that finished a pass over the samples is done."""

    def on_step_begin(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """A step is next."""

    def on_substep_end(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """A micro-batch is done."""

    def on_pre_optimizer_step(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """Gradients are complete and finite, not yet clipped."""

    def on_optimizer_step(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """The weights have changed; a skipped step has no such moment."""

    def on_step_end(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """A step is done; ``result`` is its StepResult."""

    def on_log(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """Numbers were reported: ``logs`` is a dict of them."""

    def on_prediction_step(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """A micro-batch of an evaluation is done."""

    def on_evaluate(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """An evaluation is done: ``metrics`` has ``eval_loss``."""

    def on_save(self, args: Any, state: CallbackState, control: Control, **kwargs: Any) -> None:
        """A checkpoint is complete."""


class CallbackGroup:
    """Calls each callback in the order given, with one control for all."""

    def __init__(self, callbacks: Sequence[Callback], *, args: Any = None) -> None:
        self.callbacks = tuple(callbacks)
        self.args = args
        self.control = Control()

    def fire(self, moment: str, *, state: CallbackState, **kwargs: Any) -> None:
        """Call ``on_<moment>`` of every callback that has it."""
        for callback in self.callbacks:
            method = getattr(callback, f"on_{moment}", None)
            if method is not None:
                method(self.args, state, self.control, **kwargs)
