"""Compressed sums: the same on all ranks, nothing lost, bytes counted as sent."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trireme.parallel import replicate
from trireme.parallel.codec import Bf16, Fp16, Int8, TopK
from trireme.parallel.coded import CodedSum
from trireme.parallel.feedback import Feedback
from trireme.parallel.hierarchy import LayeredSum
from trireme.parallel.link import Link
from trireme.parallel.power_sgd import LowRankSum
from trireme.parallel.wire import PlainSum, Wire
from trireme.testing.ranks import on_ranks

_EXACT_FP64 = 1e-12
"""Sums of a few dozen fp64 terms; a residual that is lost is off by its own size."""

METHODS = ("bf16", "fp16", "int8", "topk", "powersgd")
_CODECS = {"bf16": Bf16, "fp16": Fp16, "int8": Int8, "topk": lambda: TopK(0.05)}


def _wire(method, *, warmup_steps=0):
    link, feedback = Link(dist.group.WORLD), Feedback()
    if method == "powersgd":
        way = LowRankSum(link, rank=2, feedback=feedback, scope="dense", warmup_steps=warmup_steps)
    else:
        way = CodedSum(link, _CODECS[method](), feedback=feedback, scope="dense", warmup_steps=warmup_steps)
    wire = Wire(way, links=[link], plain=PlainSum(link), device=torch.device("cpu"))
    return wire, feedback


class _Net(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.norm = nn.LayerNorm(24)
        self.to(dtype)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return self.norm(x)


def _gradients(module, sync, *, step):
    draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
    x = torch.randn(8, 24, generator=draw, dtype=torch.float64)
    sync.start_step(1)
    sync.before_backward(0, is_last=True)
    (module(x) * torch.randn(8, 24, generator=draw, dtype=torch.float64)).sum().backward()
    own = {name: each.grad.clone() for name, each in module.named_parameters()} if sync is None else None
    sync.after_backward(0, is_last=True)
    sync.finish()
    return own


def _truth(module, *, step):
    total = {name: torch.zeros_like(each) for name, each in module.named_parameters()}
    for rank in range(dist.get_world_size()):
        draw = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, 24, generator=draw, dtype=torch.float64)
        loss = (module(x) * torch.randn(8, 24, generator=draw, dtype=torch.float64)).sum()
        for (name, _), grad in zip(
            module.named_parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True
        ):
            total[name] += grad
    return total


def _left(feedback, sync, name):
    """Give all that ranks keep of one parameter's gradient."""
    for number, bucket in enumerate(sync._buckets):
        if name in bucket.names:
            view = bucket.views[bucket.names.index(name)]
            sent = feedback.get(f"dense/{number}/sent").flatten()
            own = sent.as_strided(view.shape, view.stride(), view.storage_offset()).clone()
            dist.all_reduce(own)
            summed = feedback.get(f"dense/{number}/summed")
            if summed is not None:
                whole = [torch.empty_like(summed) for _ in range(dist.get_world_size())]
                dist.all_gather(whole, summed.contiguous())
                flat = torch.cat([part.flatten() for part in whole])
                own += flat.as_strided(view.shape, view.stride(), view.storage_offset())
            return own
    raise KeyError(name)


@pytest.mark.parametrize("method", METHODS)
@on_ranks(3)
def test_error_feedback_loses_nothing_and_all_ranks_get_the_same(method):
    """Over any number of steps, what was sent and what is left add up to the gradients."""
    module, (wire, feedback) = _Net(), _wire(method)
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=3000, exchange=wire)
    sent = {name: torch.zeros_like(each) for name, each in module.named_parameters()}
    true = {name: torch.zeros_like(each) for name, each in module.named_parameters()}
    for step in range(4):
        _gradients(module, sync, step=step)
        for name, each in module.named_parameters():
            sent[name] += each.grad
            mine = each.grad.clone()
            dist.broadcast(mine, src=0)
            assert torch.equal(mine, each.grad), name
            each.grad = None
        for name, grad in _truth(module, step=step).items():
            true[name] += grad
        feedback.settle(is_updated=True)
    is_rough = 0.0
    for name, each in true.items():
        left = _left(feedback, sync, name)
        assert (sent[name] + left - each).abs().max() <= _EXACT_FP64 * (1 + each.abs().max()), name
        is_rough = max(is_rough, float(left.abs().max()))
    assert is_rough > 0, "a code that loses nothing proves nothing"
    wire.close()


