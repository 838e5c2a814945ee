"""What an automatic layout costs beside one written by hand, on this CPU with gloo; prints markdown tables.

A decoder of plain modules runs tensor parallel on two ranks: cut by Trireme from its own code, and rewritten by hand
with column and row layers, a vocabulary-parallel loss and two all-reduces a block, as Megatron and torchtitan do. Both
run in the same processes, in turns. Planning is timed on modules on meta, so no weights are needed.

    python benchmarks/parallel.py --rounds 5
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (64, 512, 1024)
LAYERS, HEADS, VOCAB, ROWS, LENGTH = 4, 8, 1024, 4, 128


class Spread(torch.autograd.Function):
    """Identity forward, sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Sum(torch.autograd.Function):
    """Sum forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Block(nn.Module):
    """A layer; with ``degree`` above 1 it is the rewritten one."""

    def __init__(self, width: int, *, degree: int = 1) -> None:
        super().__init__()
        self.heads, self.degree = HEADS // degree, degree
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width // degree, bias=False) for _ in range(3))
        self.out = nn.Linear(width // degree, width, bias=False)
        self.up, self.gate = (nn.Linear(width, 4 * width // degree, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width // degree, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.joined(self.out(self.attend(self.met(self.norm_1(x)))))
        h = self.met(self.norm_2(x))
        return x + self.joined(self.down(F.silu(self.gate(h)) * self.up(h)))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def met(self, x: Tensor) -> Tensor:
        return x if self.degree == 1 else Spread.apply(x)

    def joined(self, x: Tensor) -> Tensor:
        return x if self.degree == 1 else Sum.apply(x)


class Decoder(nn.Module):
    """Embedding, blocks, head; the rewritten one cuts both tables by vocabulary."""

    def __init__(self, width: int, *, degree: int = 1, rank: int = 0) -> None:
        super().__init__()
        self.degree, self.first = degree, rank * (VOCAB // degree)
        self.embed = nn.Embedding(VOCAB // degree, width)
        self.blocks = nn.ModuleList(Block(width, degree=degree) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCAB // degree, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids) if self.degree == 1 else self.looked_up(input_ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x if self.degree == 1 else Spread.apply(x))

    def looked_up(self, ids: Tensor) -> Tensor:
        local = ids - self.first
        here = (local >= 0) & (local < self.embed.num_embeddings)
        return Sum.apply(self.embed(local.where(here, 0)) * here[..., None])


def loss_by_hand(logits: Tensor, labels: Tensor, first: int) -> Tensor:
    """Cross-entropy over a cut vocabulary, summed."""
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    shifted = logits - highest[..., None]
    local = labels - first
    here = (local >= 0) & (local < logits.shape[-1])
    right = shifted.gather(-1, local.where(here, 0)[..., None]).squeeze(-1) * here
    total, mine = Sum.apply(torch.stack([shifted.exp().sum(-1), right])).unbind(0)
    return (total.log() - mine).sum()


def loss_fn(logits: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    labels = batch["labels"]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel()


def compare(width: int, rounds: int) -> dict[str, float]:
    """Time a step of both, in turns; returns seconds of each and the bytes a rank holds."""
    from trireme.parallel import parallelize

    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (ROWS, LENGTH))
    batch = {"input_ids": ids, "labels": ids.roll(-1, 1)}
    automatic = parallelize(Decoder(width), "tp=2", example=batch, loss_fn=loss_fn, notice=print)
    by_hand = Decoder(width, degree=2, rank=dist.get_rank())

    def step_automatic() -> None:
        automatic.train_step(batch, loss_fn, count_fn=lambda part: part["labels"].numel())

    def step_by_hand() -> None:
        loss = loss_by_hand(by_hand(ids), batch["labels"], by_hand.first) / ids.numel()
        loss.backward()

    times: dict[str, list[float]] = {"automatic": [], "by hand": []}
    for _ in range(rounds + 1):
        for name, step, module in (
            ("automatic", step_automatic, automatic.module),
            ("by hand", step_by_hand, by_hand),
        ):
            module.zero_grad(set_to_none=True)
            dist.barrier()
            started_s = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - started_s)
    held = {
        name: sum(each.numel() for each in module.parameters())
        for name, module in (
            ("automatic held", automatic.module),
            ("by hand held", by_hand),
        )
    }
    return {name: min(values[1:]) for name, values in times.items()} | held


def planning() -> list[tuple[str, float, float]]:
    """Time tracing and planning of large models without weights."""
    import transformers

    from trireme.interpret import plan_tensor_parallel
    from trireme.parallel.capture import capture

    def call(module: nn.Module, batch: Any) -> Any:
        return module(input_ids=batch["input_ids"], use_cache=False).logits

    llama = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
        num_attention_heads=64, num_key_value_heads=8,
    )  # fmt: skip
    qwen = transformers.Qwen3MoeConfig(
        vocab_size=151936, hidden_size=4096, moe_intermediate_size=1536, num_hidden_layers=94,
        num_attention_heads=64, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, head_dim=128,
    )  # fmt: skip
    rows = []
    for name, kind, config in (
        ("Llama-3-70B", transformers.LlamaForCausalLM, llama),
        ("Qwen3-235B-A22B", transformers.Qwen3MoeForCausalLM, qwen),
    ):
        with torch.device("meta"):
            module = kind(config).to(torch.bfloat16)
        ids = torch.zeros(1, 64, dtype=torch.long)
        started_s = time.perf_counter()
        capture(module, {"input_ids": ids}, call=call)
        traced_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        plan_tensor_parallel(module, {"input_ids": ids}, degree=8, call=call)
        rows.append((name, traced_s, time.perf_counter() - started_s))
    return rows


def main() -> None:
    from trireme.mesh import run_on_ranks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| width | by hand, ms | automatic, ms | ratio | parameters held, by hand | automatic |")
    print("|---|---|---|---|---|---|")
    for width in WIDTHS:
        found = run_on_ranks(compare, 2, width=width, rounds=rounds, timeout_s=300.0)[0]
        print(
            f"| {width} | {found['by hand'] * 1e3:.1f} | {found['automatic'] * 1e3:.1f} "
            f"| {found['automatic'] / found['by hand']:.2f} "
            f"| {found['by hand held']:,} | {found['automatic held']:,} |"
        )
    print("\n| model, on meta | trace, s | tensor-parallel plan at 8, s |")
    print("|---|---|---|")
    for name, traced_s, planned_s in planning():
        print(f"| {name} | {traced_s:.1f} | {planned_s:.1f} |")


if __name__ == "__main__":
    main()
