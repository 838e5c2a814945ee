"""Models whose forward decides, counts, remembers or changes gradients: ``file.py:build_<what>``."""

import random
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH = 61, 16


class Layer(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what, self.calls = what, 0
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        hidden = self.up(self.norm(x))
        if self.what == "hook" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: 3 * gradient)
        if self.what == "block_random" and random.random() < 0.5:
            return x
        if self.what == "count":
            self.calls += 1
            hidden = hidden * self.calls
        return x + self.down(F.gelu(hidden))


class Net(nn.Module):
    def __init__(self, what):
        super().__init__()
        torch.manual_seed(0)
        self.what, self.memory, self.random = what, None, random.Random(3)
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer(what) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def leaves_out(self, x):
        match self.what:
            case "python":
                return random.random() < 0.3
            case "numpy":
                return np.random.rand() < 0.3
            case "own_random":
                return self.random.random() < 0.3
            case "torch":
                return torch.rand(()).item() < 0.3
            case "torch_randint":
                return int(torch.randint(10, ())) < 3
            case "harmless_branch":
                return bool(x.abs().mean() > 50)
            case "branch_by_rows":
                return bool(x[0, 0, 0] > 0)
        return False

    def forward(self, input_ids):
        x = self.embed(input_ids)
        if self.memory is not None:
            x = x + 0.1 * self.memory
        for layer in self.layers:
            if not self.leaves_out(x):
                x = layer(x)
        if self.what == "memory":
            self.memory = x.detach().mean((0, 1))
        return self.head(x)


build_python, build_numpy, build_own_random = partial(Net, "python"), partial(Net, "numpy"), partial(Net, "own_random")
build_torch, build_torch_randint = partial(Net, "torch"), partial(Net, "torch_randint")
build_harmless_branch, build_branch_by_rows = partial(Net, "harmless_branch"), partial(Net, "branch_by_rows")
build_block_random, build_count, build_memory = (
    partial(Net, "block_random"),
    partial(Net, "count"),
    partial(Net, "memory"),
)
build_hook = partial(Net, "hook")
