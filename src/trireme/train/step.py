"""One optimizer step: micro-batches in, one exact update out.

The gradient is that of the undivided global batch: the loss summed over all supervised tokens,
divided once by their number, whatever the micro-batches and ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from trireme.data import Batch
from trireme.errors import DeviceError, Rollback, TrainError
from trireme.models import set_dropout_clock, token_cross_entropy
from trireme.parallel import ActivationOffload, ChunkedOptimizer, Moment, Transfers, apply_marks
from trireme.supervise import strike
from trireme.train.engine import Engine, OneDevice, Passes
from trireme.train.frozen import RoundingWatch
from trireme.train.microbatch import Micro, Work, fill_up, move, split_batch
from trireme.train.objective import AuxiliaryFn, CallFn, CountFn, LossFn, Objective, call_module, num_rows
from trireme.train.optim import clip_factor, place_state, set_lr, set_step, step_scaled, trained_parameters
from trireme.train.precision import Policy, Precision, build_precision
from trireme.train.spike import add_to_trend, is_spike
from trireme.train.step_result import Outcome, StepCounters, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """What all micro-batches and ranks add up to, on the host."""

    loss_sum: float
    auxiliary: float
    norm: float


class Stepper:
    """Turns a batch into one optimizer step: for Trireme's loop, or for your own.

    A whole training loop::

        import torch, trireme
        model = torch.nn.Linear(16, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        def loss_fn(outputs, batch):
            return torch.nn.functional.cross_entropy(outputs, batch["label"], reduction="sum"), len(outputs)
        stepper = trireme.Stepper(model, optimizer, loss_fn=loss_fn, count_fn=lambda batch: len(batch["label"]),
                                  precision="bf16", clip_grad_norm=1.0, microbatch_seqs=4)
        for _ in range(20):
            report = stepper({"input": torch.randn(8, 16), "label": torch.randint(4, (8,))})
            print(report.loss, report.grad_norm)

    Args:
        module: Any module, already on its device; where weights have 16 bits, already cast.
        optimizer: Any torch optimizer over its parameters; with a ``*_master`` policy it gets fp32 copies here.
        loss_fn: ``(outputs, batch) -> (loss_sum, count)``. Default: next-token cross-entropy over
            ``batch["labels"]``.
        count_fn: What a batch's loss is summed over; default: the labels that aren't -100.
        loss_reduction: ``mean`` or ``batch`` for a ``loss_fn`` that returns a bare scalar.
        auxiliary: ``(outputs, batch) -> scalar``, a mean over the micro-batch that is added,
            weighted by the micro-batch's share of the count.
        call: ``(module, batch) -> outputs``. Default: the module gets what its forward takes by name.
        precision: A policy by name, or a Precision.
        clip_grad_norm: Largest global gradient norm; None: no clipping.
        microbatch_seqs: Samples a forward and backward; None: all at once.
        on_nonfinite: ``skip`` the step or ``stop`` on a NaN or Inf loss or gradient norm; ``rollback`` raises Rollback.
        max_nonfinite: Stop after this many such steps in a row.
        on_spike: The same for a loss or norm more than ``spike_sigmas`` above those of late; ``ignore``: apply it.
        spike_sigmas: In standard deviations.
        engine: Runs forwards and backwards; default: this device alone.
        activations: Takes what backward needs elsewhere until then.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        loss_fn: LossFn | None = None,
        count_fn: CountFn | None = None,
        loss_reduction: Literal["mean", "batch"] | None = None,
        auxiliary: AuxiliaryFn | None = None,
        call: CallFn | None = None,
        precision: Policy | Precision = "fp32",
        clip_grad_norm: float | None = None,
        microbatch_seqs: int | None = None,
        on_nonfinite: Literal["skip", "rollback", "stop"] = "skip",
        max_nonfinite: int = 3,
        on_spike: Literal["ignore", "skip", "rollback", "stop"] = "ignore",
        spike_sigmas: float = 8.0,
        engine: Engine | None = None,
        activations: ActivationOffload | None = None,
    ) -> None:
        self.module = module
        self.device = next(module.parameters()).device
        self.objective = build_objective(
            loss_fn=loss_fn, count_fn=count_fn, loss_reduction=loss_reduction, auxiliary=auxiliary, call=call
        )
        self.precision = (
            precision if isinstance(precision, Precision) else build_precision(precision, device=self.device)
        )
        self.optimizer = _placed(optimizer, module=module, precision=self.precision)
        self.clip_grad_norm = clip_grad_norm
        self.microbatch_seqs = microbatch_seqs
        self.on_nonfinite = on_nonfinite
        self.max_nonfinite = max_nonfinite
        self.on_spike = on_spike
        self.spike_sigmas = spike_sigmas
        self.engine = engine or OneDevice()
        self.activations = activations
        if engine is None:
            apply_marks(module)
        self.scaler = self.precision.build_scaler()
        self.counters = StepCounters()
        self._rounding = RoundingWatch(self.optimizer) if self.precision.loses_updates else None
        self._buffer_names = _persistent_buffers(module)

    def __call__(self, batch: Batch | Mapping[str, Any], *, lr: float | None = None) -> StepResult:
        """Run one step and stop if it must not go on from here.

        Raises:
            TrainError: Too many steps in a row were not finite, or the first has nothing to learn.
        """
        result = self.step(batch, lr=lr)
        self.check(result)
        return result

    def step(
        self,
        batch: Batch | Mapping[str, Any],
        *,
        lr: float | None = None,
        on_moment: Callable[[str], None] = lambda moment: None,
    ) -> StepResult:
        """Run one step and return what it did, without judging whether to go on.

        ``on_moment`` hears ``substep_end``, ``pre_optimizer_step`` and ``optimizer_step``.
        """
        started_s = time.perf_counter()
        if lr is not None:
            set_lr(self.optimizer, lr)
        work = self._split(batch)
        self._check_whole_batch(work)
        tokens = work.tokens
        total, num_seqs, *token_counts = self.engine.sum_counts(
            [work.count, work.num_seqs, tokens.step_tokens, tokens.real_tokens, tokens.target_tokens]
        )
        buffers = self._buffer_copies()
        self.engine.prepare(scale=self.scaler.scale if self.scaler else 1.0)
        sums = self._accumulate(work, total=total, on_moment=on_moment)
        outcome = self._judge(sums, total=total)
        frozen_ratios = self._finish(outcome, norm=sums.norm, buffers=buffers, on_moment=on_moment)
        self._count(outcome)
        return StepResult(
            loss=sums.loss_sum / total if total else 0.0,
            grad_norm=sums.norm,
            lr=self.optimizer.param_groups[0]["lr"],
            outcome=outcome,
            num_seqs=num_seqs,
            step_tokens=token_counts[0],
            real_tokens=token_counts[1],
            target_tokens=token_counts[2],
            sample_ids=work.sample_ids,
            step_s=time.perf_counter() - started_s,
            auxiliary=sums.auxiliary if self.objective.auxiliary else None,
            loss_scale=self.scaler.scale if self.scaler else None,
            frozen_ratios=frozen_ratios,
            traffic=self.engine.read_traffic(),
            transfers=self._transfers(),
        )

    def _transfers(self) -> Transfers | None:
        """Return what this step moved for what lives elsewhere; None where nothing does."""
        optimizer = self.optimizer
        moved = [self.activations.transfers.take()] if self.activations else []
        if isinstance(optimizer, ChunkedOptimizer) and optimizer.home.is_elsewhere:
            moved.append(optimizer.home.transfers.take())
        if not moved:
            return None
        return Transfers(
            read_bytes=sum(each.read_bytes for each in moved),
            written_bytes=sum(each.written_bytes for each in moved),
            stall_s=sum(each.stall_s for each in moved),
        )

    def check(self, result: StepResult) -> None:
        """Stop where going on would waste or hide something.

        Raises:
            TrainError: The first step has nothing to learn or a loss of exactly zero; or steps were
                not finite and the policy, or ``max_nonfinite`` of them in a row, says stop.
        """
        ids = _show_ids(result.sample_ids)
        if self.counters.num_steps == 1 and result.outcome == "empty":
            raise TrainError("train.nothing_to_learn", ids=ids)
        if self.counters.num_steps == 1 and result.loss == 0.0:
            raise TrainError("train.zero_loss", ids=ids)
        values = {"step": self.counters.num_steps, "loss": result.loss, "grad_norm": result.grad_norm, "ids": ids}
        wish = {"nonfinite": self.on_nonfinite, "spike": self.on_spike}.get(result.outcome)
        if wish == "rollback":
            raise Rollback("train.rollback", **values)
        if result.outcome == "spike" and wish == "stop":
            raise TrainError("train.spike_stop", **values)
        if result.outcome != "nonfinite":
            return
        if self.on_nonfinite == "stop":
            raise TrainError("train.nonfinite_stop", **values)
        if self.counters.nonfinite_in_row >= self.max_nonfinite:
            raise TrainError("train.nonfinite_row", count=self.counters.nonfinite_in_row, **values)

    def _split(self, batch: Batch | Mapping[str, Any]) -> Work:
        """Cut the batch as often as asked for, and as often as the other ranks do."""
        work = split_batch(
            batch, objective=self.objective, microbatch_seqs=self.microbatch_seqs, parts=self.engine.parts
        )
        return fill_up(work, count=self.engine.num_passes(len(work.micros)))

    def _check_whole_batch(self, work: Work) -> None:
        if self.objective.loss_reduction == "batch" and (len(work.micros) > 1 or self.engine.lockstep):
            raise TrainError("train.whole_batch", microbatch_seqs=self.microbatch_seqs, seqs=work.num_seqs)

    def _accumulate(self, work: Work, *, total: int, on_moment: Callable[[str], None]) -> _Sums:
        """Run all micro-batches; the gradients are then those of the global batch, times the loss scale."""
        first_row = self.engine.first_row(work.num_seqs)
        divisor = self.engine.divisor(work.count, total=total)
        micros = [micro for micro in work.micros if micro.count or self.engine.lockstep] if total else []
        losses: list[torch.Tensor] = []

        def prepare(index: int) -> dict[str, Any]:
            micro = micros[index]
            set_dropout_clock(self.module, step=self.counters.num_steps, first_row=first_row + micro.first_row)
            return move(micro.tensors, device=self.device)

        def score(outputs: Any, tensors: Mapping[str, Any], index: int) -> torch.Tensor:
            objective, measured = self._score(outputs, tensors, micros[index], total=total, divisor=divisor)
            losses.append(measured)
            return objective

        passes = Passes(
            count=len(micros),
            prepare=prepare,
            call=self.objective.call,
            score=score,
            done=lambda index: on_moment("substep_end"),
            moment=lambda index: self._moment(micros[index], first_row=first_row),
        )
        try:
            with (
                self.activations.active() if self.activations else nullcontext(),
                self.precision.compute_context(self.module, keeps_casts=self.engine.keeps_casts),
            ):
                self.engine.run(self.module, passes)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(micros[0], device=self.device) from error
        norm = self.engine.grad_norm(trained_parameters(self.optimizer))
        return self._read(losses, norm=norm, work=work, total=total)

    def _moment(self, micro: Micro, *, first_row: int) -> Moment:
        rows = num_rows(micro.tensors)
        return Moment(step=self.counters.num_steps, first_row=first_row + micro.first_row, rows=rows)

    def _score(
        self, outputs: Any, tensors: Mapping[str, Any], micro: Micro, *, total: int, divisor: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what to differentiate; and loss sum, auxiliary part and count, still on the device."""
        loss = self.objective.score(outputs, tensors, count=micro.count)
        objective = _disturbed(loss.loss_sum / divisor, step=self.counters.num_steps)
        auxiliary = torch.zeros_like(objective)
        if loss.auxiliary is not None:
            auxiliary = loss.auxiliary.reshape(()) * (micro.count / total)
            objective = objective + auxiliary * (total / divisor)
        if not micro.count:
            # Another rank needs this backward; whatever the loss is here, it must weigh nothing.
            objective = torch.nan_to_num(objective, nan=0.0, posinf=0.0, neginf=0.0) * 0.0
        count = torch.as_tensor(loss.count, device=objective.device)
        loss_sum = loss.loss_sum.detach() if micro.count else torch.zeros_like(objective.detach())
        measured = torch.stack([loss_sum.float(), auxiliary.detach().float(), count.float()])
        return objective * self.scaler.scale if self.scaler else objective, measured

    def _read(self, losses: list[torch.Tensor], *, norm: torch.Tensor, work: Work, total: int) -> _Sums:
        """Bring the numbers to the host; the one place in a step that waits for the device."""
        scale = self.scaler.scale if self.scaler else 1.0
        if not total:
            return _Sums(loss_sum=0.0, auxiliary=0.0, norm=float(norm) / scale)
        flat = torch.cat([*(loss.reshape(3) for loss in losses), norm.reshape(1).float()]).tolist()
        counted = round(math.fsum(flat[2:-1:3]))
        if losses and counted != work.count:
            raise TrainError("train.count_differs", counted=work.count, returned=counted)
        loss_sum, auxiliary = self.engine.sum_values([math.fsum(flat[0:-1:3]), math.fsum(flat[1:-1:3])])
        return _Sums(loss_sum=loss_sum, auxiliary=auxiliary, norm=flat[-1] / scale)

    def _buffer_copies(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        buffers = [self.module.get_buffer(name) for name in self._buffer_names]
        return [(buffer, buffer.detach().clone()) for buffer in buffers]

    def _judge(self, sums: _Sums, *, total: int) -> Outcome:
        """Say what becomes of the step, the same on every rank: what one can't apply, none does."""
        if not total:
            return "empty"
        loss, counters = sums.loss_sum / total, self.counters
        is_odd = self.on_spike != "ignore" and is_spike(loss, sums.norm, counters=counters, sigmas=self.spike_sigmas)
        flags = [not math.isfinite(sums.loss_sum), not math.isfinite(sums.norm), is_odd]
        bad_loss, bad_norm, is_odd = self.engine.any_of(flags)
        if bad_loss or bad_norm:
            return "overflow" if self.scaler and not bad_loss and not self.scaler.exhausted else "nonfinite"
        if is_odd:
            return "spike"
        add_to_trend(loss, sums.norm, counters=counters)
        return "updated"

    def _finish(
        self,
        outcome: Outcome,
        *,
        norm: float,
        buffers: list[tuple[torch.Tensor, torch.Tensor]],
        on_moment: Callable[[str], None],
    ) -> Mapping[str, float]:
        """Update the weights, or put back what the forwards changed; then drop the gradients."""
        frozen_ratios: Mapping[str, float] = {}
        if outcome == "updated":
            on_moment("pre_optimizer_step")
            frozen_ratios = self._update(norm=norm)
            on_moment("optimizer_step")
        else:
            with torch.no_grad():
                for buffer, old in buffers:
                    buffer.copy_(old)
        if self.scaler and outcome != "empty":
            self.scaler.update(overflow=outcome in ("overflow", "nonfinite"))
        self.optimizer.zero_grad(set_to_none=True)
        self.engine.settle(is_updated=outcome == "updated")
        return frozen_ratios

    def _update(self, *, norm: float) -> Mapping[str, float]:
        """Unscale and clip in one factor, here and nowhere else, and let the optimizer step."""
        scale = self.scaler.scale if self.scaler else 1.0
        factor = clip_factor(norm, limit=self.clip_grad_norm) / scale
        set_step(self.optimizer, self.counters.num_steps)
        if self._rounding is None:
            step_scaled(self.optimizer, factor=factor)
            return {}
        self._rounding.before()
        step_scaled(self.optimizer, factor=factor)
        return self._rounding.after()

    def _count(self, outcome: Outcome) -> None:
        counters = self.counters
        counters.num_steps += 1
        counters.num_nonfinite += outcome == "nonfinite"
        counters.num_overflows += outcome == "overflow"
        counters.num_empty += outcome == "empty"
        counters.num_spikes += outcome == "spike"
        counters.nonfinite_in_row = counters.nonfinite_in_row + 1 if outcome == "nonfinite" else 0


def build_objective(
    *,
    loss_fn: LossFn | None = None,
    count_fn: CountFn | None = None,
    loss_reduction: Literal["mean", "batch"] | None = None,
    auxiliary: AuxiliaryFn | None = None,
    call: CallFn | None = None,
) -> Objective:
    """Return an Objective; what is left out is next-token cross-entropy on Trireme's batches."""
    return Objective(
        loss_fn=loss_fn or token_cross_entropy,
        call=call or call_module,
        count_fn=count_fn,
        loss_reduction=loss_reduction,
        auxiliary=auxiliary,
    )


def _placed(optimizer: torch.optim.Optimizer, *, module: nn.Module, precision: Precision) -> torch.optim.Optimizer:
    """Give a plain optimizer what the policy wants; one that was given a place for its state has all of it."""
    if isinstance(optimizer, ChunkedOptimizer):
        return optimizer
    return place_state(optimizer, module=module, precision=precision)


def _disturbed(objective: torch.Tensor, *, step: int) -> torch.Tensor:
    """Return the objective, or what a fault made on purpose makes of it."""
    fault = strike("gradient", step=step)
    if fault is None:
        return objective
    return objective * (math.nan if fault.name == "nan" else 1e6)


def _persistent_buffers(module: nn.Module) -> tuple[str, ...]:
    """Return the names of saved buffers: running statistics of a bad batch must not outlive it."""
    saved = module.state_dict(keep_vars=True)
    return tuple(name for name, _ in module.named_buffers() if name in saved)


def _out_of_memory(micro: Micro, *, device: torch.device) -> DeviceError:
    rows = len(next(value for value in micro.tensors.values() if isinstance(value, torch.Tensor) and value.dim()))
    return DeviceError("train.out_of_memory", device=device, rows=rows, half=max(1, rows // 2))


def _show_ids(ids: tuple[int, ...], *, limit: int = 8) -> str:
    shown = ", ".join(map(str, ids[:limit])) or "-"
    return f"{shown} ... ({len(ids)})" if len(ids) > limit else shown
