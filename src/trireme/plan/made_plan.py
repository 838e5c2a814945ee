"""From a layout that was found to the document that is reviewed, kept and run: plan.json."""

from __future__ import annotations

from dataclasses import replace

from trireme.plan.plan import LayerChoice, Plan, Prediction, hash_cluster, hash_model
from trireme.plan.search import Found
from trireme.plan.workload import Workload

_MEMORY_LOW, _MEMORY_HIGH = 0.85, 1.15
"""Within these shares of the prediction most published peaks lie; benchmarks/planner.md."""


def make_plan(found: Found, *, version: str) -> Plan:
    """Write down everything that was decided, with what it is expected to show."""
    workload = found.workload
    return Plan(
        layout=replace(workload.layout, microbatches_per_step=workload.layout.num_microbatches),
        cuts=tuple(layer_paths(workload)[cut] for cut in workload.cuts),
        layers=_layers(workload),
        precision=workload.precision,
        model=workload.model.name,
        global_batch_seqs=workload.global_batch_seqs,
        seq_len=workload.seq_len,
        predictions=_predictions(found),
        model_hash=hash_model(workload.model),
        cluster_hash=hash_cluster(workload.cluster),
        trireme_version=version,
    )


def layer_paths(workload: Workload) -> tuple[str, ...]:
    """Module path of each layer, over all stacks."""
    return tuple(path for stack in workload.model.stacks for path in stack.layer_paths())


def _layers(workload: Workload) -> tuple[LayerChoice, ...]:
    """The layers that recompute or offload."""
    choices = (
        LayerChoice(path=path, recompute=workload.recompute_of(number), offload=workload.offload_of(number))
        for number, path in enumerate(layer_paths(workload))
    )
    return tuple(choice for choice in choices if choice.recompute != "none" or choice.offload)


def _predictions(found: Found) -> tuple[Prediction, ...]:
    time, memory = found.time, found.memory
    tokens = found.workload.step_tokens
    values = [
        Prediction(name="step_s", value=time.step_s, low=time.low_s, high=time.high_s),
        Prediction(name="tokens_per_s", value=time.tokens_per_s, low=tokens / time.high_s, high=tokens / time.low_s),
        Prediction(
            name="mfu_ratio",
            value=time.mfu,
            low=time.mfu * time.step_s / time.high_s,
            high=time.mfu * time.step_s / time.low_s,
        ),
        Prediction(name="bubble_ratio", value=time.bubble_ratio, low=time.bubble_ratio, high=time.bubble_ratio),
    ]
    for rank in memory.ranks:
        values += [
            _bytes(f"allocated_bytes.pp_{rank.pp_rank}", rank.allocated_bytes),
            _bytes(f"device_bytes.pp_{rank.pp_rank}", rank.device_bytes),
        ]
    return tuple(values)


def _bytes(name: str, value: int) -> Prediction:
    return Prediction(name=name, value=float(value), low=value * _MEMORY_LOW, high=value * _MEMORY_HIGH)
