"""How long a search takes, in seconds of one core: whole spaces of large models on large clusters.

python benchmarks/planner_search.py [--markdown]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from trireme.cluster import parse_cluster
from trireme.graph import DecoderNumbers, ModelGraph, find_model, read_numbers
from trireme.plan import Problem, SearchResult, find_framework, search

TRILLION = DecoderNumbers(
    vocab_size=51_200, num_layers=128, d_model=25_600, num_heads=160, d_ffn=102_400, learned_positions=2048
)
"""Narayanan et al. 2021, table 1, last row."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    for model, cluster, batch, seq_len in (
        (find_model("gpt3-175b"), "a100-80gb:8x128", 1536, 2048),
        (find_model("llama-3-405b"), "h100:8x2048", 2048, 8192),
        (replace(read_numbers(TRILLION), name="gpt-1t"), "a100-80gb:8x2048", 3072, 2048),
        (find_model("deepseek-v3"), "h800:8x256", 15_360, 4096),
        (find_model("llama-3-8b"), "h100:8", 64, 8192),
    ):
        report(model, cluster, batch, seq_len, markdown=arguments.markdown)


def report(model: ModelGraph, cluster: str, batch: int, seq_len: int, *, markdown: bool) -> None:
    """Search once and print what it took and what it found."""
    framework = find_framework("megatron-lm")
    assert framework is not None
    problem = Problem(
        model=model, cluster=parse_cluster(cluster), global_batch_seqs=batch, seq_len=seq_len, framework=framework
    )
    start, wall = time.process_time(), time.perf_counter()
    result = search(problem)
    spent_s, wall_s = time.process_time() - start, time.perf_counter() - wall
    print(row(problem, result, spent_s, wall_s, markdown=markdown))


def row(problem: Problem, result: SearchResult, spent_s: float, wall_s: float, *, markdown: bool) -> str:
    """Give one line of the table."""
    best, counted = result.best, result.counted
    cells = (
        problem.model.name,
        problem.cluster.name,
        f"{spent_s:.1f} s",
        f"{wall_s:.1f} s",
        f"{counted.layouts:,}",
        f"{counted.estimated:,}",
        str(best.workload.layout),
        f"{best.time.step_s:.2f} ({best.time.low_s:.2f}-{best.time.high_s:.2f}) s",
        f"{best.time.mfu:.1%}",
        f"{best.memory.device_bytes / 2**30:.0f} GiB",
    )
    return "| " + " | ".join(cells) + " |" if markdown else "  ".join(cells)


if __name__ == "__main__":
    main()
