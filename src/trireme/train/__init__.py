"""From a plain module and batches to a trained one: steps, schedules, number formats, loop, resume."""

from trireme.train.cadence import Cadence, build_cadence
from trireme.train.callback import Callback, CallbackState, Control
from trireme.train.compile import apply_compile, check_compile, choose_compile, eager, remove_compile
from trireme.train.compile_measure import CompileFigures, measure_compile
from trireme.train.engine import Engine, OneDevice, Passes
from trireme.train.evaluate import EvalResult, evaluate, evaluating
from trireme.train.loop import Training, fit
from trireme.train.measure import Decision, choose_precision, decision_from_json
from trireme.train.microbatch import host_tensors, share_rows, take_rows
from trireme.train.objective import Objective, call_module
from trireme.train.optim import ParamGroup, build_optimizer, group_parameters, place_state, set_lr
from trireme.train.pieces import FitResult, Pieces, Snapshot
from trireme.train.precision import Policy, Precision, apply_precision, build_precision
from trireme.train.ranks import RanksEngine
from trireme.train.replica import ReplicaProblem, compare_replicas
from trireme.train.rng import seed_run, seed_step
from trireme.train.scaler import LossScaler
from trireme.train.schedule import (
    Schedule,
    StepPlan,
    build_schedule,
    lr_at,
    plan_steps,
    resume_schedule,
    schedule_from_json,
)
from trireme.train.state import Progress, Restored, restore_state, state_json, state_tensors
from trireme.train.step import Stepper, build_objective
from trireme.train.step_result import StepResult

__all__ = [
    "Cadence",
    "Callback",
    "CallbackState",
    "CompileFigures",
    "Control",
    "Decision",
    "Engine",
    "EvalResult",
    "FitResult",
    "LossScaler",
    "Objective",
    "OneDevice",
    "ParamGroup",
    "Passes",
    "Pieces",
    "Policy",
    "Precision",
    "Progress",
    "RanksEngine",
    "ReplicaProblem",
    "Restored",
    "Schedule",
    "Snapshot",
    "StepPlan",
    "StepResult",
    "Stepper",
    "Training",
    "apply_compile",
    "apply_precision",
    "build_cadence",
    "build_objective",
    "build_optimizer",
    "build_precision",
    "build_schedule",
    "call_module",
    "check_compile",
    "choose_compile",
    "choose_precision",
    "compare_replicas",
    "decision_from_json",
    "eager",
    "evaluate",
    "evaluating",
    "fit",
    "group_parameters",
    "host_tensors",
    "lr_at",
    "measure_compile",
    "place_state",
    "plan_steps",
    "remove_compile",
    "restore_state",
    "resume_schedule",
    "schedule_from_json",
    "seed_run",
    "seed_step",
    "set_lr",
    "share_rows",
    "state_json",
    "state_tensors",
    "take_rows",
]
