"""Seconds from typing a command to its answer, as whole processes.

python benchmarks/startup.py [--rounds 11]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = (
    ("--help",),
    ("version",),
    ("models",),
    ("models", "show", "deepseek-v3"),
    ("config", "show", "recipes/lyrics.yaml"),
    ("data", "ids", "recipes/lyrics.yaml", "--steps", "0:50", "--dp-degree", "3"),
)


def main() -> None:
    """Print a table of medians and of the slowest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    program = Path(sys.executable).parent / "trireme"
    times: dict[tuple[str, ...], list[float]] = {words: [] for words in COMMANDS}
    for _ in range(rounds + 1):
        for words in COMMANDS:
            times[words].append(_took_s([str(program), *words]))
    print("| command | median s | slowest s |\n|---|---|---|")
    for words, taken in times.items():
        warm = taken[1:]  # the first fills the disk cache, and the cache of tokens
        print(f"| `trireme {' '.join(words)}` | {statistics.median(warm):.2f} | {max(warm):.2f} |")


def _took_s(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
