"""A run's plan: found for the machine at hand, or made before and held against the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from trireme import __version__
from trireme.config import RunConfig
from trireme.errors import LayoutError
from trireme.graph import ModelGraph, graph_of_section
from trireme.job.graph import graph_of_module, graph_of_run
from trireme.observe import format_step_time
from trireme.plan import (
    Found,
    LayerRecompute,
    Layout,
    Plan,
    PrecisionName,
    Problem,
    check_plan_matches,
    fit_recompute,
    format_plan,
    hash_cluster,
    hash_model,
    layer_paths,
    make_plan,
    parse_plan,
    search,
)
from trireme.units import format_bytes
from trireme.words import say

if TYPE_CHECKING:
    from torch import nn

    from trireme.cluster import Cluster
    from trireme.observe import RunFolder

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a run stands on; ``cluster`` is None where no catalogue knows the device.

    ``precision`` is what to plan for where the settings leave it open.
    """

    device_name: str
    cluster: Cluster | None
    num_ranks: int
    precision: PrecisionName


def check_request(plan: Plan, *, config: RunConfig) -> None:
    """Refuse a plan of another version, batch or length than the run's.

    Raises:
        LayoutError: One differs; both values are named.
    """
    check_plan_matches(plan, model_hash=plan.model_hash, cluster_hash=plan.cluster_hash, version=__version__)
    asked = {
        "train.global_batch_seqs": (plan.global_batch_seqs, config.train.global_batch_seqs),
        "data.seq_len": (plan.seq_len, config.data.seq_len),
        "train.microbatch_seqs": (planned_microbatch_seqs(plan), config.train.microbatch_seqs),
    }
    for key, (planned, given) in asked.items():
        if given is not None and planned != given:
            raise LayoutError("job.plan_other_batch", key=key, planned=planned, given=given)


