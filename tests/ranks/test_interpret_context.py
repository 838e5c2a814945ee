"""Sequences cut over ranks: every kind of attention equals one device, alone and inside tensor parallelism."""

import functools
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trireme.errors import LayoutError
from trireme.interpret import ContextBinding
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import context_check
import interpret_models
from interpret_models import VOCAB, WIDTH

_SINGLE_INSIDE = {"gemma3": 1e-7}
"""Its norms round to fp32 whatever the parameters are, so sums in another order show at that size."""

KINDS = ("allgather", "ring", "ulysses")


def _tokens(num_tokens=13, seqs=2):
    generator = torch.Generator().manual_seed(3)
    ids, labels = (torch.randint(VOCAB, (seqs, num_tokens), generator=generator) for _ in range(2))
    labels[0, :3] = -100
    return ids, labels


def _loss(labels, outputs):
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _check(name, *, num_tokens=13, extra=None, silent=True, loss=_loss, build=None, **options):
    ids, labels = _tokens(num_tokens)
    inputs = {"input_ids_BT" if name.startswith("decoder") else "input_ids": ids}
    if name in interpret_models.FAMILIES and name != "bert":
        inputs["use_cache"] = False
    if name == "t5":
        inputs = {"input_ids": ids[:, :-2], "labels": labels, "use_cache": False}
    inputs |= extra or {}
    model = build() if build is not None else interpret_models.build(name)
    worst, told, context, tensor = context_check.train(model, inputs, functools.partial(loss, labels), **options)
    assert worst[1] < _SINGLE_INSIDE.get(name, context_check.ERROR), (name, options, worst)
    assert not silent or not told, told
    return told, context, tensor


@on_ranks(2, 4, timeout_s=120)
@pytest.mark.parametrize("kind", KINDS)
def test_hand_written_models_equal_one_device(kind):
    for name in ("gpt", "decoder_2", "library_attention", "library_layer", "fused_groups"):
        _check(name, kind=kind)


@on_ranks(2, timeout_s=120)
def test_families_of_transformers_equal_one_device():
    for name in ("llama", "qwen3", "gpt2", "mistral", "opt", "bloom", "mixtral", "t5"):
        _check(name)
    for name in ("llama", "gpt2", "t5"):
        for kind in ("ring", "ulysses"):
            _check(name, kind=kind)


@on_ranks(2, timeout_s=120)
@pytest.mark.parametrize("name", ["alibi", "einsum", "multi_query", "wide_norm", "many_parts", "library_weights"])
def test_attention_written_out_equals_one_device(name):
    told, _, _ = _check(name)
    assert not told


@on_ranks(2, 4)
@pytest.mark.parametrize("num_tokens", [7, 15, 16])
def test_par_12_sequences_that_ranks_do_not_divide_equal_one_device(num_tokens):
    for kind in KINDS:
        _check("gpt", kind=kind, num_tokens=num_tokens)
        _check("gpt", kind=kind, num_tokens=num_tokens, balanced=False)


@on_ranks(2, 4, timeout_s=120)
def test_packed_documents_see_themselves_only():
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 4, [0] * 2 + [1] * 9 + [-1] * 2])
    places = torch.tensor([[*range(5), *range(4), *range(4)], [*range(2), *range(9), 0, 0]])
    for kind in KINDS:
        _check("decoder_2", kind=kind, extra={"document_ids_BT": documents, "position_ids_BT": places})
    # Without a mask, transformers finds the documents in the positions.
    _check("llama", extra={"position_ids": places})


@on_ranks(2)
def test_padding_masks_hide_the_same_keys():
    mask = torch.ones(2, 13, dtype=torch.int64)
    mask[0, :4], mask[1, 9:] = 0, 0
    for kind in KINDS:
        _check("bert", kind=kind, extra={"attention_mask": mask})
    _check("llama", kind="ring", extra={"attention_mask": mask.flip(1)})


