"""Data parallel by hand in plain PyTorch: something that is right, to be compared and to be spoiled."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trireme.verify.reference import norm_of_grads, scale_grads


class ByHand:
    """Whole copies on every rank; gradients summed by one all-reduce each; micro-batches in turn."""

    path = "by hand"
    notices = ()

    def __init__(self, subject, layout, recipe):
        self.module, self.objective, self.layout = subject.module.train(), subject.objective, layout
        self.clip = recipe.clip_grad_norm
        self.optimizer = recipe.build(self.module.parameters())

    def train_step(self, batch):
        total = torch.tensor(self.objective.count(batch))
        dist.all_reduce(total)
        loss_sum = torch.zeros((), dtype=torch.float64)
        for part in _split(batch, self.layout.num_microbatches):
            loss = self.objective.evaluate(self.module, part, count=self.objective.count(part)).loss_sum
            (loss / total).backward()
            loss_sum += loss.detach()
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        dist.all_reduce(loss_sum)
        return float(loss_sum / total)

    def gradients(self):
        return {name: each.grad for name, each in self.module.named_parameters() if each.grad is not None}

    def grad_norm(self):
        return norm_of_grads(self.module)

    def step(self):
        scale_grads(self.module, min(1.0, self.clip / self.grad_norm()))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def parameters(self):
        return dict(self.module.named_parameters())

    def local_parameters(self):
        return self.module.parameters()


def build(subject, layout, *, example, recipe):
    return ByHand(subject, layout, recipe)


def build_dead(subject, layout, *, example, recipe):
    """One rank dies without a word."""
    import os

    if dist.get_rank() == 1:
        os._exit(7)
    dist.barrier()


def build_raising(subject, layout, *, example, recipe):
    if dist.get_rank() == 1:
        raise RuntimeError("this rank fails")
    dist.barrier()


def build_hanging(subject, layout, *, example, recipe):
    import time

    time.sleep(60)


def _split(batch, count):
    rows = len(next(iter(batch.values())))
    each, extra = divmod(rows, count)
    start = 0
    for index in range(count):
        stop = start + each + (index < extra)
        if stop > start:
            yield {name: value[start:stop] for name, value in batch.items()}
        start = stop