def planned_microbatch_seqs(plan: Plan) -> int:
    """Sequences of the largest micro-batch."""
    per_rank = -(-plan.global_batch_seqs // plan.layout.dp)
    return -(-per_rank // plan.layout.num_microbatches)


def _unheard(_text: str) -> None:
    pass


def _graph(config: RunConfig, *, vocab_size: int, module: nn.Module | None, notice: Notice) -> ModelGraph:
    """The model that is trained: ``module`` where a program has built it, else what the settings name."""
    if module is not None:
        return graph_of_module(module, seq_len=config.data.seq_len)
    return graph_of_run(config.model, vocab_size=vocab_size, seq_len=config.data.seq_len, notice=notice)


def check_model(
    plan: Plan,
    *,
    config: RunConfig,
    vocab_size: int,
    cluster: Cluster | None,
    notice: Notice,
    module: nn.Module | None = None,
) -> None:
    """Refuse a plan of another model; tell where it was made for another cluster, or for another vocabulary.

    Raises:
        LayoutError: The model is another one.
    """
    trained = _graph(config, vocab_size=vocab_size, module=module, notice=_unheard)
    named = trained if module or config.model.name is None else graph_of_section(config.model)
    here = hash_model(trained)
    if plan.model_hash != here and plan.model_hash == hash_model(named):
        notice(say("job.plan_vocab", planned=named.vocab_size, vocab_size=trained.vocab_size))
        here = plan.model_hash
    cluster_hash = plan.cluster_hash if cluster is None else hash_cluster(cluster)
    for text in check_plan_matches(plan, model_hash=here, cluster_hash=cluster_hash, version=__version__):
        notice(text)


def decide_plan(
    config: RunConfig,
    *,
    vocab_size: int,
    place: Place,
    folder: RunFolder,
    notice: Notice,
    module: nn.Module | None = None,
) -> Plan:
    """Find the fastest layout that fits the machine at hand, once for a run folder and a number of ranks; say it.

    Raises:
        LayoutError: No catalogue knows the device.
        ModelError: The model's forward can't be followed without values.
        Infeasible: Nothing fits.
    """
    fresh: list[Plan] = []

    def find() -> dict[str, Any]:
        graph = _graph(config, vocab_size=vocab_size, module=module, notice=notice)
        best, *others = search(_problem(config, graph=graph, place=place), top=2).plans
        fresh.append(make_plan(best, version=__version__))
        return {"plan": json.loads(format_plan(fresh[0])), "next": _next(others)}

    decided = folder.decide(f"layout_on_{place.num_ranks}", find)
    plan = parse_plan(json.dumps(decided["plan"]))
    notice(_announced(plan) if fresh else say("job.auto_again", layout=plan.layout))
    if decided["next"]:
        notice(say("job.auto_next", **decided["next"]))
    return plan


def _problem(config: RunConfig, *, graph: ModelGraph, place: Place) -> Problem:
    """Only what training can run: nothing is offloaded, and what the settings say of micro-batches holds."""
    if place.cluster is None:
        raise LayoutError("job.auto_device", device=place.device_name)
    policy, microbatch_seqs = config.precision.policy, config.train.microbatch_seqs
    return Problem(
        model=graph,
        cluster=place.cluster,
        global_batch_seqs=config.train.global_batch_seqs,
        seq_len=graph.fixed_seq_len or config.data.seq_len,
        precision=place.precision if policy == "auto" else cast(PrecisionName, policy),
        fix={} if microbatch_seqs is None else {"microbatch_seqs": microbatch_seqs},
    )


def choose_recompute(
    config: RunConfig,
    *,
    layout: Layout,
    vocab_size: int,
    place: Place,
    notice: Notice,
    module: nn.Module | None = None,
) -> Mapping[str, LayerRecompute]:
    """Say what each layer recomputes so that the run just fits; every layer is named, so that none is chosen for later.

    Raises:
        LayoutError: No catalogue knows the device.
        ModelError: The model's forward can't be followed without values.
    """
    graph = _graph(config, vocab_size=vocab_size, module=module, notice=notice)
    problem = _problem(config, graph=graph, place=place)
    accelerator = problem.cluster.accelerator
    limit = config.recompute.memory_bytes or accelerator.memory_bytes
    limited = replace(problem.cluster, accelerator=replace(accelerator, memory_bytes=limit))
    rows = config.train.global_batch_seqs // layout.dp
    micro = -(-rows // config.train.microbatch_seqs) if config.train.microbatch_seqs else layout.num_microbatches
    asked = replace(problem, cluster=limited).workload(replace(layout, microbatches_per_step=max(1, micro)))
    chosen, timeline = fit_recompute(asked)
    kinds = {path: chosen.recompute_of(number) for number, path in enumerate(layer_paths(chosen))}
    values = {"full": list(kinds.values()).count("full"), "selective": list(kinds.values()).count("selective")}
    fullest = max(rank.device_bytes for rank in timeline.ranks)
    sizes = {"memory": format_bytes(fullest), "limit": format_bytes(limit)}
    notice(say("job.recompute_chosen", layers=len(kinds), **values, **sizes))
    if not timeline.fits:
        notice(say("job.recompute_too_much", **sizes))
    return kinds


def _announced(plan: Plan) -> str:
    time = plan.predicted("step_s")
    assert time is not None, "a plan that was searched for predicts it"
    return say(
        "job.auto_chosen",
        layout=plan.layout,
        step=format_step_time(time.value),
        low=format_step_time(time.low),
        high=format_step_time(time.high),
        memory=format_bytes(_fullest_bytes(plan)),
    )


def _next(others: list[Found]) -> dict[str, str] | None:
    if not others:
        return None
    return {"layout": str(others[0].workload.layout), "step": format_step_time(others[0].time.step_s)}


def _fullest_bytes(plan: Plan) -> float:
    return max(each.value for each in plan.predictions if each.name.startswith("device_bytes."))
