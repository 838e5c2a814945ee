"""Train a model with its sequence cut over ranks, its parameters too if asked, and compare it with one device."""

import copy
import functools
import warnings

import torch
import torch.distributed as dist

from trireme.interpret import CollectiveCount, ContextBinding, bind, plan_tensor_parallel, shard_parameters

ERROR = 1e-9
"""fp64: honest differences come from the order of sums and stay below 1e-12 at these sizes; bugs don't."""

STEPS, LR = 2, 0.1


class Grid:
    """This rank's place and groups; tensor parallel ranks are neighbours."""

    def __init__(self, tensor_degree):
        self.tensor_degree = tensor_degree
        rank, world = dist.get_rank(), dist.get_world_size()
        self.context_degree = world // tensor_degree
        for first in range(0, world, tensor_degree):
            ranks = list(range(first, first + tensor_degree))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.tensor_group, self.tensor_rank = group, rank - first
        for first in range(tensor_degree):
            ranks = list(range(first, world, tensor_degree))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.context_group = group


def named(model):
    return list(model.named_parameters(remove_duplicate=False))


def on_one_device(model, inputs, loss_fn):
    """Losses, gradients of the first step and parameters after the last."""
    model, losses, grads = copy.deepcopy(model), [], {}
    for step in range(STEPS):
        model.zero_grad()
        loss = loss_fn(model(**inputs))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            grads = {name: value.grad.clone() for name, value in named(model) if value.grad is not None}
        descend(model)
    return losses, grads, {name: value.detach() for name, value in named(model)}


def descend(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=LR)


def worst_error(found, expected):
    """Largest difference, and where."""
    errors = {name: (found[name] - expected[name]).abs().max().item() for name in expected}
    return max(errors.items(), key=lambda item: item[1])


def train(model, inputs, loss_fn, *, kind="allgather", grid=None, sequence_parallel=False, balanced=True):
    """Compare two steps with one device; returns the largest error, its name, what was told, and the counts."""
    grid = grid or Grid(1)
    losses, grads, after = on_one_device(model, inputs, loss_fn)
    model, told, count = copy.deepcopy(model), [], CollectiveCount()
    tensor, share = _tensor_parallel(model, inputs, loss_fn, grid, sequence_parallel, told, count)
    context = ContextBinding(
        grid.context_group, kind=kind, balanced=balanced, notice=told.append, count=CollectiveCount()
    )
    worst = ("loss", 0.0)
    for step in range(STEPS):
        model.zero_grad()
        batch = context.batch(inputs)
        with context.active(), tensor.active():
            loss = loss_fn(model(**batch))
        context.part(loss).backward()
        worst = max(worst, (f"loss {step}", abs(loss.item() - losses[step])), key=lambda item: item[1])
        sum_grads(model, grads, grid, share)
        if step == 0:
            found = {name: value.grad for name, value in named(model) if value.grad is not None}
            assert set(found) == set(grads), set(found) ^ set(grads)
            worst = max(worst, worst_error(found, {n: share(n, g) for n, g in grads.items()}), key=lambda item: item[1])
        descend(model)
    found = {name: value.detach() for name, value in named(model)}
    worst = max(worst, worst_error(found, {n: share(n, g) for n, g in after.items()}), key=lambda item: item[1])
    return worst, told, context.count, count


def sum_grads(model, expected, grid, share):
    """Sum over the sequence's ranks; one whose positions read nothing of a parameter counts as zero."""
    names = {id(value): name for name, value in reversed(named(model))}
    for parameter in model.parameters():
        if names[id(parameter)] not in expected and parameter.grad is None:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=grid.context_group)


class _Nothing:
    def active(self):
        import contextlib

        return contextlib.nullcontext()


def _tensor_parallel(model, inputs, loss_fn, grid, sequence_parallel, told, count):
    if grid.tensor_degree == 1:
        return _Nothing(), lambda name, tensor: tensor
    options = {"sequence_parallel": True} if sequence_parallel else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_tensor_parallel(
            copy.deepcopy(model), dict(inputs), degree=grid.tensor_degree, loss_fn=loss_fn, **options
        )
    assert plan.tokens_stopped is None, plan.tokens_stopped
    shard_parameters(model, plan, rank=grid.tensor_rank)
    bound = bind(model, plan, grid.tensor_group, notice=told.append, count=count)
    return bound, functools.partial(_share, plan, grid.tensor_rank)


def _share(plan, rank, name, tensor):
    return plan.parameters[name].take(tensor, rank=rank)
