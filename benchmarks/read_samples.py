"""How fast samples are read: tokens a second, direct and through the loader, and how fast rows are planned.

Usage: python benchmarks/read_samples.py [--tokens 100000000] [--seconds 2]

Tokens are random ids in real token files in a temporary folder (in memory, as a training set is that has been
read once). A token counts if it is not padding. Every figure is the best of three: other work on the machine
only ever slows it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from trireme.data.assemble import SourcePart, build_stream
from trireme.data.document import SourceCounts
from trireme.data.loader import Loader
from trireme.data.pack import PackRules, build_plan
from trireme.data.shard import DOCUMENT_DTYPE, write_shard
from trireme.data.store import open_store, write_index
from trireme.data.stream import SampleStream

TOKENIZER = SimpleNamespace(pad_id=0, fingerprint="0" * 32)
CASES = ((20, 512), (90, 256), (120, 2048), (500, 2048), (2000, 2048), (200_000, 2048))
"""Mean document length and sequence length; 90 and 256 are the lyrics recipe."""
NUM_SHARDS = 8
STEP_TOKENS = 32_768


def main() -> None:
    """Print two markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    print("Million tokens a second by the clock / by the processor time of the busiest process:\n")
    print("| mean document | seq_len | filled | direct | thread | 1 worker |\n|---|---|---|---|---|---|")
    for mean, seq_len in CASES:
        with tempfile.TemporaryDirectory() as folder:
            stream = make_stream(Path(folder), mean=mean, seq_len=seq_len, num_tokens=asked.tokens)
            print(row_of(stream, mean=mean, seconds=asked.seconds), flush=True)
    print("\n| documents | mean | seq_len | planning | filled |\n|---|---|---|---|---|")
    for mean, seq_len in ((60, 512), (1000, 2048)):
        print(planning_row(1_000_000, mean=mean, seq_len=seq_len), flush=True)


def make_stream(folder: Path, *, mean: int, seq_len: int, num_tokens: int) -> SampleStream:
    """Write token files and return a stream over them."""
    rng = np.random.default_rng(0)
    lengths = random_lengths(rng, mean=mean, count=max(num_tokens // mean, 64))
    table = np.zeros(len(lengths), dtype=DOCUMENT_DTYPE)
    table["length"], table["hash"] = lengths, rng.integers(0, 2**63, len(lengths))
    tokens = rng.integers(0, 60_000, int(lengths.sum()), dtype=np.uint16)
    ends = np.cumsum(lengths)
    store_folder = folder / "store"
    store_folder.mkdir()
    notes = []
    for number, mine in enumerate(np.array_split(np.arange(len(lengths)), NUM_SHARDS)):
        part = tokens[ends[mine[0]] - lengths[mine[0]] : ends[mine[-1]]]
        options = {"number": number, "block": str(number), "counts": SourceCounts()}
        notes.append(write_shard(store_folder, tokens=[part], documents=table[mine], **options))
    tokenizer = {"fingerprint": TOKENIZER.fingerprint, "vocab_size": 60_000}
    write_index(store_folder, key="k", notes=notes, tokenizer=tokenizer, description={})
    store = open_store(store_folder)
    plan = plan_of(store.lengths, seq_len=seq_len)
    part = SourcePart(name="random", weight=None, store=store, documents=np.arange(len(lengths)), plan=plan)
    return build_stream([part], seed=1, tokenizer=TOKENIZER)


def random_lengths(rng: np.random.Generator, *, mean: int, count: int) -> np.ndarray:
    """Return log-normal lengths, the usual form of text."""
    return np.maximum(2, rng.lognormal(np.log(mean) - 0.125, 0.5, count).astype(np.int64))


def plan_of(lengths: np.ndarray, *, seq_len: int) -> Any:
    """Plan all documents."""
    prompts = np.zeros(len(lengths), dtype=np.int32)
    rules = PackRules(seq_len=seq_len)
    return build_plan(lengths, prompt_lengths=prompts, documents=np.arange(len(lengths)), rules=rules)


def row_of(stream: SampleStream, *, mean: int, seconds: float) -> str:
    """Measure one stream in every way."""
    batch_seqs = STEP_TOKENS // stream.seq_len

    def direct() -> Iterator[Any]:
        for step in range(10**9):
            yield stream.read(step, global_batch_seqs=batch_seqs)

    def loaded(workers: int) -> Callable[[], Iterator[Any]]:
        return lambda: Loader(stream, global_batch_seqs=batch_seqs, workers=workers, prefetch=4)

    cells = [str(mean), str(stream.seq_len), f"{stream.sources[0].plan.efficiency_ratio:.1%}"]
    for way in (direct, loaded(0), loaded(1)):
        speed = best_of_three(way, seconds=seconds)
        cells.append(f"{speed.per_s / 1e6:.0f} / {speed.per_core_s / 1e6:.0f}")
    return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second by the clock, and by the processor time of the busiest process."""

    per_s: float
    per_core_s: float


def best_of_three(open_batches: Callable[[], Iterator[Any]], *, seconds: float) -> Speed:
    """Return the best of three runs, each after a warm-up that starting workers is part of."""
    runs = [measure(open_batches(), seconds=seconds) for _ in range(3)]
    return Speed(per_s=max(run.per_s for run in runs), per_core_s=max(run.per_core_s for run in runs))


def measure(batches: Iterator[Any], *, seconds: float) -> Speed:
    """Read for some seconds."""
    for _ in range(8):
        next(batches)
    processes = [psutil.Process(), *map(psutil.Process, getattr(batches, "worker_pids", ()))]
    before = [busy_s(process) for process in processes]
    begun, tokens = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < seconds:
        tokens += next(batches).num_real_tokens
    busiest = max(busy_s(process) - earlier for process, earlier in zip(processes, before, strict=True))
    if isinstance(batches, Loader):
        batches.close()
    return Speed(per_s=tokens / spent, per_core_s=tokens / busiest)


def busy_s(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    return process.cpu_times().user + process.cpu_times().system


def planning_row(count: int, *, mean: int, seq_len: int) -> str:
    """Measure how long planning takes."""
    lengths = random_lengths(np.random.default_rng(0), mean=mean, count=count)
    begun = time.perf_counter()
    plan = plan_of(lengths, seq_len=seq_len)
    return f"| {count:,} | {mean} | {seq_len} | {time.perf_counter() - begun:.2f} s | {plan.efficiency_ratio:.2%} |"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
