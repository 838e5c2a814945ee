"""From settings to the pieces of a run: data, module, precision, optimizer, schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from trireme.config import CommunicationSection, RunConfig
from trireme.data import Batch, PreparedData
from trireme.errors import LayoutError, ModelError
from trireme.job.initial import init_weights
from trireme.job.layout import Arrangement
from trireme.job.logits import choose_logits
from trireme.job.offload import build_activations, build_home, tell_cost
from trireme.job.options import RunOptions
from trireme.job.reading import DataShare, Reading
from trireme.job.sample import build_sampler
from trireme.job.spreading import Outputs, spread_module
from trireme.job.team import Team
from trireme.mesh import choose_device, set_threads
from trireme.models import build_model, call_model, check_isolation, keep_freed_memory, module_device
from trireme.observe import RunFolder
from trireme.parallel import ParallelModel
from trireme.train import (
    Callback,
    Decision,
    Objective,
    OneDevice,
    ParamGroup,
    Pieces,
    Policy,
    Precision,
    RanksEngine,
    Schedule,
    Snapshot,
    Stepper,
    StepPlan,
    apply_compile,
    apply_precision,
    build_cadence,
    build_objective,
    build_optimizer,
    build_precision,
    check_compile,
    choose_compile,
    choose_precision,
    decision_from_json,
    evaluating,
    group_parameters,
    place_state,
)
from trireme.words import say

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A module on its device with the number formats chosen for it; ``groups`` are those of the whole module."""

    module: nn.Module
    device: torch.device
    precision: Precision
    decision: Decision | None
    objective: Objective
    groups: tuple[ParamGroup, ...]

    @property
    def reason(self) -> str:
        """Why this precision, in the user's language; empty where it was asked for."""
        return "" if self.decision is None else say(f"job.precision_{self.decision.reason}", **_gain(self.decision))


def build_machine(
    config: RunConfig,
    *,
    data: PreparedData,
    folder: RunFolder,
    module: nn.Module | None,
    objective: Objective | None,
    initial: bool,
    arrangement: Arrangement,
    team: Team,
    notice: Notice,
) -> Machine:
    """Build the module, check that it suits the data, and put it on the device in its number format.

    ``initial``: the run begins here, so its first weights matter.
    """
    keep_freed_memory()
    set_threads(config.train.num_threads)
    device = choose_device()
    vocab_size = data.tokenizer.vocab_size
    if module is None:
        module = build_model(
            config.model, vocab_size=vocab_size, seq_len=config.data.seq_len, seed=config.run.seed, notice=notice
        )
    if initial and config.model.init_from is not None:
        init_weights(module, Path(config.model.init_from), notice=notice)
    module = module.to(device)
    batch = data.train.read(0, global_batch_seqs=config.train.global_batch_seqs)
    if objective is None:
        objective = build_objective()
        _check_module(module, config=config, vocab_size=vocab_size)
    objective = choose_logits(
        objective, module=module, batch=batch, layout=arrangement.layout, section=config.train, notice=notice
    )
    policy, decision = _choose_policy(
        module, batch, config=config, folder=folder, objective=objective, device=device, team=team
    )
    precision = build_precision(policy, device=device, section=config.precision, notice=notice)
    apply_precision(module, precision=precision)
    return Machine(
        module=module,
        device=device,
        precision=precision,
        decision=decision,
        objective=objective,
        groups=group_parameters(module, weight_decay=config.train.weight_decay),
    )


def build_pieces(
    machine: Machine,
    *,
    config: RunConfig,
    data: PreparedData,
    plan: StepPlan,
    schedule: Schedule,
    save: Callable[[Snapshot], object],
    settle: Callable[[bool], Sequence[int]] | None = None,
    save_interval: Callable[[], int | None] = lambda: None,
    callbacks: tuple[Callback, ...],
    flops_per_token: float,
    peak_flops_per_s: float | None,
    options: RunOptions,
    run_dir: Path,
    arrangement: Arrangement,
    left_out: frozenset[int],
    notice: Notice,
) -> Pieces:
    """Put together what ``fit`` runs."""
    train, stream, held_out = config.train, data.train, data.evaluation
    batch_seqs = train.global_batch_seqs
    parallel = _spread(machine, arrangement=arrangement, data=data, config=config, notice=notice)
    reading = Reading(data, config=config, plan=plan, share=DataShare.of(parallel))
    writer = machine.module if parallel is None else Outputs(parallel)
    return Pieces(
        stepper=_build_stepper(machine, config=config, parallel=parallel, run_dir=run_dir, notice=notice),
        plan=plan,
        schedule=schedule,
        cadence=build_cadence(train, config.checkpoint, max_steps=plan.max_steps, has_evaluation=held_out is not None),
        seed=config.run.seed,
        open_loader=reading.open_loader,
        samples_per_epoch=stream.num_samples,
        eval_batches=reading.eval_batches if held_out is not None else None,
        sample=build_sampler(writer, tokenizer=data.tokenizer, config=config, run_dir=run_dir),
        save=save,
        settle=settle,
        save_interval=save_interval,
        data_state=lambda step: stream.state(step, global_batch_seqs=batch_seqs),
        check_data_state=lambda state: stream.check_state(state, global_batch_seqs=batch_seqs),
        callbacks=callbacks,
        settings=config,
        flops_per_token=flops_per_token,
        peak_flops_per_s=None if peak_flops_per_s is None else peak_flops_per_s * arrangement.layout.world_size,
        allow_missing=options.allow_missing,
        left_out=left_out,
        replica_check_every_steps=train.replica_check_every_steps,
    )


