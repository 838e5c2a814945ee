"""Peak memory of a loss at vocabulary 131,072, by exact accounting of live storages: torch's, ours, and in pieces.

``python benchmarks/logits.py``
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.models import deferring, token_cross_entropy
from trireme.plan import Layout
from trireme.simulate import CollectiveCounter, Ledger, World

VOCAB, WIDTH, ROWS, LENGTH = 131_072, 64, 2, 512


def call(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Give logits."""
    logits: Tensor = module(batch["input_ids"])
    return logits


def measure(kind: str) -> tuple[float, float]:
    """Give the peak above parameters and gradients in MiB, and the loss."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
    batch = {name: torch.randint(VOCAB, (ROWS, LENGTH)) for name in ("input_ids", "labels")}
    ledger = Ledger()
    for parameter in module.parameters():
        ledger.note(parameter, "parameters")
    held = 2 * ledger.total_bytes
    chosen: Any = deferring(call) if kind == "chunked" else call
    with World(ledger=ledger, collectives=CollectiveCounter(Layout()), hollow=None):
        outputs = chosen(module, batch)
        if kind == "torch":
            loss = F.cross_entropy(outputs.float().view(-1, VOCAB), batch["labels"].view(-1), reduction="sum")
        else:
            loss = token_cross_entropy(outputs, batch)[0]
        loss.backward()
    return (ledger.peak.num_bytes - held) / 2**20, float(loss.detach())


if __name__ == "__main__":
    for kind in ("torch", "plain", "chunked"):
        peak_mib, loss = measure(kind)
        print(f"{kind:8} {peak_mib:8.1f} MiB above parameters and gradients, loss {loss:.4f}")
