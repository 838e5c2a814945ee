"""What compressed gradients cost and save on slow links: one exchange, a whole step, the loss; prints markdown tables.

Two ranks train a small byte-level decoder on Song dynasty lyrics. The link is pretended: a token bucket holds each
collective back as a link of the given rate and latency would; everything else is real, coding on the CPU included.

    python benchmarks/wire.py --steps 60
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

METHODS = ("none", "bf16", "fp16", "int8", "topk", "powersgd")
GBPS = (0.1, 1.0, 10.0)
LATENCY_S = 50e-6
WIDTH, LAYERS, HEADS, LENGTH, ROWS = 128, 4, 4, 128, 8


class Block(nn.Module):
    """A layer of the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.silu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_wire(method: str, *, gbps: float | None) -> tuple[Any, Any]:
    """Make what sums gradients, on a pretended link or on the one there is; also what codes leave out."""
    from trireme.parallel import Bf16, CodedSum, Feedback, Fp16, Int8, Link, LowRankSum, Pace, PlainSum, TopK, Wire

    pace = None if gbps is None else Pace(bytes_per_s=gbps * 1e9 / 8, latency_s=LATENCY_S)
    link, feedback = Link(dist.group.WORLD, pace=pace), Feedback()
    codecs: dict[str, Callable[[], Any]] = {"bf16": Bf16, "fp16": Fp16, "int8": Int8, "topk": lambda: TopK(0.01)}
    way: Any = PlainSum(link)
    if method == "powersgd":
        way = LowRankSum(link, rank=4, feedback=feedback, scope="dense")
    elif method != "none":
        way = CodedSum(link, codecs[method](), feedback=feedback, scope="dense")
    return Wire(way, links=[link], plain=PlainSum(link), device=torch.device("cpu")), feedback


def train(text: bytes, method: str, *, gbps: float | None, steps: int) -> dict[str, Any]:
    """Train from the same weights on the same bytes; give losses, the shortest step, what it sent, and its waiting."""
    from trireme.parallel import replicate

    torch.manual_seed(0)
    module = Decoder()
    wire, feedback = build_wire(method, gbps=gbps)
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2**20, exchange=wire)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    losses, times, waits = [], [], []
    for step in range(steps):
        draw = torch.Generator().manual_seed(step)
        starts = torch.randint(0, len(ids) - LENGTH - 1, (ROWS * dist.get_world_size(),), generator=draw)
        own = starts[dist.get_rank() :: dist.get_world_size()]
        rows = torch.stack([ids[start : start + LENGTH + 1] for start in own.tolist()])
        dist.barrier()
        started_s = time.perf_counter()
        sync.start_step(1)
        loss = F.cross_entropy(module(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()) / dist.get_world_size()
        sync.before_backward(is_last=True)
        loss.backward()
        sync.after_backward(is_last=True)
        sync.finish()
        optimizer.step()
        optimizer.zero_grad()
        feedback.settle(is_updated=True)
        times.append(time.perf_counter() - started_s)
        waits.append(sync.traffic.exposed_s or 0.0)
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(float(total))
    sync.close()
    wire.close()
    return {
        "losses": losses,
        "step_s": min(times[2:]),
        "exposed_s": min(waits[2:]),
        "sent_bytes": sync.traffic.sent_bytes,
        "numel": sum(each.numel() for each in module.parameters()),
    }


def exchange_s(method: str, *, gbps: float) -> float:
    """Give the shortest time of one exchange of a gradient of a million elements, with nothing beside it."""
    from trireme.parallel import Bucket

    wire, feedback = build_wire(method, gbps=gbps)
    torch.manual_seed(dist.get_rank())
    flat = torch.randn(2**20)
    bucket = Bucket(index=0, names=("w",), indices=(0,), flat=flat, views=(flat.view(1024, 1024),), group=None)
    times = []
    for _ in range(6):
        dist.barrier()
        started_s = time.perf_counter()
        wire(bucket).wait()
        times.append(time.perf_counter() - started_s)
        feedback.settle(is_updated=True)
    wire.close()
    return min(times)


def measure(text: bytes, steps: int, timed: int) -> dict[str, Any]:
    """Run everything on this rank."""
    torch.set_num_threads(1)
    link_gbps = 2**22 * 8 / 12e-3 / 1e9  # a gradient of 4 MiB takes 12 ms
    return {
        "exchange": {method: exchange_s(method, gbps=link_gbps) for method in METHODS},
        "curve": {method: train(text, method, gbps=None, steps=steps) for method in METHODS},
        "steps": {gbps: {method: train(text, method, gbps=gbps, steps=timed) for method in METHODS} for gbps in GBPS},
    }


def lyrics() -> bytes:
    """Give the corpus of lyrics that is shipped, or as much of it as a run can see."""
    import zstandard

    import trireme.data

    path = Path(trireme.data.__file__).parent / "corpus" / "songci.jsonl.zst"
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        lines = stream.read(2**21).splitlines()[:-1]
    return "\n".join(str(json.loads(line)["text"]) for line in lines).encode()


def print_tables(found: dict[str, Any], *, steps: int) -> None:
    """Print what was found as markdown."""
    curve = found["curve"]
    numel, whole = curve["none"]["numel"], curve["none"]["sent_bytes"]
    print(f"\n{numel / 1e6:.2f} M parameters, 2 ranks.\n")
    print("| method | bytes a step and rank | of fp32 | one exchange of 4 MiB on a link of 12 ms |\n|---|---|---|---|")
    for method in METHODS:
        sent = curve[method]["sent_bytes"]
        print(f"| {method} | {sent:,} | {sent / whole:.1%} | {found['exchange'][method] * 1e3:.1f} ms |")
    print("\n| method | " + " | ".join(f"{gbps:g} Gb/s: step (waited)" for gbps in GBPS) + " |")
    print("|---" * (len(GBPS) + 1) + "|")
    for method in METHODS:
        rows = [found["steps"][gbps][method] for gbps in GBPS]
        print(
            f"| {method} | "
            + " | ".join(f"{r['step_s'] * 1e3:.0f} ms ({r['exposed_s'] * 1e3:.0f})" for r in rows)
            + " |"
        )
    marks = sorted({0, *(steps * part // 6 - 1 for part in range(1, 7))})
    print("\n| loss at step | " + " | ".join(METHODS) + " |\n" + "|---" * (len(METHODS) + 1) + "|")
    for mark in marks:
        shown = " | ".join(f"{curve[method]['losses'][mark]:.3f}" for method in METHODS)
        print(f"| {mark + 1} | {shown} |")


def print_layers() -> None:
    """Print what sums in two layers save between nodes."""
    from trireme.parallel import layered_ratio

    shapes = ((2, 2), (2, 4), (2, 8), (4, 8), (8, 8), (64, 8))
    print("\n| nodes x ranks | flat ring crosses | two layers cross | saved |\n|---|---|---|---|")
    for nodes, each in shapes:
        ranks = nodes * each
        flat, layered = 2 * nodes * (ranks - 1) / ranks, 2 * (nodes - 1)
        saved = 1 - layered_ratio(ranks, num_nodes=nodes)
        print(f"| {nodes} x {each} | {flat:.2f} G | {layered:.2f} G | {saved:.0%} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps of the loss curves")
    parser.add_argument("--timed", type=int, default=8, help="steps of which the shortest is told")
    options = parser.parse_args()
    from trireme.mesh import run_on_ranks

    found = run_on_ranks(measure, 2, timeout_s=3600, text=lyrics(), steps=options.steps, timed=options.timed)
    print_tables(found[0], steps=options.steps)
    print_layers()


if __name__ == "__main__":
    main()