def _gemma(**changes):
    import transformers

    config = transformers.Gemma3TextConfig(
        **interpret_models._SIZES, head_dim=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    )
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return transformers.Gemma3ForCausalLM(config).double()


@on_ranks(2, timeout_s=120)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_sliding_windows_equal_one_device(implementation):
    build = functools.partial(_gemma, _attn_implementation=implementation)
    for kind in KINDS if implementation == "sdpa" else ("allgather",):
        _check("gemma3", kind=kind, build=build, extra={"use_cache": False})


class Mixing(interpret_models.Stacked):
    """Something between embedding and head that mixes positions."""

    def __init__(self, mix):
        super().__init__(nn.Identity())
        self.mix = mix
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)
        self.classes = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, input_ids):
        return self.head(self.mix(self, self.embed(input_ids)))


def _shift(model, x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) + x


def _difference(model, x):
    return F.pad(x[:, 1:] - x[:, :-1], (0, 0, 0, 1))


def _causal_convolution(model, x):
    return model.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)


def _with_class_token(model, x):
    y = torch.cat([model.classes.expand(x.shape[0], -1, -1), x], 1)
    y = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    return y[:, 1:] + y[:, 0].unsqueeze(1)


def _statistics(model, x):
    z = torch.logsumexp(x, -1, keepdim=True) + x.topk(3, dim=-1).values.sum(-1, keepdim=True)
    return x * z + x.mean(1, keepdim=True) + x.max(1, keepdim=True).values


def _windows(model, x):
    B, _, D = x.shape
    return x[:, :12].reshape(B, 3, 4, D).cumsum(2).reshape(B, 12, D).sum(1, keepdim=True) + x


def _written(model, x):
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1]
    y[:, 0] = x[:, 2]
    z = torch.zeros_like(x)
    z[..., :4] = x[..., 4:8]
    z[:, :3] += 1.0
    return y + z


_MIXES = {
    "written": _written,
    "shift": _shift,
    "difference": _difference,
    "cumsum": lambda model, x: x.cumsum(1),
    "flip": lambda model, x: x.flip(1) * 2.0 + x.roll(2, 1),
    "convolution": _causal_convolution,
    "class token": _with_class_token,
    "statistics": _statistics,
    "windows": _windows,
    "token mixing": lambda model, x: (x.transpose(1, 2) @ torch.linspace(0, 1, 169).double().view(13, 13)).transpose(
        1, 2
    ),
    "last": lambda model, x: x + x[:, -1:] + x[:, -2].unsqueeze(1) + x[torch.arange(2), torch.tensor([5, 7])][:, None],
    "linear attention": lambda model, x: x @ (x.softmax(-1).transpose(1, 2) @ x),
    "dropout": lambda model, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3) + F.dropout(x, 0.2),
    "chunks": lambda model, x: torch.cat([part * (k + 1) for k, part in enumerate(x.chunk(3, 1))], 1),
}


def _seeded(mix, model, x):
    torch.manual_seed(11)
    return mix(model, x)


def _mixing(mix):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Mixing(functools.partial(_seeded, mix)).double()


_TELLS = {"written", "difference", "cumsum", "flip", "convolution", "statistics", "windows", "last", "chunks"}
"""Mixes that no rule keeps cut."""


@on_ranks(2, 4, timeout_s=120)
def test_what_mixes_positions_is_exact_and_tells_what_it_gathers():
    for name, mix in _MIXES.items():
        told, _, _ = _check(name, build=functools.partial(_mixing, mix), silent=False)
        assert bool(told) <= (name in _TELLS), (name, told)


def _losses(labels, outputs):
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    kept = (labels != -100).double()
    weights = torch.linspace(0.5, 1.5, VOCAB).double()
    shifted = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return (
        F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weights, label_smoothing=0.1)
        + (shifted * kept[:, 1:]).sum() / kept[:, 1:].sum()
        + F.cross_entropy(logits.flatten(0, 1), logits.detach().flatten(0, 1).softmax(-1))
        + 1e-2 * (torch.logsumexp(logits, -1).square() * kept).sum() / kept.sum()
        + F.nll_loss(logits.log_softmax(-1).flatten(0, 1), labels.flatten())
        + F.mse_loss(logits, torch.zeros_like(logits))
        + F.kl_div(logits.log_softmax(-1), torch.ones_like(logits) / VOCAB, reduction="batchmean")
        + logits[kept.bool()].abs().mean()
        + logits.std()
    )


