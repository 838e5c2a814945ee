"""The same 19 M Llama written by hand in PaddlePaddle, for train_speed.py.

Paddle brings libraries of its own, so it gets an environment of its own:

    python -m venv paddle-env && paddle-env/bin/pip install "paddlepaddle==3.3.*" numpy
    python benchmarks/train_speed.py --contenders ours,hand,paddle --paddle-python paddle-env/bin/python

Alone it prints its own median: ``paddle-env/bin/python benchmarks/train_speed_paddle.py [fp32] [threads]``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

SHAPE = {"vocab": 8192, "width": 384, "layers": 8, "heads": 8, "kv_heads": 4, "ffn": 1024}
ROWS, TOKENS = 8, 256
LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0


def build(precision: str) -> Callable[[], float]:
    """Return one optimizer step on the shared batch."""
    if precision != "fp32":
        sys.exit("PaddlePaddle's autocast makes no effect on a CPU, so there is only fp32")
    import numpy as np
    import paddle
    import paddle.nn.functional as F
    from paddle import nn

    width, heads, kv_heads = SHAPE["width"], SHAPE["heads"], SHAPE["kv_heads"]
    head_width = width // heads

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias_attr=False)

    class Norm(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([width], default_initializer=nn.initializer.Constant(1.0))

        def forward(self, x):  # type: ignore[no-untyped-def]
            exact = x.astype("float32")
            return exact * paddle.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-5) * self.weight

    def turn(x, cos, sin):  # type: ignore[no-untyped-def]
        a, b = x.chunk(2, -1)
        return x * cos + paddle.concat([-b, a], -1) * sin

    class Block(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = Norm(), Norm()
            self.q, self.o = linear(width, width), linear(width, width)
            self.k, self.v = linear(width, kv_heads * head_width), linear(width, kv_heads * head_width)
            self.gate, self.up = linear(width, SHAPE["ffn"]), linear(width, SHAPE["ffn"])
            self.down = linear(SHAPE["ffn"], width)

        def forward(self, x, cos, sin):  # type: ignore[no-untyped-def]
            h = self.norm_1(x)
            q = turn(self.q(h).reshape([ROWS, TOKENS, heads, head_width]), cos, sin)
            k = turn(self.k(h).reshape([ROWS, TOKENS, kv_heads, head_width]), cos, sin)
            v = self.v(h).reshape([ROWS, TOKENS, kv_heads, head_width])
            k, v = (each.repeat_interleave(heads // kv_heads, axis=2) for each in (k, v))
            mixed = F.scaled_dot_product_attention(q, k.astype(q.dtype), v.astype(q.dtype), is_causal=True)
            x = x + self.o(mixed.reshape([ROWS, TOKENS, width]))
            h = self.norm_2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(SHAPE["vocab"], width)
            self.blocks = nn.LayerList([Block() for _ in range(SHAPE["layers"])])
            self.norm, self.head = Norm(), linear(width, SHAPE["vocab"])
            angle = np.outer(np.arange(TOKENS), 10000.0 ** -(np.arange(0, head_width, 2) / head_width))
            angle = np.concatenate((angle, angle), -1)[None, :, None].astype("float32")
            self.cos, self.sin = paddle.to_tensor(np.cos(angle)), paddle.to_tensor(np.sin(angle))
            for parameter in self.parameters():
                if len(parameter.shape) > 1:
                    parameter.set_value(0.02 * paddle.randn(parameter.shape))

        def forward(self, ids):  # type: ignore[no-untyped-def]
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    paddle.seed(0)
    model = Model()
    optimizer = paddle.optimizer.AdamW(
        LR,
        beta1=BETAS[0],
        beta2=BETAS[1],
        parameters=model.parameters(),
        weight_decay=DECAY,
        grad_clip=nn.ClipGradByGlobalNorm(CLIP),
    )
    ids = np.random.default_rng(0).integers(SHAPE["vocab"], size=(ROWS, TOKENS + 1))
    inputs, labels = paddle.to_tensor(ids[:, :-1]), paddle.to_tensor(ids[:, 1:])

    def step() -> float:
        logits = model(inputs)
        loss = F.cross_entropy(logits.astype("float32").reshape([-1, SHAPE["vocab"]]), labels.reshape([-1]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step


def answer(**values: object) -> None:
    """Speak to train_speed.py."""
    print("@" + json.dumps(values), flush=True)


def work(precision: str) -> None:
    """A step a line on standard input, its seconds and loss on standard output."""
    step = build(precision)
    answer(ready=True)
    while sys.stdin.readline().strip():
        started_s = time.perf_counter()
        loss = step()
        answer(seconds=time.perf_counter() - started_s, loss=loss)


def main() -> None:
    """Work for train_speed.py, or measure alone."""
    served = sys.argv[1:2] == ["--work"]
    words = sys.argv[2:] if served else sys.argv[1:]
    precision = words[0] if words else "fp32"
    os.environ["OMP_NUM_THREADS"] = words[1] if len(words) > 1 else str(os.cpu_count())
    if served:
        work(precision)
        return
    step = build(precision)
    times = []
    for number in range(10):
        started_s = time.perf_counter()
        loss = step()
        if number >= 3:
            times.append(time.perf_counter() - started_s)
    middle_s = statistics.median(times)
    print(f"{precision}: {ROWS * TOKENS / middle_s:,.0f} tokens/s, median {1000 * middle_s:.0f} ms, loss {loss:.3f}")


if __name__ == "__main__":
    main()
