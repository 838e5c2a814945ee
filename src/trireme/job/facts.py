"""The numbers of the reports before the first step and after the last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from torch import nn

from trireme.config import RunConfig, TrainSection
from trireme.job.build import Machine
from trireme.job.layout import Arrangement
from trireme.job.options import RunOptions
from trireme.mesh import DeviceFacts, device_facts, measures_whole_process, peak_memory_bytes
from trireme.models import Decoder, ModelSummary, describe_model
from trireme.observe import ClosingFacts, OpeningFacts, RunFolder, StepReport, Watcher, format_step_time
from trireme.plan import ASSUMED_MFU, MemoryEstimate, Plan, estimate_memory, estimate_state_memory, estimate_step_s
from trireme.train import FitResult, StepPlan
from trireme.words import say

_RECENT_STEPS = 100
"""Last steps of which typical figures are taken."""

_SETTLING_STEPS = 2
"""Steps that are not typical: first calls allocate and choose kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of a run; compared with what was measured at its end.

    ``step_s`` is None where nothing tells how fast the device is; ``step_s_basis`` says where it comes from.
    """

    summary: ModelSummary
    device: DeviceFacts
    memory: MemoryEstimate
    peak_flops_per_s: float | None
    step_s: float | None
    step_s_basis: str


class Totals(Watcher):
    """Remembers of the steps of this attempt what the closing report needs."""

    def __init__(self) -> None:
        self.last: StepReport | None = None
        self.tokens = 0
        self._durations_s: list[float] = []
        self._recent: deque[StepReport] = deque(maxlen=_RECENT_STEPS)

    def on_step(self, report: StepReport) -> None:
        """Take the step in."""
        self.last = report
        self.tokens += report.step_tokens
        self._durations_s.append(report.step_s)
        self._recent.append(report)

    def typical(self, read: Callable[[StepReport], float | None]) -> float | None:
        """Return a figure's median over the last steps that have it."""
        found = [value for value in map(read, self._recent) if value is not None]
        return median(found) if found else None

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes a step that this rank sent, by axis."""
        axes = dict.fromkeys(axis for report in self._recent for axis in report.sent_bytes)
        return {axis: mean(report.sent_bytes.get(axis, 0) for report in self._recent) for axis in axes}

    @property
    def median_step_s(self) -> float | None:
        """The typical time of a step; None before there is one."""
        settled = self._durations_s[_SETTLING_STEPS:] or self._durations_s
        return median(settled) if settled else None


def build_forecast(
    machine: Machine, *, config: RunConfig, plan: StepPlan, program_bytes: int, arrangement: Arrangement
) -> Forecast:
    """Return what is expected of the run. ``program_bytes``: what the process held before there was a model."""
    device = device_facts(machine.device, measure=config.observe.peak_flops_per_s is None)
    summary = describe_model(machine.module, seq_len=config.data.seq_len)
    peak = config.observe.peak_flops_per_s or device.peak_of(machine.precision.compute_dtype or "float32")
    step_s, basis = _step_time(machine, plan=plan, summary=summary, peak_flops_per_s=peak)
    memory = _memory(machine, config=config, program_bytes=program_bytes)
    if arrangement.needs_ranks:
        # These are forecasts for one device; those for layouts are the planner's.
        step_s, basis = _planned_time(arrangement.plan)
        memory = _planned_memory(arrangement.plan, program_bytes=_held(machine, program_bytes=program_bytes))
    if measures_whole_process(machine.device) and config.checkpoint.background:
        snapshot_bytes = _snapshot_bytes(machine.module) // arrangement.layout.world_size
        memory = replace(memory, parts={**memory.parts, "snapshot": snapshot_bytes})
    return Forecast(
        summary=summary,
        device=device,
        memory=memory,
        peak_flops_per_s=peak,
        step_s=step_s,
        step_s_basis=basis,
    )


def opening_facts(
    machine: Machine, *, config: RunConfig, folder: RunFolder, plan: StepPlan, first_step: int, forecast: Forecast
) -> OpeningFacts:
    """Return what is known before step 1."""
    groups = machine.groups
    device, summary = forecast.device, forecast.summary
    return OpeningFacts(
        run_dir=folder.path,
        model=config.model.name or config.model.factory or config.model.path or type(machine.module).__name__,
        param_groups=summary.groups,
        num_params=summary.num_params,
        flops_per_token=summary.flops_per_token,
        flops_formula=summary.formula,
        seq_len=config.data.seq_len,
        global_batch_seqs=plan.global_batch_seqs,
        microbatch_seqs=config.train.microbatch_seqs or plan.global_batch_seqs,
        max_steps=plan.max_steps,
        first_step=first_step,
        device=device.name,
        device_memory_bytes=device.memory_bytes,
        precision=machine.precision.policy,
        precision_reason=machine.reason,
        optimizer="AdamW",
        optimizer_groups={
            say(f"job.group_{group.name}", decay=group.weight_decay): group.num_params for group in groups
        },
        memory_parts=forecast.memory.named_parts(),
        peak_flops_per_s=forecast.peak_flops_per_s,
        peak_source=_peak_source(config, device=device),
        step_s=forecast.step_s,
        step_s_basis=forecast.step_s_basis,
    )


def _peak_source(config: RunConfig, *, device: DeviceFacts) -> str:
    if config.observe.peak_flops_per_s:
        return ""
    return say("job.peak_measured") if device.peak_source == "measured" else device.peak_source


def closing_facts(
    result: FitResult,
    *,
    folder: RunFolder,
    totals: Totals,
    forecast: Forecast,
    machine: Machine,
    duration_s: float,
    checkpoint: Path | None,
    options: RunOptions,
    train: TrainSection,
) -> ClosingFacts:
    """Return what is known after the last step of this attempt."""
    return ClosingFacts(
        run_dir=folder.path,
        outcome="stopped" if result.status == "interrupted" else result.status,
        step=result.step,
        max_steps=result.max_steps,
        duration_s=duration_s,
        tokens=totals.tokens,
        last_loss=totals.last.loss if totals.last else None,
        best_eval_loss=result.best_loss,
        best_eval_step=result.best_step,
        num_skipped=totals.last.num_skipped if totals.last else 0,
        checkpoint=checkpoint,
        plot=folder.plot_path if folder.plot_path.exists() else None,
        prompt=train.sample_prompts[0] if train.sample_prompts else "",
        predicted_memory_bytes=forecast.memory.total_bytes if forecast.memory.is_whole else None,
        measured_memory_bytes=peak_memory_bytes(machine.device) if totals.last else None,
        predicted_step_s=forecast.step_s,
        measured_step_s=totals.median_step_s,
        resume_command=options.go_on_command,
        extend_command=options.extend_command(train),
        can_be_loaded=options.command is not None,
        sent_bytes=totals.sent_bytes,
        crossing_bytes=totals.typical(lambda report: report.crossing_bytes),
        communication_s=totals.typical(lambda report: report.communication_s),
        exposed_s=totals.typical(lambda report: report.exposed_s),
    )


def _step_time(
    machine: Machine, *, plan: StepPlan, summary: ModelSummary, peak_flops_per_s: float | None
) -> tuple[float | None, str]:
    """Return a step's time and its basis: the trial that chose the precision, else the device's peak."""
    figures = machine.decision.figures if machine.decision else {}
    trial_s, trial_tokens = figures.get(f"{machine.precision.policy}_s"), figures.get("trial_tokens")
    if trial_s and trial_tokens:
        return trial_s * plan.step_tokens / trial_tokens, say("job.time_tried")
    step_flops = summary.flops_per_token * plan.step_tokens
    if peak_flops_per_s is None or not step_flops:
        return None, ""
    step_s = estimate_step_s(step_flops=step_flops, peak_flops_per_s=peak_flops_per_s)
    return step_s, say("job.time_assumed", mfu=f"{ASSUMED_MFU:.0%}")


def _memory(machine: Machine, *, config: RunConfig, program_bytes: int) -> MemoryEstimate:
    """Return the estimated peak; that of a module that is no reference decoder lacks its activations."""
    on_host = measures_whole_process(machine.device)
    held = _held(machine, program_bytes=program_bytes)
    policy = machine.precision.policy
    if not isinstance(machine.module, Decoder):
        return estimate_state_memory(_num_trained(machine.module), policy=policy, program_bytes=held)
    train = config.train
    microbatch_seqs = train.microbatch_seqs or train.global_batch_seqs
    return estimate_memory(
        machine.module.shape,
        policy=policy,
        microbatch_seqs=microbatch_seqs,
        seq_len=config.data.seq_len,
        microbatches_per_step=-(-train.global_batch_seqs // microbatch_seqs),
        kernels="host" if on_host else "device",
        program_bytes=held,
    )


def _held(machine: Machine, *, program_bytes: int) -> int:
    """Return what is measured beside the run's tensors."""
    return program_bytes if measures_whole_process(machine.device) else 0


def _planned_time(plan: Plan | None) -> tuple[float | None, str]:
    """Return the step's time that a plan predicts, with its interval."""
    time = None if plan is None else plan.predicted("step_s")
    if time is None:
        return None, ""
    return time.value, say("job.time_planned", low=format_step_time(time.low), high=format_step_time(time.high))


def _snapshot_bytes(module: nn.Module) -> int:
    """Return the size of the copy that a checkpoint is made of: weights, and AdamW's two moments of the trained."""
    return sum(each.numel() * each.itemsize * (3 if each.requires_grad else 1) for each in module.parameters())


def _planned_memory(plan: Plan | None, *, program_bytes: int) -> MemoryEstimate:
    """Return the peak that a plan predicts for its first stage, which holds the rank that measures."""
    allocated = None if plan is None else plan.predicted("allocated_bytes.pp_0")
    if allocated is None:
        return MemoryEstimate(moment="update", parts={})
    return MemoryEstimate(moment="loss", parts={"planned": int(allocated.value), "program": program_bytes})


def _num_trained(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
