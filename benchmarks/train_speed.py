"""Training tokens per second of one 19 M Llama: Trireme, a hand-written PyTorch loop, Hugging Face Trainer.

    python benchmarks/train_speed.py [--rounds 9] [--threads 2] [--contenders ours,hand,trainer]

Each contender is a process of its own with the same shape, data, batch, optimizer and clipping. The
processes take turns, one optimizer step each, so whatever else the machine does hits all alike; a round
is one step of everyone. Reported: the median step, and the median over rounds of the ratio to the hand
loop. Paddle has an environment of its own: see train_speed_paddle.py, which speaks the same protocol.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPE = {"vocab": 8192, "width": 384, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1024}
ROWS, TOKENS = 8, 256
LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0
WARM_STEPS = 3

Step = Callable[[], float]
"""One optimizer step; returns its loss."""


def make_ids() -> Any:
    """The batch everyone trains on: ``[ROWS, TOKENS + 1]`` token ids."""
    import numpy as np

    return np.random.default_rng(0).integers(SHAPE["vocab"], size=(ROWS, TOKENS + 1))


def build_ours(precision: str) -> Step:
    """Trireme's decoder, loss, optimizer and step, as ``trireme train`` runs them."""
    import numpy as np
    import torch

    from trireme.config import TrainSection
    from trireme.graph import find_preset
    from trireme.models import build_decoder, keep_freed_memory
    from trireme.train import Stepper, build_optimizer

    keep_freed_memory()
    ids = make_ids()
    module = build_decoder(find_preset("llama-19m"), seed=0)
    section = TrainSection(lr=LR, beta1=BETAS[0], beta2=BETAS[1], weight_decay=DECAY)
    stepper = Stepper(module, build_optimizer(module, section), precision=precision, clip_grad_norm=CLIP)
    places = np.tile(np.arange(TOKENS), (ROWS, 1))
    columns = {
        "input_ids": ids[:, :-1],
        "labels": ids[:, 1:],
        "position_ids": places,
        "document_ids": np.zeros_like(places),
    }
    batch = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in columns.items()}
    return lambda: stepper(batch).loss


def build_hand(precision: str) -> Step:
    """What a person writes on an afternoon: modules from torch.nn, autocast, AdamW, clip."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    width, heads, kv_heads = SHAPE["width"], SHAPE["heads"], SHAPE["kv_heads"]
    head_width = width // heads

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, kv_heads * head_width, bias=False)
            self.v = nn.Linear(width, kv_heads * head_width, bias=False)
            self.gate, self.up = (nn.Linear(width, SHAPE["ffn"], bias=False) for _ in range(2))
            self.down = nn.Linear(SHAPE["ffn"], width, bias=False)

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            rows, tokens, _ = x.shape
            h = self.norm_1(x)
            q = self.q(h).view(rows, tokens, heads, head_width).transpose(1, 2)
            k = self.k(h).view(rows, tokens, kv_heads, head_width).transpose(1, 2)
            v = self.v(h).view(rows, tokens, kv_heads, head_width).transpose(1, 2)
            q, k = turn(q, cos, sin).to(v.dtype), turn(k, cos, sin).to(v.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(rows, tokens, width))
            h = self.norm_2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(SHAPE["vocab"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(SHAPE["layers"]))
            self.norm = nn.RMSNorm(width, eps=1e-5)
            self.head = nn.Linear(width, SHAPE["vocab"], bias=False)
            angle = torch.outer(torch.arange(TOKENS), 10000.0 ** -(torch.arange(0, head_width, 2) / head_width))
            angle = torch.cat((angle, angle), -1)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY)
    ids = torch.from_numpy(make_ids())

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, SHAPE["vocab"]), ids[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def run_trainer(precision: str) -> None:
    """Hugging Face Trainer on LlamaForCausalLM; it owns its loop, so it is stopped and timed by a callback."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=SHAPE["vocab"],
        hidden_size=SHAPE["width"],
        intermediate_size=SHAPE["ffn"],
        num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["kv_heads"],
        max_position_embeddings=TOKENS,
        rms_norm_eps=1e-5,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.from_numpy(make_ids())[:, :-1]
    rows = [{"input_ids": row, "labels": row} for row in ids] * 10_000

    class Gate(transformers.TrainerCallback):
        """Waits for its turn before each step and answers after it."""

        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            if not _wait_for_turn():
                os._exit(0)
            self.started_s = time.perf_counter()

        def on_step_end(self, _args: Any, state: Any, *_rest: Any, **_kwargs: Any) -> None:
            _answer(seconds=time.perf_counter() - self.started_s, loss=float("nan"))

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=ROWS,
            max_steps=10_000,
            learning_rate=LR,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            weight_decay=DECAY,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            bf16=precision == "bf16",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[Gate()])
        _answer(ready=True)
        trainer.train()