@on_ranks(2)
def test_a_skipped_step_leaves_the_feedback_as_it_was():
    module, (wire, feedback) = _Net(), _wire("int8")
    sync = replicate(module, group=dist.group.WORLD, exchange=wire)
    _gradients(module, sync, step=0)
    feedback.settle(is_updated=True)
    before = {name: each.clone() for name, each in feedback.tensors().items()}
    for each in module.parameters():
        each.grad = None
    _gradients(module, sync, step=1)
    feedback.settle(is_updated=False)
    assert feedback.num_steps == 1
    assert all(torch.equal(each, before[name]) for name, each in feedback.tensors().items())
    wire.close()


@pytest.mark.parametrize(("method", "most"), [("bf16", 0.26), ("fp16", 0.26), ("int8", 0.14), ("topk", 0.05)])
@on_ranks(2)
def test_bytes_on_the_wire_are_those_of_the_code(method, most):
    """Against fp64, of which these are a quarter, an eighth and less; padding and scales included."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(2))).double()
    wire, _ = _wire(method)
    plain, coded = replicate(module, group=dist.group.WORLD), replicate(module, group=dist.group.WORLD, exchange=wire)
    sent = []
    for sync in (plain, coded):
        for _ in range(2):
            sync.start_step(1)
            sync.before_backward(0, is_last=True)
            module(torch.ones(2, 256, dtype=torch.float64)).sum().backward()
            sync.after_backward(0, is_last=True)
            sync.finish()
        sync.close()
        sent.append(sync.traffic.sent_bytes)
        for each in module.parameters():
            each.grad = None
    assert 0 < sent[1] <= most * sent[0]
    wire.close()


@pytest.mark.parametrize("codec", [Bf16(), Fp16(), Int8(), TopK(0.01)], ids=lambda each: type(each).__name__)
def test_what_is_not_finite_stays_so_and_nothing_becomes_something(codec):
    blocks = torch.zeros(3, codec.block)
    blocks[1, 5], blocks[2, 7] = torch.inf, torch.nan
    back = codec.decode(codec.encode(blocks), dtype=torch.float32)
    assert torch.equal(back[0], blocks[0])
    assert not torch.isfinite(back[1]).all()
    assert not torch.isfinite(back[2]).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e6, 1e30])
@pytest.mark.parametrize(("codec", "error"), [(Bf16(), 2**-8), (Fp16(), 2**-10), (Int8(), 0.5 / 126)])
def test_codes_keep_their_precision_at_any_magnitude(codec, error, scale):
    blocks = torch.randn(4, codec.block, generator=torch.Generator().manual_seed(1)) * scale
    back = codec.decode(codec.encode(blocks), dtype=torch.float32)
    largest = blocks.abs().amax(1, keepdim=True)
    assert ((back - blocks).abs() / largest).max() <= error


@on_ranks(4)
def test_two_layers_give_the_flat_sum_and_send_less_between_nodes():
    """Nodes of two ranks: the gradient leaves a node 2 x in all instead of 3 x as around a flat ring."""
    rank = dist.get_rank()
    inside, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    nodes = [0, 0, 1, 1]
    near, far = Link(inside, nodes=[rank // 2] * 2), Link(across, nodes=[0, 1])
    flat = Link(dist.group.WORLD, nodes=nodes)
    device = torch.device("cpu")
    layered = Wire(LayeredSum(near, PlainSum(far)), links=[near, far], device=device)
    ring = Wire(PlainSum(flat), links=[flat], device=device)
    gradients, crossing = [], []
    for wire in (ring, layered):
        module = _Net()
        sync = replicate(module, group=dist.group.WORLD, bucket_bytes=3000, exchange=wire)
        for _ in range(2):
            for each in module.parameters():
                each.grad = None
            _gradients(module, sync, step=3)
        gradients.append([each.grad for each in module.parameters()])
        total = torch.tensor(sync.traffic.crossing_bytes)
        dist.all_reduce(total)
        crossing.append(int(total))
        wire.close()
    assert all((one - two).abs().max() <= _EXACT_FP64 * 100 for one, two in zip(*gradients, strict=True))
    assert crossing[1] / crossing[0] == pytest.approx(2 / 3, rel=0.02)


@on_ranks(2)
def test_an_error_on_the_wire_reaches_whoever_waits():
    class _Broken:
        block = multiple = 1

        def sum(self, bucket):
            raise RuntimeError("cut off")

    wire = Wire(_Broken(), links=[], device=torch.device("cpu"))
    sync = replicate(_Net(), group=dist.group.WORLD, exchange=wire)
    module = sync.parameters
    assert module
    sync.start_step(1)
    with pytest.raises(RuntimeError, match="cut off"):
        sync.finish()
    wire.close()
