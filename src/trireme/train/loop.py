"""The training loop: step, report, evaluate, write samples, save, until the plan is done.

What a run is made of is in ``Pieces``; what it has done so far is in ``Progress`` and in the stepper.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch

from trireme.checkpoint import Checkpoint
from trireme.data import Batch
from trireme.errors import CheckpointError, TrainError
from trireme.mesh import peak_memory_bytes
from trireme.observe import EvalReport, Event, Observer, ObserverGroup, StepReport
from trireme.parallel import StepTraffic
from trireme.supervise import beat, strike
from trireme.train.cadence import is_due
from trireme.train.callback import CallbackGroup, CallbackState
from trireme.train.compile import eager
from trireme.train.disturb import flip_bit, garbled
from trireme.train.evaluate import evaluate, evaluating
from trireme.train.event import step_events
from trireme.train.interrupt import Interrupt, catch_interrupts
from trireme.train.microbatch import take_rows
from trireme.train.pieces import FitResult, FitStatus, Pieces, SaveReason, Snapshot
from trireme.train.rng import kept_rng, seed_run, seed_step
from trireme.train.schedule import lr_at
from trireme.train.state import (
    Progress,
    Restored,
    check_finite,
    restore_state,
    state_json,
    state_tensors,
)
from trireme.train.step_result import StepResult
from trireme.words import say

LEFT_OUT = "left_out_steps"
"""Where the data's state lists steps whose samples are not learned from."""


def fit(pieces: Pieces, *, resume: Checkpoint | None = None) -> FitResult:
    """Train until the plan is done, a callback stops it or a signal ends it, and return how it ended.

    Raises:
        TrainError: The run must not go on (nothing to learn, not finite by policy).
        CheckpointError: ``resume`` can't be restored whole.
    """
    training = Training(pieces)
    training.start(resume)
    return training.run()


