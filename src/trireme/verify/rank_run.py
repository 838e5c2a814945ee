"""What each rank does: build, train the same steps on its part of the batches, and report."""

from __future__ import annotations

import importlib
import os
import pickle
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.errors import TriremeError
from trireme.plan import Layout
from trireme.verify.batch import part_of
from trireme.verify.candidate import Candidate, CandidateFactory
from trireme.verify.fault import find_fault
from trireme.verify.reference import Recipe
from trireme.verify.stand import Stand
from trireme.verify.subject import Source, Subject
from trireme.verify.trace import StepTrace, Trace, copy_tensor, held_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """The batches of a run: ``(seqs, seq_len)`` of each step's global batch, and the seed of the first."""

    per_step: tuple[tuple[int, int], ...]
    seed: int

    def batches(self, subject: Subject) -> list[Mapping[str, Any]]:
        """Make the global batches; the same on every rank."""
        return [
            subject.make_batch(self.seed + number, seqs, seq_len)
            for number, (seqs, seq_len) in enumerate(self.per_step)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """Everything a rank must know; it pickles."""

    source: Source
    layout: Layout
    shapes: Shapes
    recipe: Recipe
    factory: str
    fault: str | None
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What a rank reports; the trace is in rank 0's file."""

    held_elements: int
    path: str
    notices: tuple[str, ...]
    has_bitten: bool


def run_rank(*, task: RankTask) -> RankResult:
    """Run the steps on this rank; what goes wrong is left in a file, so that it can be told in a line."""
    rank = dist.get_rank()
    try:
        return _run(task, rank)
    except BaseException as error:
        _leave(task.folder, rank, error)
        raise


def _run(task: RankTask, rank: int) -> RankResult:
    os.dup2(2, 1)  # what a user's module prints must not stand in the middle of a report
    stand = _stand(task, rank)
    fault = find_fault(task.fault) if task.fault else None
    with fault.injected(stand) if fault else nullcontext():
        build = _factory(task.factory)
        candidate = build(stand.subject, task.layout, example=stand.batches[0], recipe=stand.recipe)
        trace = _train(candidate, stand.batches)
    if rank == 0:
        torch.save(trace_state(trace), task.folder / "trace.pt")
    held = held_elements(candidate.local_parameters())
    return RankResult(held_elements=held, path=candidate.path, notices=candidate.notices, has_bitten=stand.has_bitten)


def _stand(task: RankTask, rank: int) -> Stand:
    subject = task.source.load()
    whole = task.shapes.batches(subject)
    return Stand(
        subject=subject,
        global_batches=whole,
        batches=[part_of(batch, task.layout, rank=rank) for batch in whole],
        recipe=task.recipe,
        layout=task.layout,
        rank=rank,
    )


def _train(candidate: Candidate, batches: list[dict[str, Any]]) -> Trace:
    steps = []
    for batch in batches:
        loss = candidate.train_step(batch)
        gradients, norm = _copied(candidate.gradients()), candidate.grad_norm()
        steps.append(StepTrace(loss=loss, grad_norm=norm, gradients=gradients))
        candidate.step()
    return Trace(steps=tuple(steps), parameters=_copied(candidate.parameters()))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: copy_tensor(tensor) for name, tensor in tensors.items()}


def _factory(name: str) -> CandidateFactory:
    module, _, function = name.partition(":")
    found: CandidateFactory = getattr(importlib.import_module(module), function)
    return found


def trace_state(trace: Trace) -> dict[str, Any]:
    """Give a trace as plain values, to be saved."""
    steps = [{"loss": s.loss, "grad_norm": s.grad_norm, "gradients": dict(s.gradients)} for s in trace.steps]
    return {"steps": steps, "parameters": dict(trace.parameters)}


def load_trace(path: Path) -> Trace:
    """Read what rank 0 saved."""
    state = torch.load(path, weights_only=True)
    return Trace(steps=tuple(StepTrace(**step) for step in state["steps"]), parameters=state["parameters"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftError:
    """What ended a rank: the error itself if it is one for the user, else its kind and first line."""

    rank: int
    at_s: float
    mistake: TriremeError | None
    text: str
    place: str


def _leave(folder: Path, rank: int, error: BaseException) -> None:
    mistake = error if isinstance(error, TriremeError) else None
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    left = LeftError(
        rank=rank,
        at_s=time.time(),
        mistake=mistake,
        text=f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": "),
        place=f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "",
    )
    # A folder that the parent has already given up is no reason for another traceback.
    if folder.is_dir():
        (folder / f"error-{rank}.pickle").write_bytes(pickle.dumps(left))


def left_errors(folder: Path) -> list[LeftError]:
    """Give what ended ranks, the earliest first."""
    found = [pickle.loads(path.read_bytes()) for path in folder.glob("error-*.pickle")]
    return sorted(found, key=lambda left: left.at_s)
