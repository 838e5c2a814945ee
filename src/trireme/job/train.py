"""One attempt at a run, from settings to the closing report."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from torch import nn

from trireme.checkpoint import (
    Checkpoint,
    check_place,
    check_resumable,
    check_slices,
    fetch_newest,
    list_checkpoints,
    newest_checkpoint,
    open_checkpoint,
)
from trireme.config import Loaded, RunConfig, load_config
from trireme.data import DataReport, PreparedData, format_report, prepare_data
from trireme.errors import CheckpointError, ConfigError, Rollback
from trireme.job.build import Machine, build_machine, build_pieces, compile_module
from trireme.job.changes import RATE, check_changes, find_changes
from trireme.job.facts import Forecast, Totals, build_forecast, closing_facts, opening_facts
from trireme.job.follower import FollowerFolder
from trireme.job.initial import check_init_from
from trireme.job.layout import Arrangement, arrange, is_open, resolve_layout
from trireme.job.left_out import leave_out, read_left_out
from trireme.job.options import RunOptions, run_dir_of
from trireme.job.place import find_place
from trireme.job.planning import check_model, choose_recompute, decide_plan
from trireme.job.provenance import is_own_config, origins_of
from trireme.job.saving import Saver
from trireme.job.team import Team
from trireme.mesh import LaunchEnvironment, choose_device, joined_ranks, program_memory_bytes, reset_peak_memory
from trireme.observe import (
    Console,
    Event,
    LossPlot,
    Observer,
    ObserverGroup,
    Recorder,
    RunFolder,
    RunState,
    Screen,
    WorkProgress,
    closing_report,
    environment,
    opening_report,
)
from trireme.plan import format_plan
from trireme.supervise import beat
from trireme.train import (
    Callback,
    FitResult,
    Objective,
    Schedule,
    Snapshot,
    StepPlan,
    Training,
    build_schedule,
    plan_steps,
    resume_schedule,
    schedule_from_json,
    state_tensors,
)
from trireme.words import say

_WIDTH_OF_LOGS = 140
"""Columns of a report that goes to a file; a terminal says its own."""


def run_training(
    loaded: Loaded,
    *,
    options: RunOptions,
    module: nn.Module | None = None,
    objective: Objective | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
) -> FitResult:
    """Train as the settings say and return how it ended.

    Args:
        loaded: Settings.
        options: Start or go on.
        module: Trained instead of what ``model`` names.
        objective: Its loss; default: next-token cross-entropy.
        callbacks: Told about moments of the run.
        observers: Told about its numbers, beside console, logs and plot.

    Raises:
        TriremeError: Whatever a person can mend; nothing is lost by it.
    """
    launch = LaunchEnvironment.from_environ()
    notices: list[str] = []
    arrangement = resolve_layout(loaded.config, ranks=launch.world_size, notice=notices.append)
    path = run_dir_of(asked=loaded.config.run.dir, recipe=loaded.path)
    if options.overwrite:
        check_init_from(loaded.config.model.init_from, run_dir=path)
    with ExitStack() as stack:
        if arrangement.needs_ranks or is_open(loaded.config.layout):
            stack.enter_context(joined_ranks(launch, device=choose_device()))
        beat("preparing")
        team = Team(rank=launch.rank, size=launch.world_size)
        team.check_alike(loaded.to_yaml())
        while True:
            try:
                with (
                    closing(_open_console(loaded, team=team)) as console,
                    _open_folder(path, options=options, team=team) as folder,
                ):
                    attempt = _Attempt(
                        loaded, folder=folder, options=options, console=console, team=team, arrangement=arrangement
                    )
                    for text in notices:
                        attempt.note(text)
                    return attempt.run(module=module, objective=objective, callbacks=callbacks, observers=observers)
            except Rollback as error:
                if module is not None:
                    raise  # a program's own object can't be made anew, so its state can't go back
                find = partial(leave_out, error, folder=path, section=loaded.config.train)
                notices = [team.from_lead(find)]
                options = replace(options, resume=True, overwrite=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """Where the run starts and where it goes."""

    plan: StepPlan
    schedule: Schedule
    checkpoint: Checkpoint | None

    @property
    def first_step(self) -> int:
        """Steps done before this attempt."""
        return self.checkpoint.step if self.checkpoint else 0

    @property
    def is_over(self) -> bool:
        """Whether the run made all its steps before this attempt."""
        return self.first_step >= self.plan.max_steps


class _Attempt:
    """What the phases of one attempt share."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        folder: RunFolder,
        options: RunOptions,
        console: Console,
        team: Team,
        arrangement: Arrangement,
    ) -> None:
        self.loaded = loaded
        self.team = team
        self.arrangement = arrangement
        self.config: RunConfig = loaded.config
        self.folder = folder
        self.options = options
        self.console = console
        self.noted: list[Event] = []
        self.saver: Saver | None = None
        self.started_s = time.monotonic()

    def run(
        self,
        *,
        module: nn.Module | None,
        objective: Objective | None,
        callbacks: Sequence[Callback],
        observers: Sequence[Observer],
    ) -> FitResult:
        """Prepare, report, train, report. Up to ``settle`` the folder's record stays as it was."""
        for text in self.loaded.notices:
            self.note(text)
        new_rates = self.team.from_lead(self.check_settings)
        self.team.from_lead(self.check_copies)
        data = self.team.lead_first(self.read_data)
        self.arrangement = self.team.from_lead(lambda: self.settle_layout(data, module=module))
        course = self.plot_course(data, new_rates=new_rates)
        report = data.report_for_run(num_steps=course.plan.max_steps, global_batch_seqs=course.plan.global_batch_seqs)
        if not course.is_over:
            self.show_data(report)
        program_bytes = program_memory_bytes()
        machine = self.build(data, course=course, module=module, objective=objective)
        forecast = build_forecast(
            machine, config=self.config, plan=course.plan, program_bytes=program_bytes, arrangement=self.arrangement
        )
        training = self.assemble(machine, data=data, course=course, forecast=forecast, callbacks=callbacks)
        training.start(course.checkpoint)  # the last that may refuse
        totals = Totals()
        if training.done:
            result = training.run()
        else:
            self.settle(course, data=data, report=report)
            self.show_opening(machine, course=course, forecast=forecast)
            result = self.train(training, machine=machine, observers=(totals, *observers))
        self.show_closing(result, course=course, machine=machine, forecast=forecast, totals=totals)
        return result

    def read_data(self) -> PreparedData:
        """Tokenise and pack what is to be read, or find it in the cache."""
        return prepare_data(
            self.config.data, seed=self.config.run.seed, progress=WorkProgress(self.console.screen), notice=self.note
        )

    def settle_layout(self, data: PreparedData, *, module: nn.Module | None) -> Arrangement:
        """Search for a layout where that is asked, and hold a plan against the model that it is to run.

        ``module`` is there where it comes from a program.
        """
        arrangement, config = self.arrangement, self.config
        vocab_size = data.tokenizer.vocab_size
        if is_open(config.layout):
            place = find_place(LaunchEnvironment.from_environ())
            plan = decide_plan(
                config, vocab_size=vocab_size, place=place, folder=self.folder, notice=self.note, module=module
            )
            return arrange(plan)
        if arrangement.fits_memory and arrangement.plan is None:
            place = find_place(LaunchEnvironment.from_environ())
            kinds = choose_recompute(
                config,
                layout=arrangement.layout,
                vocab_size=vocab_size,
                place=place,
                notice=self.note,
                module=module,
            )
            return replace(arrangement, recompute=kinds)
        if arrangement.plan is None:
            return arrangement
        cluster = find_place(LaunchEnvironment.from_environ()).cluster
        check_model(
            arrangement.plan,
            config=config,
            vocab_size=vocab_size,
            cluster=cluster,
            notice=self.warn,
            module=module,
        )
        return arrangement

    def check_copies(self) -> None:
        """Find out now, not at the first save, whether copies of checkpoints can go where they are to go.

        Raises:
            CheckpointError: They can't.
        """
        if (place := self.config.checkpoint.copy_to) is not None:
            check_place(place, root=self.folder.checkpoint_dir)

    def check_settings(self) -> bool:
        """Compare a resume's settings with the run's own; returns whether new learning rates are accepted.

        Raises:
            ConfigError: Something else than was asked for would be trained.
        """
        if not self.options.resume or not self.folder.config_path.exists():  # or killed before it settled
            return False
        old = load_config(self.folder.config_path, purpose="show").config
        changes = find_changes(old, self.config)
        check_changes(changes, accept=self.options.accept)
        for change in changes:
            self.note(say(f"job.change_{change.kind}", change=change))
        return bool(self.options.accept & RATE)

    def plot_course(self, data: PreparedData, *, new_rates: bool) -> _Course:
        """Say how long the run is, which learning rates it has, and what it goes on from."""
        plan = plan_steps(self.config.train, seq_len=data.train.seq_len, samples_per_epoch=data.train.num_samples)
        schedule = build_schedule(self.config.train, plan=plan, notice=self.note)
        checkpoint = self.agree_on_checkpoint() if self.options.resume else None
        if checkpoint is None:
            return _Course(plan=plan, schedule=schedule, checkpoint=None)
        check_resumable(checkpoint)
        if checkpoint.step > plan.max_steps:
            raise ConfigError("job.shorter", step=checkpoint.step, max_steps=plan.max_steps)
        schedule = resume_schedule(
            schedule_from_json(checkpoint.state["schedule"]),
            asked=schedule,
            step=checkpoint.step,
            extend=self.options.extend,
            new_lr=new_rates,
        )
        return _Course(plan=plan, schedule=schedule, checkpoint=checkpoint)

    def agree_on_checkpoint(self) -> Checkpoint | None:
        """Return the one checkpoint that all ranks go on from: the newest that all of them together found good."""
        if self.team.size == 1:
            return self.find_checkpoint()
        passed: list[Path] = []
        while True:
            path = self.team.from_lead(lambda: _path_of(self.find_checkpoint(verify=False, passed=passed)))
            if path is None:
                return None
            checkpoint, problem = self.check_share(path)
            problems = [each for each in self.team.everyone(problem) if each is not None]
            if checkpoint is not None and not problems:
                return replace(checkpoint, verified=True)
            self.warn(say("checkpoint.skipped", path=path, reason=problems[0]))
            passed.append(path)

    def check_share(self, path: Path) -> tuple[Checkpoint | None, str | None]:
        """Hash this rank's share of a checkpoint; returns it, or what is wrong with it."""
        try:
            checkpoint = open_checkpoint(path, verify=False, notice=self.warn if self.team.leads else _unheard)
            check_slices(checkpoint, part=self.team.rank, num_parts=self.team.size)
        except CheckpointError as error:
            return None, str(error)
        return checkpoint, None

    def find_checkpoint(self, *, verify: bool = True, passed: Sequence[Path] = ()) -> Checkpoint | None:
        """Return what to go on from; None if the run was stopped before its first checkpoint.

        Raises:
            CheckpointError: There are checkpoints, and none can be used: beginning anew is not for us to choose.
        """
        root, run_id = self.folder.checkpoint_dir, self.folder.state.run_id
        checkpoint = newest_checkpoint(root, run_id=run_id, verify=verify, passed=passed, notice=self.warn)
        place = self.config.checkpoint.copy_to
        if checkpoint is None and place is not None and not passed:
            checkpoint = fetch_newest(place, root, run_id=run_id, notice=self.warn)
            if checkpoint is not None:
                self.warn(say("job.fetched", place=place, path=checkpoint.path))
        if checkpoint is not None:
            return checkpoint
        problems = [info.problem for info in list_checkpoints(root, verify=True, notice=self.warn) if info.problem]
        if problems:
            raise CheckpointError("job.no_good_checkpoint", path=root, problems="; ".join(problems))
        self.warn(say("job.resume_from_start", path=self.folder.path))
        return None

    def show_data(self, report: DataReport) -> None:
        """Show what will be read, and how often."""
        if self.config.observe.progress != "off":
            width = self.console.screen.width
            text = format_report(report, color=width is not None, width=width or _WIDTH_OF_LOGS)
            self.console.screen.write_styled(text)

    def build(
        self, data: PreparedData, *, course: _Course, module: nn.Module | None, objective: Objective | None
    ) -> Machine:
        """Build the module, compiled if the settings say so."""
        machine = build_machine(
            self.config,
            data=data,
            folder=self.folder,
            module=module,
            objective=objective,
            initial=course.checkpoint is None,
            arrangement=self.arrangement,
            team=self.team,
            notice=self.note,
        )
        compile_module(
            machine,
            config=self.config,
            data=data,
            folder=self.folder,
            max_steps=course.plan.max_steps,
            arrangement=self.arrangement,
            notice=self.note,
        )
        return machine

    def assemble(
        self,
        machine: Machine,
        *,
        data: PreparedData,
        course: _Course,
        forecast: Forecast,
        callbacks: Sequence[Callback],
    ) -> Training:
        """Put the pieces of the loop together."""
        pieces = build_pieces(
            machine,
            config=self.config,
            data=data,
            plan=course.plan,
            schedule=course.schedule,
            save=self.save,
            settle=self.settle_saves,
            save_interval=lambda: self.saver.interval() if self.saver is not None else None,
            callbacks=tuple(callbacks),
            flops_per_token=forecast.summary.flops_per_token,
            peak_flops_per_s=forecast.peak_flops_per_s,
            options=self.options,
            run_dir=self.folder.path,
            arrangement=self.arrangement,
            left_out=self.team.from_lead(lambda: read_left_out(self.folder.path).steps),
            notice=self.note,
        )
        return Training(pieces)

    def settle(self, course: _Course, *, data: PreparedData, report: DataReport) -> None:
        """Write down what this attempt is, now that nothing can be refused any more."""
        folder = self.folder
        folder.begin()
        if self.options.resume:
            cut = folder.truncate_log(course.first_step)
            if cut.dropped:
                self.note(say("job.log_cut", step=course.first_step, dropped=cut.dropped))
        folder.write_text("config.yaml", self.loaded.to_yaml())
        folder.write_json("config_origins.json", origins_of(self.loaded, folder=folder))
        folder.write_json("environment.json", environment())
        folder.write_json("data_report.json", report.to_json())
        if self.arrangement.plan is not None:
            folder.write_text("plan.json", format_plan(self.arrangement.plan))
        data.tokenizer.save(folder.tokenizer_dir)
        folder.mark(status="running", step=course.first_step, max_steps=course.plan.max_steps)
        if self.team.leads:
            beat(settled=True)  # whoever starts this run again must go on with it from here

    def show_opening(self, machine: Machine, *, course: _Course, forecast: Forecast) -> None:
        """Say what the run will do."""
        facts = opening_facts(
            machine,
            config=self.config,
            folder=self.folder,
            plan=course.plan,
            first_step=course.first_step,
            forecast=forecast,
        )
        self.console.show(opening_report(facts))
        plan, precision = self.arrangement.plan, machine.precision.policy
        if plan is not None and plan.precision != precision:
            self.warn(say("job.plan_precision", planned=plan.precision, precision=precision))
        if self.arrangement.needs_ranks and plan is None:
            self.note(say("job.no_forecast", layout=self.arrangement.layout))
        elif not forecast.memory.is_whole:
            self.note(say("job.memory_least", kind=type(machine.module).__name__))

    def train(self, training: Training, *, machine: Machine, observers: Sequence[Observer]) -> FitResult:
        """Run the loop, watched on the rank that leads."""
        if not self.team.leads:
            with self.open_saver(training, machine=machine, notice=_ignore):
                return training.run()
        with closing(Recorder(self.folder, notice=self.console.on_event)) as recorder, ExitStack() as plots:
            for event in self.noted:
                recorder.on_event(event)
            notice = ObserverGroup([recorder, self.console]).on_event
            plots.enter_context(self.open_saver(training, machine=machine, notice=notice, recorder=recorder))
            watching: list[Observer] = [recorder, self.console, *observers]
            if self.config.observe.plot:
                watching.append(plots.enter_context(closing(LossPlot(self.folder, notice=notice))))
            reset_peak_memory(machine.device)
            return training.run(observers=watching)

    def open_saver(
        self,
        training: Training,
        *,
        machine: Machine,
        notice: Callable[[Event], None],
        recorder: Recorder | None = None,
    ) -> Saver:
        """Make what saves, on every rank, with its memory and its process ready before the first step."""
        self.saver = Saver(
            self.folder,
            section=self.config.checkpoint,
            team=self.team,
            layout=str(self.arrangement.layout),
            device=machine.device,
            notice=notice,
            recorder=recorder,
        )
        self.saver.warm(training.stepper.engine.state_pieces(state_tensors(training.stepper)))
        return self.saver

    def save(self, snapshot: Snapshot) -> bool:
        """Have a snapshot saved by all ranks; returns whether there will be a checkpoint."""
        assert self.saver is not None, "the loop saves only while it runs"
        return self.saver(snapshot)

    def settle_saves(self, wait: bool) -> tuple[int, ...]:
        """Hear which checkpoints became durable."""
        return self.saver.settle(wait=wait) if self.saver is not None else ()

    def show_closing(
        self, result: FitResult, *, course: _Course, machine: Machine, forecast: Forecast, totals: Totals
    ) -> None:
        """Say what came of it and what to type next; record it."""
        beat("ending")
        finished = result.status in ("finished", "already_finished")
        self.folder.mark(status="finished" if finished else "stopped", step=result.step)
        facts = closing_facts(
            result,
            folder=self.folder,
            totals=totals,
            forecast=forecast,
            machine=machine,
            duration_s=time.monotonic() - self.started_s,
            checkpoint=self._newest(course),
            options=self.options,
            train=self.config.train,
        )
        self.console.close()
        self.console.show(closing_report(facts))

    def _newest(self, course: _Course) -> Path | None:
        if self.saver is not None and self.saver.last is not None:
            return self.saver.last
        return course.checkpoint.path if course.checkpoint else None

    def note(self, text: str, *, level: Literal["info", "warning"] = "info") -> None:
        """Show something worth knowing, and keep it for the run's events."""
        event = Event(kind="note", text=text, level=level)
        self.noted.append(event)
        self.console.on_event(event)

    def warn(self, text: str) -> None:
        """Show something that went wrong and was made good."""
        self.note(text, level="warning")


