"""A search as JSON: every figure that is shown, in SI units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trireme.plan import estimate_goodput, layer_paths, layout_mapping, why_not

if TYPE_CHECKING:
    from trireme.cli.plan_problem import Asked
    from trireme.plan import Found, Problem, SearchResult


def result_json(problem: Problem, result: SearchResult, asked: Asked) -> dict[str, Any]:
    """Give everything that was found."""
    counted = result.counted
    document: dict[str, Any] = {
        "model": problem.model.name,
        "cluster": problem.cluster.name,
        "ranks": problem.cluster.num_ranks,
        "global_batch_seqs": problem.global_batch_seqs,
        "seq_len": problem.seq_len,
        "counted": {name: getattr(counted, name) for name in counted.__dataclass_fields__},
        "plans": [found_json(found) for found in result.plans],
        "rejected": [
            {"rule": each.rule, "count": each.count, "example": each.example, "reason": each.reason}
            for each in result.rejected
        ],
    }
    best = result.best
    if asked.wishes:
        document["why"] = [_why_json(problem, text, asked, best) for text in asked.wishes]
    if asked.tokens is not None:
        document["tokens"] = {"tokens": asked.tokens, "time_s": asked.tokens / best.time.tokens_per_s}
    if asked.node_mtbf_s is not None:
        goodput = estimate_goodput(
            num_nodes=problem.cluster.num_nodes,
            node_mtbf_s=asked.node_mtbf_s,
            checkpoint_s=asked.checkpoint_s,
            restart_s=asked.restart_s,
        )
        document["goodput"] = {"ratio": goodput.ratio, "interval_s": goodput.interval_s, "mtbf_s": goodput.mtbf_s}
    return document


def _why_json(problem: Problem, text: str, asked: Asked, best: Found) -> dict[str, Any]:
    why = why_not(problem, asked.wishes[text], best=best)
    found = None if why.found is None else found_json(why.found)
    return {"wish": text, "verdict": why.verdict, "reason": why.reason, "costs": list(why.costs), "found": found}


def found_json(found: Found) -> dict[str, Any]:
    """Give one layout with its predictions."""
    workload, time, memory = found.workload, found.time, found.memory
    paths = layer_paths(workload)
    return {
        "layout": layout_mapping(workload.layout),
        "text": str(workload.layout),
        "microbatch_seqs": workload.microbatch_seqs,
        "cuts": [paths[cut] for cut in workload.cuts],
        "recompute": {
            kind: [path for number, path in enumerate(paths) if workload.recompute_of(number) == kind]
            for kind in ("selective", "full")
        },
        "offload": [path for number, path in enumerate(paths) if workload.offload_of(number)],
        "step_s": time.step_s,
        "step_s_low": time.low_s,
        "step_s_high": time.high_s,
        "parts_s": dict(time.parts),
        "tokens_per_s": time.tokens_per_s,
        "bubble_ratio": time.bubble_ratio,
        "mfu": time.mfu,
        "hfu": time.hfu,
        "mfu_formula": time.formula,
        "is_calibrated": time.is_calibrated,
        "memory": [
            {
                "pp_rank": rank.pp_rank,
                "stages": list(rank.stages),
                "allocated_bytes": rank.allocated_bytes,
                "device_bytes": rank.device_bytes,
                "host_bytes": rank.host_bytes,
                "parts_bytes": dict(rank.parts),
                "peak": rank.peak._asdict(),
            }
            for rank in memory.ranks
        ],
        "capacity_bytes": memory.capacity_bytes,
    }