def work(contender: str, precision: str, threads: int) -> None:
    """Be one contender: a step a line on standard input, its seconds and loss as JSON on standard output."""
    import torch

    torch.set_num_threads(threads)
    if contender == "trainer":
        run_trainer(precision)
        return
    step = {"ours": build_ours, "hand": build_hand}[contender](precision)
    _answer(ready=True)
    while _wait_for_turn():
        started_s = time.perf_counter()
        loss = step()
        _answer(seconds=time.perf_counter() - started_s, loss=loss)


def _wait_for_turn() -> bool:
    return bool(sys.stdin.readline().strip())


def _answer(**values: Any) -> None:
    print("@" + json.dumps(values), flush=True)


class Contender:
    """The other end of ``work``: a process that steps when told to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._read()

    def step(self) -> dict[str, float]:
        """Let it make one step and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Send it home."""
        self._process.communicate("\n")

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                answer: dict[str, float] = json.loads(line[1:])
                return answer
        _, complaint = self._process.communicate()
        raise RuntimeError(complaint[-2000:])


def compare(names: list[str], precision: str, *, rounds: int, threads: int, paddle_python: str | None) -> None:
    """Let the contenders take turns and print a line each."""
    contenders = {}
    for name in names:
        command = [sys.executable, __file__, "--work", name, precision, str(threads)]
        if name == "paddle":
            script = Path(__file__).with_name("train_speed_paddle.py")
            command = [paddle_python or "python", str(script), "--work", precision, str(threads)]
        try:
            contenders[name] = Contender(command)
        except (RuntimeError, OSError) as error:
            print(f"{precision} {name}: left out ({str(error).strip().splitlines()[-1]})")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_STEPS + rounds):
        for name, contender in contenders.items():
            answer = contender.step()
            losses[name].append(answer["loss"])
            if number >= WARM_STEPS:
                seconds[name].append(answer["seconds"])
    for contender in contenders.values():
        contender.close()
    report(precision, seconds, losses)


def report(precision: str, seconds: dict[str, list[float]], losses: dict[str, list[float]]) -> None:
    """Print the table's rows."""
    for name, times in seconds.items():
        middle_s = statistics.median(times)
        speed = f"{ROWS * TOKENS / middle_s:,.0f} | {1000 * middle_s:.0f} | {1000 * min(times):.0f}"
        line = f"| {precision} | {name} | {speed} |"
        if "hand" in seconds:
            ratio = statistics.median(hand / own for hand, own in zip(seconds["hand"], times, strict=True))
            line += f" {ratio:.2f} |"
        print(f"{line} {losses[name][0]:.3f} -> {losses[name][-1]:.3f} |", flush=True)


def main() -> None:
    """Read the command line and compare."""
    if len(sys.argv) > 1 and sys.argv[1] == "--work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--contenders", default="ours,hand,trainer")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--paddle-python", help="Python of an environment with paddlepaddle, for contender paddle")
    options = parser.parse_args()
    print("| precision | contender | tokens/s | median ms | least ms | over hand loop | loss first -> last |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for precision in options.precisions.split(","):
        compare(
            options.contenders.split(","),
            precision,
            rounds=options.rounds,
            threads=options.threads,
            paddle_python=options.paddle_python,
        )


if __name__ == "__main__":
    main()
