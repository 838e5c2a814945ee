"""The reference decoder against naive formulas, in packed rows, with its cache, under every precision."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.errors import ModelError
from trireme.graph import DecoderShape
from trireme.models import Decoder, build_decoder, check_isolation, mixed_precision, set_dropout_clock
from trireme.models.attention import attend, attend_to_cache
from trireme.models.precision import prefers_host_kernel
from trireme.models.rms_norm import RMSNorm, rms_norm
from trireme.models.rotary import RotaryTable, rotate
from trireme.models.visibility import Visibility

TINY = DecoderShape(vocab_size=97, num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=64, max_seq_len=256)
FP32 = 2e-5
"""Absolute, on logits of order 1: two orders of summation in fp32."""
FP64 = 1e-11
TABLE = 1e-4
"""Absolute, on logits of order 10: rotary tables are rounded to fp32, and weights here amplify it."""
BF16 = 4e-2
"""Absolute, on logits of order 1: 8 bits of mantissa through four layers."""
PHASE_RAD = 1e-2


@pytest.fixture
def decoder() -> Decoder:
    return build_decoder(TINY, seed=7)


def naive_logits(decoder: Decoder, ids_BT: Tensor) -> Tensor:
    """The same model, one head and one position at a time where it matters, from the papers' formulas."""
    shape, weights = decoder.shape, decoder.state_dict()
    x = weights["embed_tokens.weight"][ids_BT]
    T, K = ids_BT.shape[1], shape.head_width
    angle = torch.outer(torch.arange(T).double(), shape.rope_theta ** (-torch.arange(0, K, 2).double() / K))
    cos, sin = (torch.cat((part, part), -1).to(x.dtype) for part in (angle.cos(), angle.sin()))

    def norm(value: Tensor, name: str) -> Tensor:
        return value / (value.pow(2).mean(-1, keepdim=True) + shape.norm_eps).sqrt() * weights[f"{name}.weight"]

    def turn(value: Tensor) -> Tensor:
        left, right = value.chunk(2, -1)
        return value * cos + torch.cat((-right, left), -1) * sin

    for layer in range(shape.num_layers):
        at = f"layers.{layer}"
        read = norm(x, f"{at}.input_layernorm")
        project = {name: read @ weights[f"{at}.self_attn.{name}_proj.weight"].T for name in "qkv"}
        heads = []
        for head in range(shape.num_heads):
            group = head * shape.num_kv_heads // shape.num_heads
            q = turn(project["q"][..., head * K : (head + 1) * K])
            k = turn(project["k"][..., group * K : (group + 1) * K])
            v = project["v"][..., group * K : (group + 1) * K]
            score = (q @ k.transpose(-1, -2) / math.sqrt(K)).masked_fill(
                torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf
            )
            heads.append(score.softmax(-1) @ v)
        x = x + torch.cat(heads, -1) @ weights[f"{at}.self_attn.o_proj.weight"].T
        read = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (read @ weights[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
    head_weight = weights.get("lm_head.weight", weights["embed_tokens.weight"])
    return norm(x, "norm") @ head_weight.T


def exact_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the paths that accelerators and compilers take."""
    for module in ("rms_norm", "rotary", "attention"):
        monkeypatch.setattr(f"trireme.models.{module}.prefers_host_kernel", lambda _x: False)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("host", [True, False])
def test_logits_equal_the_naive_formula(tied: bool, host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not host:
        exact_formulas(monkeypatch)
    decoder = build_decoder(replace(TINY, tie_embeddings=tied), seed=3).double()
    for parameter in decoder.parameters():
        parameter.data.mul_(5)  # so that softmax and gates leave their linear range
    ids = torch.randint(97, (2, 150), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(decoder(ids), naive_logits(decoder, ids), atol=TABLE)


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_both_paths_agree(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(97, (3, 130), generator=torch.Generator().manual_seed(1))
    documents = torch.tensor([[0] * 50 + [1] * 77 + [-1] * 3, [0] * 130, [0] * 9 + [1] + [2] * 120])
    gradients = []
    for host in (True, False):
        with monkeypatch.context() as patch:
            if not host:
                exact_formulas(patch)
            decoder = build_decoder(TINY, seed=7).double()
            decoder(ids, document_ids_BT=documents if packed else None).square().mean().backward()
            gradients.append({name: value.grad for name, value in decoder.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-9, atol=FP64), name


def test_attention_passes_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 70, heads, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (4, 2, 2)
    )
    documents = torch.tensor([[0] * 30 + [1] * 40, [0] * 66 + [-1] * 4])
    for visibility in (Visibility(None), Visibility(documents)):
        assert torch.autograd.gradcheck(lambda q, k, v, see=visibility: attend(q, k, v, see), (q, k, v), fast_mode=True)


def test_norm_and_rotation_pass_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    norm = RMSNorm(8, eps=1e-5).double()
    weight = torch.randn(8, dtype=torch.float64, generator=generator, requires_grad=True)

    def normalise(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    assert prefers_host_kernel(x)
    assert torch.autograd.gradcheck(normalise, (x, weight))
    assert torch.allclose(normalise(x, weight), rms_norm(x, weight, eps=1e-5), atol=FP64)
    table = RotaryTable(head_width=8, max_seq_len=5, theta=100.0).first(5, device=x.device).double()
    assert torch.autograd.gradcheck(lambda x: rotate(x, table), (x,))


def test_dat_12_a_packed_document_has_the_logits_of_the_document_alone(decoder: Decoder) -> None:
    assert check_isolation(decoder, vocab_size=97) < FP32
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 63, 64, 65, 40]
    documents = [torch.randint(97, (length,), generator=generator) for length in lengths]
    packed = decoder(
        torch.cat(documents)[None],
        torch.cat([torch.arange(length) for length in lengths])[None],
        torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))[None],
    )
    alone = torch.cat([decoder(document[None]) for document in documents], dim=1)
    assert torch.allclose(packed, alone, atol=FP32)


@pytest.mark.parametrize("host", [True, False])
def test_padding_sees_itself_only_and_stays_finite(
    decoder: Decoder, host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not host:
        exact_formulas(monkeypatch)
    ids = torch.randint(97, (2, 20))
    documents = torch.tensor([[0] * 12 + [-1] * 8, [-1] * 20])
    logits = decoder(ids, document_ids_BT=documents)
    assert logits.isfinite().all()
    changed = ids.clone()
    changed[0, 13] = (ids[0, 13] + 1) % 97
    difference = (decoder(changed, document_ids_BT=documents) - logits).abs().amax(-1)
    assert difference[0, 13] > 0
    assert difference.sum() == difference[0, 13]
    logits.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in decoder.parameters())


def test_the_dense_mask_is_not_made_where_a_row_is_one_document(decoder: Decoder) -> None:
    see = Visibility(torch.zeros(2, 130, dtype=torch.int64))
    assert see.one_document_a_row
    assert [block.key for block in see.blocks(130)] == [0, 0, 0]
    assert "dense_mask" not in vars(see)
    short = Visibility(torch.arange(130).div(10, rounding_mode="floor")[None])
    assert [block.key for block in short.blocks(130)] == [0, 60, 120]
    assert short.boundaries.tolist() == list(range(0, 131, 10))
    assert short.longest_document == 10


def test_cached_logits_equal_uncached(decoder: Decoder) -> None:
    ids = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(2))
    whole = decoder(ids)
    cache = decoder.new_cache()
    parts = [decoder(part, cache=cache) for part in ids.split([17, 1, 1, 20, 1], dim=1)]
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=FP32)
    assert cache.num_tokens == 40


def test_attention_to_a_cache_equals_attention_to_the_row() -> None:
    q, k, v = torch.randn(1, 9, 4, 8), torch.randn(1, 9, 2, 8), torch.randn(1, 9, 2, 8)
    whole = attend(q, k, v, Visibility(None))
    assert torch.allclose(attend_to_cache(q[:, 6:], k, v), whole[:, 6:], atol=FP32)


def test_a_row_longer_than_the_context_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ModelError, match=r"257.*256"):
        decoder(torch.zeros(1, 257, dtype=torch.int64))


@pytest.mark.parametrize("policy", ["fp32", "autocast", "pure"])
def test_amp_08_rotary_tables_stay_exact_under_every_policy(policy: str) -> None:
    shape = replace(TINY, max_seq_len=4096)
    decoder = build_decoder(shape, seed=1)
    if policy == "pure":
        decoder = decoder.to(torch.bfloat16)
    with mixed_precision(decoder, torch.bfloat16 if policy == "autocast" else None):
        decoder(torch.zeros(1, 4096, dtype=torch.int64))
        table = decoder.rotary.table(torch.device("cpu")).double()
    exponent = torch.arange(0, 8, 2, dtype=torch.float64) / 8
    phase = torch.outer(torch.arange(4096, dtype=torch.float64), 10000.0**-exponent)
    error = torch.atan2(table[1, :, 4:], table[0, :, :4]) - phase
    assert (torch.remainder(error + math.pi, 2 * math.pi) - math.pi).abs().max() < PHASE_RAD
    assert copy.deepcopy(decoder).to(torch.float16).rotary.table(torch.device("cpu")).dtype == torch.float32


def test_amp_09_rotation_in_bf16_differs_from_fp32_only_by_rounding() -> None:
    shape = replace(TINY, max_seq_len=2048, rope_theta=500000.0)
    decoder = build_decoder(shape, seed=1)
    ids = torch.randint(97, (1, 2048), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = decoder(ids)
        with mixed_precision(decoder, torch.bfloat16):
            mixed = decoder(ids)
    difference = float((mixed.float() - exact).abs().max() / exact.std())
    print(f"largest logit difference, bf16 against fp32: {difference:.4f} of the spread")  # noqa: T201
    assert difference < 10 * BF16
    table = decoder.rotary.table(torch.device("cpu"))[:, 1500:1600].unsqueeze(-2)
    x = torch.randn(1, 100, 4, 8)
    assert torch.equal(rotate(x.bfloat16(), table), rotate(x.bfloat16().float(), table).bfloat16())


def test_mixed_precision_keeps_the_residual_stream_and_gradients_in_fp32(decoder: Decoder) -> None:
    ids = torch.randint(97, (2, 30))
    streams: list[torch.dtype] = []
    decoder.layers[1].register_forward_hook(lambda _m, _i, out: streams.append(out.dtype))
    with mixed_precision(decoder, torch.bfloat16):
        logits = decoder(ids)
        logits.float().square().mean().backward()
    assert logits.dtype == torch.bfloat16
    assert streams == [torch.float32]
    assert {parameter.grad.dtype for parameter in decoder.parameters() if parameter.grad is not None} == {torch.float32}


def test_mixed_precision_gradients_are_those_of_fp32_up_to_rounding(decoder: Decoder) -> None:
    ids = torch.randint(97, (4, 60), generator=torch.Generator().manual_seed(3))

    def gradient(dtype: torch.dtype | None) -> Tensor:
        decoder.zero_grad()
        with mixed_precision(decoder, dtype):
            F.cross_entropy(decoder(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
        return torch.cat([parameter.grad.flatten() for parameter in decoder.parameters() if parameter.grad is not None])

    exact, mixed = gradient(None), gradient(torch.bfloat16)
    assert float((exact - mixed).norm() / exact.norm()) < BF16


def test_weights_are_cast_once_for_all_micro_batches(decoder: Decoder) -> None:
    ids = torch.randint(97, (2, 16))
    casts: list[int] = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.ops.aten._to_copy.default and args[0].shape == (97, 32):
                casts.append((kwargs or {}).get("dtype") == torch.bfloat16)
            return function(*args, **(kwargs or {}))

    with Count(), mixed_precision(decoder, torch.bfloat16):
        for _ in range(3):
            decoder(ids).float().sum().backward()
    assert sum(casts) == 1


def test_dropout_depends_on_seed_site_step_and_global_row_only() -> None:
    decoder = build_decoder(replace(TINY, dropout=0.5), seed=11).train()
    ids = torch.randint(97, (4, 12), generator=torch.Generator().manual_seed(0))
    set_dropout_clock(decoder, step=3)
    whole = decoder(ids)
    assert torch.equal(decoder(ids), whole)
    set_dropout_clock(decoder, step=3, first_row=2)
    assert torch.allclose(decoder(ids[2:]), whole[2:], atol=FP32)
    set_dropout_clock(decoder, step=4)
    assert not torch.allclose(decoder(ids), whole)
    again = build_decoder(replace(TINY, dropout=0.5), seed=12).train()
    again.load_state_dict(decoder.state_dict())
    set_dropout_clock(again, step=3)
    assert not torch.allclose(again(ids), whole)
    assert torch.equal(decoder.eval()(ids), build_decoder(TINY, seed=11)(ids))


def test_dropout_drops_the_asked_share_and_keeps_the_mean() -> None:
    from trireme.models import CountedDropout, DropoutClock

    dropout = CountedDropout(0.2, site="here", clock=DropoutClock(seed=1)).train()
    dropped = dropout(torch.ones(64, 32, 32))
    assert abs(float((dropped == 0).float().mean()) - 0.2) < 0.005
    assert abs(float(dropped.mean()) - 1.0) < 0.007


def test_the_decoder_compiles_to_the_plain_formulas(decoder: Decoder) -> None:
    exported = torch.export.export(decoder.eval(), (torch.zeros(1, 16, dtype=torch.int64),))
    ids = torch.randint(97, (1, 16))
    assert torch.allclose(exported.module()(ids), decoder(ids), atol=FP32)