@on_ranks(2)
def test_losses_over_tokens_equal_one_device():
    for balanced in (True, False):
        _check("gpt", loss=_losses, silent=False, balanced=balanced)


@on_ranks(2, timeout_s=120)
def test_a_library_loss_and_its_balance_term_equal_one_device():
    _, labels = _tokens()
    extra = {"labels": labels, "output_router_logits": True}
    _check("mixtral", extra=extra, silent=False, loss=lambda labels, outputs: outputs.loss)


@on_ranks(4, timeout_s=180)
def test_positions_are_cut_outside_of_tensor_parallelism():
    grid = context_check.Grid(2)
    for name in ("gpt", "decoder_2", "library_attention", "llama", "gpt2", "bert", "t5"):
        for kind in ("allgather", "ring") if name in ("gpt", "llama") else ("allgather",):
            _check(name, kind=kind, grid=grid, silent=False)
    _check("fused_groups", kind="ulysses", grid=grid)


@on_ranks(2)
def test_heads_that_ranks_do_not_divide_are_refused_by_name():
    class Three(nn.Module):
        def forward(self, x):
            q = x.unflatten(-1, (3, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q)

    context = ContextBinding(kind="ulysses")
    batch = context.batch({"x": torch.randn(2, 6, 12)})
    with pytest.raises(LayoutError, match=r"2 ranks whole heads, and 3"), context.active():
        Three()(**batch)


@on_ranks(2)
def test_batches_without_a_sequence_or_with_too_short_ones_are_refused():
    context = ContextBinding()
    with pytest.raises(LayoutError, match="pixel_values"):
        context.batch({"pixel_values": torch.randn(2, 3, 8, 8)})
    with pytest.raises(LayoutError, match="1 positions"):
        context.batch({"input_ids": torch.zeros(2, 1, dtype=torch.int64)})


@on_ranks(2)
def test_blocks_recomputed_in_backward_are_met_again():
    class Recomputed(interpret_models.Gpt):
        def forward(self, input_ids):
            x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False)
            return self.lm_head(self.ln_f(x))

    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return Recomputed().double()

    for kind in KINDS:
        _, count, _ = _check("recomputed", build=build, kind=kind)
        assert count.total_calls > 0


@on_ranks(2, 4)
def test_causal_work_is_equal_on_all_ranks():
    from trireme.interpret.sequence_split import balanced_split, local_ranges

    degree, length = dist.get_world_size(), 64
    split = balanced_split(length, degree)
    seen = [
        sum(position + 1 for run in local_ranges(split, rank) for position in range(run.start, run.start + run.length))
        for rank in range(degree)
    ]
    assert len(set(seen)) == 1


@on_ranks(2)
@pytest.mark.parametrize("lost", ["gather", "sum"])
def test_a_lost_exchange_is_seen_by_this_comparison(lost):
    from trireme.interpret import sequence_collective

    if lost == "sum":
        sequence_collective._SumParts.forward = staticmethod(lambda ctx, tensor, line: tensor.clone())
        sequence_collective._SumParts.backward = staticmethod(lambda ctx, grad: (grad, None))
    else:
        scattered = sequence_collective.reduce_scatter
        sequence_collective.reduce_scatter = lambda tensor, dim, split, line, where: (
            sequence_collective.take_positions(tensor, dim, split, line.rank)
            if where == "backward"
            else scattered(tensor, dim, split, line, where=where)
        )
    ids, labels = _tokens()
    worst, *_ = context_check.train(interpret_models.build("gpt"), {"input_ids": ids}, functools.partial(_loss, labels))
    assert worst[1] > 1e-4