def _spread(
    machine: Machine, *, arrangement: Arrangement, data: PreparedData, config: RunConfig, notice: Notice
) -> ParallelModel | None:
    """Spread the module over the ranks of the layout; None where one device does everything as written."""
    on_host = config.offload.parameters == "host"
    if on_host and arrangement.layout.zero < 3:
        raise LayoutError("parallel.parameters_need_zero3", layout=arrangement.layout)
    if not arrangement.needs_ranks:
        if config.communication != CommunicationSection():
            notice(say("wire.one_device"))
        return None
    batch = data.train.read(0, global_batch_seqs=config.train.global_batch_seqs)
    return spread_module(
        machine.module,
        batch,
        arrangement=arrangement,
        objective=machine.objective,
        seed=config.run.seed,
        communication=config.communication,
        compiled="block" if config.train.compile == "on" else "none",
        parameters_on_host=on_host,
        notice=notice,
    )


def _build_stepper(
    machine: Machine, *, config: RunConfig, parallel: ParallelModel | None, run_dir: Path, notice: Notice
) -> Stepper:
    train, offload = config.train, config.offload
    objective = machine.objective
    optimizer = place_state(
        build_optimizer(machine.module, train),
        module=machine.module,
        precision=machine.precision,
        home=build_home(offload, device=machine.device, run_dir=run_dir),
        seed=config.run.seed,
        pieces=None if parallel is None else parallel.pieces,
    )
    tell_cost(optimizer, notice=notice)
    return Stepper(
        machine.module,
        optimizer,
        activations=build_activations(offload, module=machine.module, device=machine.device),
        loss_fn=objective.loss_fn,
        count_fn=objective.count_fn,
        loss_reduction=objective.loss_reduction,
        auxiliary=objective.auxiliary,
        call=objective.call,
        precision=machine.precision,
        clip_grad_norm=train.clip_grad_norm,
        microbatch_seqs=train.microbatch_seqs,
        on_nonfinite=train.on_nonfinite,
        max_nonfinite=train.max_nonfinite,
        on_spike=train.on_spike,
        spike_sigmas=train.spike_sigmas,
        engine=OneDevice(seed=config.run.seed) if parallel is None else RanksEngine(parallel),
    )


def compile_module(
    machine: Machine,
    *,
    config: RunConfig,
    data: PreparedData,
    folder: RunFolder,
    max_steps: int,
    arrangement: Arrangement,
    notice: Notice,
) -> None:
    """Compile the module's blocks if the settings, or what was measured once in this run folder, say so.

    Under a layout they are compiled as the module is spread.
    """
    train = config.train
    if train.compile == "off":
        return
    if arrangement.needs_ranks:
        if train.compile == "auto":
            notice(say("job.compile_auto_layout", layout=arrangement.layout))
        return
    batch = data.train.read(0, global_batch_seqs=train.global_batch_seqs)
    objective, precision = machine.objective, machine.precision
    if train.compile == "on":
        apply_compile(machine.module)
        check_compile(machine.module, batch, objective=objective, precision=precision)
        return
    microbatches = -(-train.global_batch_seqs // (train.microbatch_seqs or train.global_batch_seqs))
    saved = folder.decide(
        "compile",
        lambda: choose_compile(
            machine.module,
            batch,
            objective=objective,
            precision=precision,
            planned_microbatches=microbatches * max_steps,
        ).to_json(),
    )
    decision = decision_from_json(saved)
    notice(say("job.compile_decided", choice=decision.choice, reason=say(f"job.compile_{decision.reason}")))
    if decision.choice == "on":
        apply_compile(machine.module)


def _check_module(module: nn.Module, *, config: RunConfig, vocab_size: int) -> None:
    """Find out before step 1 what would be learned wrongly: tokens without a logit, documents that see each other.

    Raises:
        ModelError: The module is too small for the tokenizer, or can't keep packed documents apart.
    """
    last_id = torch.full((1, 2), vocab_size - 1, device=module_device(module))
    try:
        with evaluating(module):
            num_logits = call_model(module, {"input_ids": last_id}).shape[-1]
    except IndexError:
        num_logits = 0  # an embedding without a row for the last token
    if num_logits < vocab_size:
        raise ModelError("job.vocab_too_small", vocab_size=vocab_size, num_logits=num_logits)
    if config.data.packing == "isolate":
        check_isolation(module, vocab_size=vocab_size)


def _choose_policy(
    module: nn.Module,
    batch: Batch,
    *,
    config: RunConfig,
    folder: RunFolder,
    objective: Objective,
    device: torch.device,
    team: Team,
) -> tuple[Policy, Decision | None]:
    policy = config.precision.policy
    if policy != "auto":
        return policy, None
    saved = team.from_lead(
        lambda: folder.decide(
            "precision", lambda: choose_precision(module, batch, objective=objective, device=device).to_json()
        )
    )
    decision = decision_from_json(saved)
    return cast(Policy, decision.choice), decision


def _gain(decision: Decision) -> dict[str, str]:
    gain = decision.figures.get("gain_ratio")
    return {"gain": f"{gain:.2f}"} if gain is not None else {}
