"""Predicted against measured peak memory of training steps on this CPU; prints a markdown table.

Each row runs in a process of its own: a peak does not go down again, and freed memory stays with the process.
"""

from __future__ import annotations

import subprocess
import sys

ROWS = (
    ("llama-19m", "fp32", 8, 256, 8),
    ("llama-19m", "bf16", 8, 256, 8),
    ("llama-19m", "bf16_pure", 8, 256, 8),
    ("llama-19m", "fp32", 16, 256, 4),
    ("llama-19m", "fp32", 2, 128, 2),
    ("llama-3m", "fp32", 32, 128, 32),
    ("llama-60m", "fp32", 8, 256, 8),
)


def measure(name: str, policy: str, seqs: int, seq_len: int, microbatch_seqs: int) -> str:
    """Train three steps on random tokens and return the row."""
    import torch

    from trireme.config import TrainSection
    from trireme.graph import PRESETS
    from trireme.mesh import memory_in_use_bytes, peak_memory_bytes, reset_peak_memory
    from trireme.models import build_decoder
    from trireme.plan import estimate_memory
    from trireme.train import Stepper, apply_precision, build_optimizer, build_precision
    from trireme.units import format_bytes

    torch.set_num_threads(1)
    device = torch.device("cpu")

    def train(preset: str, rows: int, columns: int, *, steps: int, policy: str) -> Stepper:
        module = build_decoder(PRESETS[preset], seed=0)
        precision = build_precision(policy, device=device)
        apply_precision(module, precision=precision)
        optimizer = build_optimizer(module, TrainSection(max_steps=steps))
        stepper = Stepper(module, optimizer, precision=precision, microbatch_seqs=microbatch_seqs)
        for _ in range(steps):
            tokens = torch.randint(PRESETS[preset].vocab_size, (rows, columns))
            stepper({"input_ids": tokens, "labels": tokens})
        return stepper

    train("llama-1m", 2, 32, steps=1, policy="fp32")  # libraries that load on first use are part of the program
    program_bytes = memory_in_use_bytes(device)
    reset_peak_memory(device)
    train(name, seqs, seq_len, steps=3, policy=policy)
    measured = peak_memory_bytes(device)
    predicted = estimate_memory(
        PRESETS[name],
        policy=policy,
        microbatch_seqs=microbatch_seqs,
        seq_len=seq_len,
        microbatches_per_step=-(-seqs // microbatch_seqs),
        program_bytes=program_bytes,
    )
    cells = (
        name, policy, f"{seqs} x {seq_len}, {microbatch_seqs} at a time", format_bytes(program_bytes),
        format_bytes(predicted.total_bytes), format_bytes(measured), f"{predicted.total_bytes / measured:.2f}",
        f"{(predicted.total_bytes - program_bytes) / (measured - program_bytes):.2f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table, or the one row that the command line names."""
    if len(sys.argv) > 1:
        name, policy, *numbers = sys.argv[1:]
        print(measure(name, policy, *map(int, numbers)))
        return
    print("| model | precision | step | program | predicted | measured | ratio | ratio without program |")
    print("|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        print(subprocess.check_output([sys.executable, __file__, *map(str, row)], text=True).strip(), flush=True)


if __name__ == "__main__":
    main()
