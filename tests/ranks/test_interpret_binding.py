"""One binding for the life of a module: entered anywhere, marked again, remembering nothing too long."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from trireme.interpret import bind, plan_tensor_parallel, shard_of, shard_parameters
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import interpret_models

_ERROR = 1e-10
"""fp64, tiny sizes."""


def _loss(logits, ids):
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def _bound(name="gpt"):
    model, ids = interpret_models.build(name), torch.arange(16).view(2, 8)
    plan = plan_tensor_parallel(model, {"input_ids": ids}, degree=2, loss_fn=lambda y: _loss(y, ids))
    expected = _loss(model(ids), ids)
    expected.backward()
    grads = {key: plan.parameters[key].take(each.grad, rank=dist.get_rank()) for key, each in model.named_parameters()}
    model.zero_grad()
    shard_parameters(model, plan, rank=dist.get_rank())
    return model, ids, bind(model, plan), expected.item(), grads


def _check(model, loss, expected, grads):
    assert abs(loss.item() - expected) < _ERROR
    assert all((each.grad - grads[key]).abs().max() < _ERROR for key, each in model.named_parameters())


@on_ranks(2)
def test_blocks_enter_again_inside_the_root_and_in_recomputation_outside_of_it():
    model, ids, binding, expected, grads = _bound()
    for block in model.h:
        forward = block.forward

        def entered(x, forward=forward):
            with binding.active():
                return forward(x)

        block.forward = lambda x, entered=entered: checkpoint(entered, x, use_reentrant=False)
    with binding.active():
        loss = _loss(model(ids), ids)
        assert binding.count.calls["all_reduce forward"] == 2 * 2 + 1 + 2
    loss.backward()
    _check(model, loss, expected, grads)


@on_ranks(2)
def test_backward_inside_the_context_recomputes_inside_it():
    model, ids, binding, expected, grads = _bound()
    for block in model.h:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    with binding.active():
        loss = _loss(model(ids), ids)
        loss.backward()
    _check(model, loss, expected, grads)


@on_ranks(2)
def test_par_09_new_parameter_objects_are_marked_again_by_path():
    model, ids, binding, expected, grads = _bound()
    block = model.h[1]
    for owner in block.modules():
        owner._parameters.update(
            {key: nn.Parameter(each.detach()) for key, each in owner._parameters.items() if each is not None}
        )
    assert shard_of(block.mlp[0].weight) is None
    binding.mark("h.1", block)
    with binding.active():
        loss = _loss(model(ids), ids)
    loss.backward()
    _check(model, loss, expected, grads)


@on_ranks(2)
def test_outputs_are_made_whole_on_demand():
    model, ids, binding, _, _ = _bound()
    whole = interpret_models.build("gpt")(ids)
    with binding.active():
        outputs = {"logits": model(ids)}
    assert (binding.whole(outputs)["logits"] - whole).abs().max() < _ERROR


@on_ranks(2)
def test_nothing_is_remembered_past_the_outermost_exit_or_a_recomputed_block():
    model, ids, binding, _, _ = _bound()
    with binding.active():
        model(ids)
        known = binding.interpreter.reuse.mark()
        assert known > 0
        with binding.active():
            model(ids)
        assert binding.interpreter.reuse.mark() == known
    assert binding.interpreter.reuse.mark() == 0