class Training:
    """One call of ``fit`` in two halves: ``start`` restores or refuses, ``run`` does the rest.

    Between them nothing was reported, so a caller may still decide what the run's folder says.
    """

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.stepper = pieces.stepper
        self.progress = Progress()
        self.observers = ObserverGroup(pieces.observers)
        self.callbacks = CallbackGroup(pieces.callbacks, args=pieces.settings)
        self.restored: Restored | None = None
        self.last_eval: EvalReport | None = None
        self.saved_step: int | None = None
        self.clock_s = time.perf_counter()
        self.has_stepped = False
        self.left_out = set(pieces.left_out)
        self.saves_begun_s: dict[int, float] = {}

    @property
    def done(self) -> bool:
        return self.progress.step >= self.pieces.plan.max_steps

    def start(self, resume: Checkpoint | None) -> None:
        """Seed a new run, or put a saved one back."""
        seed_run(self.pieces.seed, device=self.stepper.device)
        self.stepper.module.train()
        self.fire("init_end")
        if resume is None:
            return
        data = resume.state.get("data", {})
        self.pieces.check_data_state(data)
        self.left_out |= set(data.get(LEFT_OUT, ()))
        self.restored = restore_state(
            resume, stepper=self.stepper, progress=self.progress, allow_missing=self.pieces.allow_missing
        )
        self.saved_step = self.progress.step
        self.check_whole_steps()

    def run(self, *, observers: Iterable[Observer] = ()) -> FitResult:
        """Train from where ``start`` left the run, told to the pieces' observers and to ``observers``."""
        self.observers = ObserverGroup((*self.pieces.observers, *observers))
        if self.done:
            return self.result("already_finished")
        self.report_restored()
        with (
            catch_interrupts(notice=self.say_interrupted) as interrupt,
            self.pieces.open_loader(self.progress.step, self.pieces.plan.max_steps) as batches,
        ):
            return self.go(batches, interrupt=interrupt)

    def report_restored(self) -> None:
        """Say what a resume put back."""
        if self.restored is None:
            return
        restored, here = self.restored, self.stepper.engine.layout_text
        names, missing = ", ".join(restored.names), ", ".join(restored.missing)
        if restored.left is not None:
            self.event("resume", restored.left, level="warning")
        key = "train.resumed_inexact" if missing else "train.resumed"
        same = restored.layout == here
        how = say("train.same_layout" if same else "train.other_layout", saved=restored.layout, here=here)
        lr = lr_at(self.progress.step - self.stepper.counters.num_skipped, schedule=self.pieces.schedule)
        text = say(key, step=self.progress.step, names=names, missing=missing)
        whence = say("train.resumed_from", path=restored.path, num_seqs=self.progress.num_seqs, lr=f"{lr:.4g}")
        self.event(
            "resume",
            f"{text} {whence} {how}",
            level="warning" if missing else "info",
            data={
                "exact": restored.exact,
                "restored": restored.names,
                "missing": restored.missing,
                "path": str(restored.path),
                "saved_by": restored.layout,
                "lr": lr,
                "samples": self.progress.num_seqs,
            },
        )

    def check_whole_steps(self) -> None:
        """Refuse to go on after a short last step: the rest of its samples would never be used.

        Raises:
            CheckpointError: The run in epochs had ended, and is now to be longer.
        """
        wanted = self.progress.step * self.pieces.plan.global_batch_seqs
        if not self.done and self.progress.num_seqs < wanted:
            left = wanted - self.progress.num_seqs
            raise CheckpointError("train.short_step", step=self.progress.step, left=left)

    def go(self, batches: Iterable[Batch], *, interrupt: Interrupt) -> FitResult:
        """Run the steps that are left."""
        self.fire("train_begin")
        self.clock_s = time.perf_counter()
        for batch in batches:
            if self.progress.step in self.left_out:
                self.leave_out(batch)
            else:
                self.step(batch)
            interrupted = self.agree(interrupt)
            self.after_step(interrupted=interrupted)
            (stopped,) = self.stepper.engine.any_of([self.callbacks.control.should_stop])
            if self.done or interrupted or stopped:
                break
        else:
            raise TrainError("train.data_ended", step=self.progress.step, max_steps=self.pieces.plan.max_steps)
        self.settle(wait=True)
        self.fire("train_end")
        if self.done:
            return self.result("finished")
        status: FitStatus = "interrupted" if interrupted else "stopped"
        self.event(status, say(f"train.{status}", step=self.progress.step))
        return self.result(status, exit_code=interrupt.exit_code)

    def step(self, batch: Batch) -> None:
        """Run one step and report it; raises after the report if the run must not go on."""
        step = self.progress.step
        beat("step" if self.has_stepped else "first_step", step=step)  # the first compiles, allocates, connects
        batch = self._disturbed(batch)
        if batch.step != step:
            raise TrainError("train.wrong_batch", found=batch.step, wanted=step)
        batch = take_rows(batch, self.pieces.plan.seqs_at(step))
        if self._epochs_done(self.progress.num_seqs) or step == 0:
            self.fire("epoch_begin")
        self.fire("step_begin")
        seed_step(self.pieces.seed, step=step, device=self.stepper.device)
        # A step that was skipped has used up none of the schedule.
        lr = lr_at(step - self.stepper.counters.num_skipped, schedule=self.pieces.schedule)
        result = self.stepper.step(batch, lr=lr, on_moment=self.moment)
        before = self.progress.num_seqs
        self.progress.step += 1
        self.progress.tokens += result.step_tokens
        self.progress.num_seqs += result.num_seqs
        self._report(result)
        if self.progress.num_seqs // self.pieces.samples_per_epoch > before // self.pieces.samples_per_epoch:
            self.fire("epoch_end")
        if self.done:
            self.stepper.engine.conclude()
        self.stepper.check(result)
        self.has_stepped = True
        beat("step", step=self.progress.step)

    def leave_out(self, batch: Batch) -> None:
        """Go past a step whose samples are not to be learned from; like a skipped one it uses up no learning rate."""
        step = self.progress.step
        self.progress.step += 1
        self.progress.num_seqs += self.pieces.plan.seqs_at(step)
        self.stepper.counters.num_steps += 1
        self.stepper.counters.num_left_out += 1
        everyone = self.stepper.engine.merge(batch.sample_ids.tolist())
        ids = list(dict.fromkeys(each for of_rank in everyone for each in of_rank))
        text = say("train.left_out", step=step + 1, ids=", ".join(map(str, ids)))
        self.event("left_out", text, data={"sample_ids": ids})
        beat("step", step=self.progress.step)

    def check_replicas(self) -> None:
        """Compare the copies of the weights.

        Raises:
            TrainError: Some differ; the parameter and the ranks are named.
        """
        problem = self.stepper.engine.compare_replicas()
        if problem is None:
            return
        ranks = ", ".join(map(str, problem.ranks))
        raise TrainError("train.replica_differs", step=self.progress.step, name=problem.name, ranks=ranks)

    def moment(self, name: str) -> None:
        """Be alive, and tell the callbacks."""
        beat()
        self.fire(name)

    def agree(self, interrupt: Interrupt) -> bool:
        """Have all ranks evaluate, save and stop together, whichever was asked to; returns whether to end.

        Asked once a step: a signal that comes later on one rank is for the next step.
        """
        control = self.callbacks.control
        flags = [interrupt.requested, control.should_stop, control.should_evaluate, control.should_save]
        asked, control.should_stop, control.should_evaluate, control.should_save = self.stepper.engine.any_of(flags)
        if asked and not interrupt.requested:
            interrupt.signal_number = signal.SIGTERM
        return asked

    def after_step(self, *, interrupted: bool) -> None:
        """Evaluate, write samples and save where it is time; the step's clock does not count it."""
        step, max_steps, cadence = self.progress.step, self.pieces.plan.max_steps, self.pieces.cadence
        control = self.callbacks.control
        if control.should_evaluate or is_due(step, every_steps=cadence.eval_every_steps, max_steps=max_steps):
            self.evaluate()
        if is_due(step, every_steps=cadence.sample_every_steps, max_steps=max_steps):
            self.sample()
        reason = self.save_reason(interrupted=interrupted)
        every = self.pieces.replica_check_every_steps
        if every is not None and (reason is not None or step % every == 0):
            self.check_replicas()
        if reason is not None:
            self.save(reason)
        self.settle(wait=False)
        control.should_evaluate = control.should_save = False
        beat("step")
        self.clock_s = time.perf_counter()

    def evaluate(self) -> None:
        """Measure the held-out loss and report it."""
        if self.pieces.eval_batches is None:
            return
        beat("evaluating")
        with kept_rng(self.stepper.device):
            result = evaluate(
                self.stepper.module,
                self.pieces.eval_batches(),
                objective=self.stepper.objective,
                precision=self.stepper.precision,
                microbatch_seqs=self.stepper.microbatch_seqs,
                on_microbatch=lambda: self.moment("prediction_step"),
                engine=self.stepper.engine,
            )
        is_best = self.progress.best_loss is None or result.loss < self.progress.best_loss
        if is_best:
            self.progress.best_loss, self.progress.best_step = result.loss, self.progress.step
        self.last_eval = EvalReport(
            step=self.progress.step,
            loss=result.loss,
            num_seqs=result.num_seqs,
            target_tokens=result.target_tokens,
            eval_s=result.eval_s,
            is_best=is_best,
        )
        self.observers.on_eval(self.last_eval)
        self.fire("evaluate", metrics={"eval_loss": result.loss})

    def sample(self) -> None:
        """Have the model write; it runs as written, for each length would be compiled anew."""
        if self.pieces.sample is None:
            return
        beat("sampling")
        with kept_rng(self.stepper.device), evaluating(self.stepper.module), eager():
            for report in self.pieces.sample(self.progress.step):
                self.observers.on_sample(report)

    def save_reason(self, *, interrupted: bool) -> SaveReason | None:
        """Return why to save now, or None."""
        step, max_steps = self.progress.step, self.pieces.plan.max_steps
        control = self.callbacks.control
        if step >= max_steps:
            return "end"
        if interrupted:
            return "interrupt"
        if control.should_stop or control.should_save:
            return "callback"
        interval = self.pieces.save_interval()
        due = is_due(step, every_steps=self.pieces.cadence.save_every_steps, max_steps=max_steps)
        if interval is not None:
            due = step - (self.saved_step or 0) >= interval
        return "cadence" if due else None

    def save(self, reason: SaveReason) -> None:
        """Save once a step, and never a state that is not finite."""
        if self.pieces.save is None or self.saved_step == self.progress.step:
            return
        beat("saving")
        self.saves_begun_s[self.progress.step] = time.perf_counter()
        tensors = self._finite_tensors()
        state = state_json(
            self.stepper,
            progress=self.progress,
            schedule=self.pieces.schedule,
            data=self._data_state(),
        )
        fresh = self.last_eval is not None and self.last_eval.step == self.progress.step
        metrics = {"eval_loss": self.last_eval.loss} if fresh and self.last_eval else {}
        snapshot = Snapshot(
            step=self.progress.step,
            reason=reason,
            tensors=tensors,
            pieces=self.stepper.engine.state_pieces(tensors),
            state=state,
            metrics=metrics,
        )
        is_safe = self.pieces.save(snapshot)
        strike("save", step=self.progress.step)
        if is_safe is False:
            return
        self.saved_step = self.progress.step
        if self.pieces.settle is None:
            self.fire("save")

    def settle(self, *, wait: bool) -> None:
        """Hear which checkpoints became durable; with ``wait`` there is none left on its way afterwards."""
        if wait:
            beat("saving")
        for step in self.pieces.settle(wait) if self.pieces.settle else ():
            beat(save_s=time.perf_counter() - self.saves_begun_s.pop(step, time.perf_counter()))
            self.fire("save")

    def _disturbed(self, batch: Batch) -> Batch:
        """Let a fault made on purpose strike; returns the batch, or what it makes of it."""
        strike("step", step=batch.step)
        if strike("weights", step=batch.step) is not None:
            flip_bit(self.stepper.module)
        return batch if strike("data", step=batch.step) is None else garbled(batch)

    def _data_state(self) -> Mapping[str, Any]:
        state = self.pieces.data_state(self.progress.step)
        return {**state, LEFT_OUT: sorted(self.left_out)} if self.left_out else state

    def _finite_tensors(self) -> Mapping[str, torch.Tensor]:
        """Return this rank's part of what a checkpoint holds; what isn't finite on one rank is refused on all."""
        tensors, problem = state_tensors(self.stepper), None
        try:
            check_finite(tensors)
        except TrainError as error:
            problem = error
        (is_bad,) = self.stepper.engine.any_of([problem is not None])
        if is_bad:
            raise problem or TrainError("train.state_not_finite_elsewhere")
        return tensors

    def result(self, status: FitStatus, *, exit_code: int = 0) -> FitResult:
        """Return how the run ended."""
        return FitResult(
            status=status,
            step=self.progress.step,
            max_steps=self.pieces.plan.max_steps,
            tokens=self.progress.tokens,
            best_loss=self.progress.best_loss,
            best_step=self.progress.best_step,
            exit_code=exit_code,
            exact=self.restored is None or self.restored.exact,
        )

    def say_interrupted(self) -> None:
        """Answer the first Ctrl-C."""
        self.event("interrupt", say("train.interrupting"))

    def event(
        self,
        kind: str,
        text: str,
        *,
        level: Literal["info", "warning"] = "info",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell the observers."""
        self.observers.on_event(Event(kind=kind, text=text, step=self.progress.step, level=level, data=data or {}))

    def fire(self, moment: str, **kwargs: Any) -> None:
        """Tell the callbacks."""
        if self.callbacks.callbacks:
            self.callbacks.fire(moment, state=self._callback_state(), **kwargs)

    def _report(self, result: StepResult) -> None:
        now_s = time.perf_counter()
        report = self._step_report(result, step_s=now_s - self.clock_s)
        self.clock_s = now_s
        self.observers.on_step(report)
        for event in step_events(result, step=self.progress.step, stepper=self.stepper):
            self.observers.on_event(event)
        logs = {"loss": result.loss, "grad_norm": result.grad_norm, "learning_rate": result.lr, "epoch": report.epoch}
        self.fire("step_end", result=result)
        self.fire("log", logs=logs)

    def _step_report(self, result: StepResult, *, step_s: float) -> StepReport:
        flops_per_token, moved = self.pieces.flops_per_token, result.transfers
        return StepReport(
            step=self.progress.step,
            max_steps=self.pieces.plan.max_steps,
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=result.lr,
            tokens=self.progress.tokens,
            step_tokens=result.step_tokens,
            real_tokens=result.real_tokens,
            target_tokens=result.target_tokens,
            step_s=step_s,
            flops=None if flops_per_token is None else flops_per_token * result.step_tokens,
            peak_flops_per_s=self.pieces.peak_flops_per_s,
            memory_bytes=peak_memory_bytes(self.stepper.device),
            epoch=self._epoch(),
            skipped=result.skipped,
            num_skipped=self.stepper.counters.num_skipped,
            loss_scale=result.loss_scale,
            **_wire_figures(result.traffic),
            offload_bytes=None if moved is None else moved.read_bytes + moved.written_bytes,
            offload_stall_s=None if moved is None else moved.stall_s,
        )

    def _callback_state(self) -> CallbackState:
        return CallbackState(
            global_step=self.progress.step,
            max_steps=self.pieces.plan.max_steps,
            epoch=self._epoch(),
            num_input_tokens_seen=self.progress.tokens,
            best_metric=self.progress.best_loss,
            best_global_step=self.progress.best_step,
        )

    def _epoch(self) -> float:
        return self.progress.num_seqs / self.pieces.samples_per_epoch

    def _epochs_done(self, num_seqs: int) -> bool:
        """Say whether the last step finished a pass over the samples."""
        return num_seqs > 0 and num_seqs % self.pieces.samples_per_epoch < self.pieces.plan.global_batch_seqs


def _wire_figures(traffic: StepTraffic | None) -> dict[str, Any]:
    """Return what a report says of the wire."""
    if traffic is None:
        return {}
    gradients = traffic.gradients
    return {
        "sent_bytes": dict(traffic.by_axis),
        "crossing_bytes": gradients.crossing_bytes,
        "communication_s": gradients.communication_s,
        "exposed_s": gradients.exposed_s,
    }
