"""Megabytes of text tokenised a second: the whole build of a store against the library alone, taking turns.

    python benchmarks/tokenise.py [--rounds 5]

Both read the lyrics that ship, with a tokenizer trained on them. ``library`` is the text in memory through
``tokenizers`` (its batch call, one process, no output kept); ``build`` is everything: reading and decoding the
file, the same encoding, document tables, hashes, durable shards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    from trireme.config import SourceSection, parse_config
    from trireme.data import build_store, read_documents, resolve_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        source = SourceSection(path="corpus:songci")
        data = parse_config({"data": {"sources": ["corpus:songci"]}}, purpose="data").data
        tokenizer = resolve_tokenizer(data, cache_dir=cache)
        texts = [document.text for document in read_documents(source)]
        size_bytes = sum(len(text.encode()) for text in texts)

        def library() -> None:
            tokenizer.encode_batch(texts)

        def build(workers: int, number: int) -> None:
            one = data.model_copy(update={"build_workers": workers})
            build_store(source, data=one, tokenizer=tokenizer, cache_dir=cache / f"{workers}-{number}")

        takes: dict[str, list[float]] = {"library": [], "build, 1 process": [], "build, 2 processes": []}
        for number in range(rounds):
            takes["library"].append(_took_s(library))
            takes["build, 1 process"].append(_took_s(lambda n=number: build(1, n)))
            takes["build, 2 processes"].append(_took_s(lambda n=number: build(2, n)))
    print(f"{size_bytes / 1e6:.2f} MB, {len(texts)} documents, median of {rounds}")
    for name, times in takes.items():
        print(f"| {name} | {size_bytes / 1e6 / statistics.median(times):.2f} MB/s |")


def _took_s(action: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