def _path_of(checkpoint: Checkpoint | None) -> Path | None:
    return None if checkpoint is None else checkpoint.path


def _unheard(text: str) -> None:
    """Drop what the leading rank says."""


def _ignore(event: Event) -> None:
    """Drop what the leading rank says."""


def _is_default(loaded: Loaded, key: str) -> bool:
    """Whether nobody asked for the value: in a run's own settings every value is written down."""
    section, name = key.split(".")
    default = type(getattr(loaded.config, section)).model_fields[name].default
    origin = loaded.origins[key]
    own = loaded.path is not None and is_own_config(loaded.path) and origin.layer == "file"
    return origin.layer == "default" or (own and getattr(getattr(loaded.config, section), name) == default)


def _open_console(loaded: Loaded, *, team: Team) -> Console:
    """Show the run; other ranks than the leading one are silent."""
    observe = loaded.config.observe
    throttle = _is_default(loaded, "observe.every_steps")
    if not team.leads:
        return Console(progress="off", screen=Screen(io.StringIO(), mode="lines"))
    return Console(every_steps=observe.every_steps, throttle=throttle, progress=observe.progress)


def _open_folder(path: Path, *, options: RunOptions, team: Team) -> RunFolder:
    opened: list[RunFolder] = []

    def open_it() -> RunState:
        if options.resume:
            opened.append(RunFolder.open_resume(path))
        else:
            opened.append(RunFolder.open_fresh(path, overwrite=options.overwrite))
        return opened[0].state

    state = team.from_lead(open_it)
    return opened[0] if opened else FollowerFolder(path, state=state)
