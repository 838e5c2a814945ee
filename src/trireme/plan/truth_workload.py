"""From a row of a table of runs to the workload that it describes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trireme.errors import ConfigError, LayoutError
from trireme.plan.plan_cut import balance_cuts
from trireme.plan.truth_cluster import cluster_of
from trireme.plan.truth_fit import fitted, with_cheap_recompute
from trireme.plan.truth_layout import (
    degrees_of,
    framework_of,
    kernels_of,
    layout_of,
    precision_of,
    schedule_of,
)
from trireme.plan.truth_model import ASSUMED_VOCAB, model_of
from trireme.plan.truth_row import Row, Unreadable
from trireme.plan.workload import Workload

_DROPOUT = 0.1
"""Megatron's default while it kept score matrices; masks of dropout are kept too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published run.

    ``workload`` is what its time is predicted for, ``held`` what its memory is. They differ where a row doesn't say
    what is recomputed: then as many layers give up what they keep as it takes to fit, and the time is that of
    repeating what is cheap of them, as tuned runs do.
    ``is_layers_only``: its time is that of the layers alone, without head, update and host.
    ``assumed`` is what the row leaves open.
    """

    row: Row
    workload: Workload
    held: Workload
    is_layers_only: bool
    assumed: tuple[str, ...]

    @property
    def step_s(self) -> float | None:
        """The published time of a step."""
        return self.row.number("step_s")


def run_of(row: Row) -> Run:
    """Give the run that a row describes.

    Raises:
        Unreadable: It doesn't say enough, or says what can't be.
    """
    try:
        return _run_of(row)
    except (LayoutError, ConfigError) as error:
        raise Unreadable(str(error)) from None


def _run_of(row: Row) -> Run:
    if row.text("gpu").lower() in ("", "not stated", "unknown"):
        raise Unreadable("gpu is not given")
    cluster = cluster_of(row.text("gpu"), row.text("interconnect"), row.needed("gpu_count"))
    framework, schedule = framework_of(row), schedule_of(row)
    kernels = kernels_of(row, framework)
    model = model_of(row, dropout=_DROPOUT if kernels == "unflashed" else 0.0)
    degrees = degrees_of(row, schedule=schedule, num_layers=model.num_layers)
    layout = layout_of(row, degrees, schedule=schedule, framework=framework)
    assumed = list(degrees.assumed)
    if not row.text("vocab"):
        assumed.append(f"vocab {model.vocab_size}" if model.vocab_size == ASSUMED_VOCAB else "the named model's vocab")
    workload = Workload(
        model=model,
        cluster=cluster,
        layout=layout,
        precision=precision_of(row),
        global_batch_seqs=degrees.global_batch_seqs,
        seq_len=row.needed("seq_len"),
        kernels=kernels,
        framework=framework,
        adapters_only=row.text("task").lower() == "lora",
    )
    if "redis" in row.text("schedule"):
        workload = replace(workload, cuts=_balanced(workload))
    held = workload
    if not row.text("recompute"):
        held, share = fitted(workload)
        assumed += [f"{share:.0%} of the layers recomputed, so that it fits"] if share else []
        workload = with_cheap_recompute(held)
    is_layers_only = "not a whole step" in row.text("notes")
    return Run(row=row, workload=workload, held=held, is_layers_only=is_layers_only, assumed=tuple(assumed))


def _balanced(workload: Workload) -> tuple[int, ...]:
    """Cuts that count the head for as many layers as it has products."""
    from trireme.graph import count_model_flops

    flops = count_model_flops(workload.model, workload.microbatch)
    num_layers = workload.model.num_layers
    load = workload.model.load(workload.model.stacks[-1], workload.microbatch)
    head = workload.model.head.flops(load, count="causal")
    layer = (flops.forward - head) / num_layers
    costs = [layer] * (num_layers - 1) + [layer + head]
    return balance_cuts(costs, num_stages=workload.layout.num_stages)
