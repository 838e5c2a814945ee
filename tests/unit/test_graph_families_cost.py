"""FLOPs and bytes kept for backward of the torch-free graph against torch's own counts."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.family_models import MEASURED, NO_SDPA, SEQ_LEN, SEQS, TARGET_LEN, Sizes, Tiny, tiny_model
from trireme.errors import ModelError
from trireme.graph import (
    PRESETS,
    AttentionCount,
    AttentionShape,
    DecoderNumbers,
    Kernels,
    Load,
    MicroBatch,
    ModelGraph,
    count_model_flops,
    count_model_params,
    estimate_cache_bytes,
    estimate_saved_bytes,
    find_model,
    read_config,
    read_numbers,
    read_shape,
)

KEPT_TOLERANCE = 0.01
"""Counters, scales of a few bytes, and LayerNorm statistics, which a CPU keeps in 16 bits."""


def batch_of(name: str) -> MicroBatch:
    if name.startswith("t5"):
        return MicroBatch(seqs=SEQS, seq_len=TARGET_LEN, source_len=SEQ_LEN)
    return MicroBatch(seqs=SEQS, seq_len=SEQ_LEN)


def build(tiny: Tiny, *, attention: str) -> Any:
    import torch

    torch.manual_seed(0)
    tiny.config._attn_implementation = attention
    return tiny.model_class(tiny.config).train()


@pytest.mark.parametrize("name", MEASURED)
def test_flops_equal_those_of_the_flop_counter_forward_and_backward(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    tiny = tiny_model(name, Sizes())
    # Grouped products and fused attention count as zero there: experts one by one, attention written out.
    tiny.config._experts_implementation = "eager"
    model = build(tiny, attention="eager")
    with FlopCounterMode(display=False) as counter:
        logits = model(**tiny.inputs()).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    flops = count_model_flops(read_config(tiny.values()), batch_of(name), count="unmasked")
    assert flops.forward == forward
    assert flops.training == counter.get_total_flops()


def kept_bytes(model: Any, inputs: dict[str, Any], *, casts: Any = None) -> int:
    """Bytes of distinct storages that autograd keeps, without parameters and their casts to ``casts``."""
    import torch

    weights = {param.untyped_storage().data_ptr() for param in model.parameters()}
    shapes = {tuple(param.shape) for param in model.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    storages: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)  # else a freed storage's address would be met again
        storage = tensor.untyped_storage()
        is_cast = tensor.dtype == casts and tuple(tensor.shape) in shapes
        if storage.data_ptr() not in weights and not is_cast:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**inputs)
    return sum(storages.values())


@pytest.mark.parametrize("dtype_bytes", [4, 2])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MEASURED)
def test_bytes_kept_for_backward_equal_those_that_autograd_keeps(name: str, attention: str, dtype_bytes: int) -> None:
    import torch

    if attention == "sdpa" and name in NO_SDPA:
        pytest.skip("transformers runs it with eager attention only")
    tiny = tiny_model(name, Sizes())
    dtype = {4: torch.float32, 2: torch.bfloat16}[dtype_bytes]
    inputs = {key: _cast(value, dtype) for key, value in tiny.inputs().items()}
    kept = kept_bytes(build(tiny, attention=attention).to(dtype), inputs)
    kernels = Kernels(attention=attention, dtype_bytes=dtype_bytes)  # type: ignore[arg-type]
    estimate = estimate_saved_bytes(read_config(tiny.values()), batch_of(name), kernels)
    assert estimate == pytest.approx(kept, rel=KEPT_TOLERANCE)


def _cast(value: Any, dtype: Any) -> Any:
    return value.to(dtype) if hasattr(value, "is_floating_point") and value.is_floating_point() else value


AUTOCAST_TOLERANCE = 0.03
"""A class token's row is cast alone, and a router's weight by autocast instead of by the model."""


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [name for name in MEASURED if not name.startswith("t5")])
def test_bytes_kept_under_autocast_equal_those_that_autograd_keeps(name: str, attention: str) -> None:
    import torch

    if attention == "sdpa" and name in NO_SDPA:
        pytest.skip("transformers runs it with eager attention only")
    if attention == "eager" and name == "bert":
        pytest.skip("a CPU's autocast leaves its softmax in 16 bits, an accelerator's doesn't")
    tiny = tiny_model(name, Sizes())
    model = build(tiny, attention=attention)
    with torch.autocast("cpu", torch.bfloat16):
        kept = kept_bytes(model, tiny.inputs(), casts=torch.bfloat16)
    kernels = Kernels(attention=attention, dtype_bytes=2, stream_bytes=4)  # type: ignore[arg-type]
    estimate = estimate_saved_bytes(read_config(tiny.values()), batch_of(name), kernels)
    assert estimate == pytest.approx(kept, rel=AUTOCAST_TOLERANCE)


@pytest.mark.parametrize(("compute_bytes", "stream_bytes"), [(4, 4), (2, 4)])
def test_a_layer_of_the_reference_decoder_keeps_what_its_own_estimate_says(
    compute_bytes: int, stream_bytes: int
) -> None:
    from trireme.plan import activation_bytes

    shape = PRESETS["llama-19m"]
    own = activation_bytes(shape, compute_bytes=compute_bytes, stream_bytes=stream_bytes, kernels="device")
    kernels = Kernels(attention="flash", dtype_bytes=compute_bytes, stream_bytes=stream_bytes)
    load = Load(seqs=2, seq_len=128)
    assert read_shape(shape).stacks[0].blocks[0].saved_bytes(load, kernels) == own.layer * 256


def test_the_loss_keeps_log_probabilities_in_float32() -> None:
    import torch

    tiny = tiny_model("llama", Sizes(vocab=500))
    inputs = tiny.inputs()
    model = build(tiny, attention="sdpa").to(torch.bfloat16)
    kept = kept_bytes(model, {**inputs, "labels": inputs["input_ids"]})
    graph = read_config(tiny.values())
    kernels = Kernels(attention="sdpa")
    assert estimate_saved_bytes(graph, batch_of("llama"), kernels, with_loss=True) == pytest.approx(
        kept, rel=KEPT_TOLERANCE
    )


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_dropout_masks_are_counted(name: str) -> None:
    tiny = tiny_model(name, Sizes())
    ratios = ("attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob", "dropout_rate")
    for key in (*ratios, "attention_probs_dropout_prob"):
        if hasattr(tiny.config, key):
            setattr(tiny.config, key, 0.1)
    model = build(tiny, attention="eager")
    kept = kept_bytes(model, tiny.inputs())
    # A CPU keeps the mask in the number format of what it masks.
    kernels = Kernels(attention="eager", dtype_bytes=4, dropout_mask_bytes=4)
    assert estimate_saved_bytes(read_config(tiny.values()), batch_of(name), kernels) == pytest.approx(
        kept, rel=KEPT_TOLERANCE
    )


def one_layer(name: str, *, seqs: int, seq_len: int, kernels: Kernels) -> float:
    """Bytes per token and model width that the first layer keeps."""
    graph = find_model(name)
    load = Load(seqs=seqs, seq_len=seq_len)
    return graph.stacks[0].blocks[0].saved_bytes(load, kernels) / (seqs * seq_len * graph.width)


MEASURED_UNMODIFIED = {"llama-3-8b": 49.2, "llama-3-70b": 48.6}
"""Bytes per token and width of an unmodified Hugging Face layer, bf16, flash attention (traced on fake tensors)."""


@pytest.mark.parametrize("name", MEASURED_UNMODIFIED)
def test_an_unmodified_layer_keeps_what_was_traced_not_what_the_closed_form_says(name: str) -> None:
    kept = one_layer(name, seqs=1, seq_len=8192, kernels=Kernels(attention="flash"))
    assert kept == pytest.approx(MEASURED_UNMODIFIED[name], rel=0.01)


def test_fused_kernels_keep_what_the_closed_form_of_a_fused_layer_says() -> None:
    # Two norm inputs, two projection inputs, q, k, v and out, gate, up and product, all in 16 bits.
    shape = find_model("llama-3-8b").stacks[0].blocks[0]
    load, width = Load(seqs=1, seq_len=4096), 4096
    closed_form = load.seq_len * ((12 + 4 * 8 / 32) * width + 6 * 14336)
    kept = shape.saved_bytes(load, Kernels(attention="flash", fused=True))
    assert kept == pytest.approx(closed_form, rel=0.005)


def test_kept_bytes_grow_with_tokens_and_with_their_square_where_scores_are_kept() -> None:
    eager = [one_layer("gpt2", seqs=1, seq_len=n, kernels=Kernels(attention="eager")) for n in (512, 1024)]
    flash = [one_layer("gpt2", seqs=1, seq_len=n, kernels=Kernels(attention="flash")) for n in (512, 1024)]
    assert flash[0] == flash[1]
    assert eager[1] - eager[0] > 512 * 12 / 768 * 2


def attention_flops(graph: ModelGraph, seq_len: int, count: Any) -> int:
    return count_model_flops(graph, MicroBatch(seqs=1, seq_len=seq_len), count=count).attention


def test_pln_05_windows_and_key_value_heads_count_as_they_are() -> None:
    keys = {
        "model_type": "gemma2",
        "vocab_size": 100,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 512,
    }
    half = read_config({**keys, "layer_types": ["sliding_attention", "full_attention"]})
    full = read_config({**keys, "layer_types": ["full_attention", "full_attention"]})
    one_full = attention_flops(full, 4096, "full") // 2
    assert attention_flops(half, 4096, "full") - one_full == one_full // 8  # seq / window = 8
    assert attention_flops(half, 4096, "unmasked") == attention_flops(full, 4096, "unmasked")
    exact_window = sum(min(row, 512) for row in range(1, 4097))
    one_causal = attention_flops(full, 4096, "causal") // 2
    assert (attention_flops(half, 4096, "causal") - one_causal) * 4096 * 4097 // 2 == one_causal * exact_window
    key_rows = [op.matmuls[0].outer for op in half.stacks[0].blocks[0].ops if op.name.endswith("k_proj")]
    assert key_rows == [2 * 16]


def test_chunks_bound_what_a_query_sees() -> None:
    graph = find_model("llama-4-scout")
    chunked = graph.stacks[0].blocks[0]
    attention = next(op.attention for op in chunked.ops if op.attention)
    exact = sum(row % 8192 + 1 for row in range(20000))
    assert attention.count_pairs(Load(seqs=1, seq_len=20000), count="causal") == exact


@given(
    seq_len=st.integers(1, 60),
    window=st.none() | st.integers(1, 70),
    chunk=st.none() | st.integers(1, 70),
    causal=st.booleans(),
)
def test_pairs_are_those_that_the_mask_lets_through(
    seq_len: int, window: int | None, chunk: int | None, causal: bool
) -> None:
    shape = AttentionShape(
        heads=1, kv_heads=1, qk_width=1, v_width=1, causal=causal, window=window, chunk=None if window else chunk
    )
    load = Load(seqs=1, seq_len=seq_len)
    causal_pairs = sum(
        _sees(query, key, shape) for query in range(seq_len) for key in range(query + 1 if causal else seq_len)
    )
    counts = {name: shape.count_pairs(load, count=name) for name in get_args(AttentionCount)}
    assert counts["unmasked"] == seq_len**2
    assert counts["full"] == seq_len * min(seq_len, shape.reach or seq_len)
    assert counts["causal"] <= counts["full"] <= counts["unmasked"]
    if causal:
        assert counts["causal"] == causal_pairs


def _sees(query: int, key: int, shape: AttentionShape) -> bool:
    if shape.window:
        return query - key < shape.window
    return not shape.chunk or query // shape.chunk == key // shape.chunk


NUMBERS = {
    "gpt2": DecoderNumbers(
        vocab_size=50257, num_layers=12, d_model=768, num_heads=12, tied=True, learned_positions=1024
    ),
    "llama-3-8b": DecoderNumbers(
        vocab_size=128256, num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ffn=14336, gated=True
    ),
    "mixtral-8x7b": DecoderNumbers(
        vocab_size=32000,
        num_layers=32,
        d_model=4096,
        num_heads=32,
        num_kv_heads=8,
        gated=True,
        num_experts=8,
        top_k=2,
        d_expert=14336,
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_decoder_known_by_its_numbers_costs_what_the_published_one_does(name: str) -> None:
    plain, known = read_numbers(NUMBERS[name]), find_model(name)
    assert count_model_params(plain) == count_model_params(known)
    for count in get_args(AttentionCount):
        batch = MicroBatch(seqs=1, seq_len=1000)
        assert count_model_flops(plain, batch, count=count) == count_model_flops(known, batch, count=count)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"num_heads": 5}, "num_heads=5"),
        ({"num_kv_heads": 3}, "num_kv_heads=3"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_experts": 4, "top_k": 5, "d_expert": 8}, "top_k=5"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int], part: str) -> None:
    with pytest.raises(ModelError, match=part):
        DecoderNumbers(**{"vocab_size": 9, "num_layers": 1, "d_model": 8, "num_heads": 4, **change})  # type: ignore[arg-type]


def test_flops_of_the_reference_decoder_follow_the_published_formula() -> None:
    flops = count_model_flops(find_model("gpt3-175b"), MicroBatch(seqs=1, seq_len=2048), count="full")
    # 72 L h^2 (1 + s/6h + V/12Lh) per token. Source: Narayanan et al. 2021, appendix, without recomputation.
    layers, width, vocab, seq_len = 96, 12288, 50257, 2048
    formula = 72 * layers * width**2 * (1 + seq_len / (6 * width) + vocab / (12 * layers * width))
    assert flops.training_per_token == pytest.approx(formula, rel=1e-12)


def test_the_cache_holds_latents_windows_and_grouped_heads() -> None:
    llama, deepseek = find_model("llama-3-8b"), find_model("deepseek-v3")
    assert estimate_cache_bytes(llama, seqs=1, seq_len=1) == 32 * 2 * 8 * 128 * 2
    assert estimate_cache_bytes(deepseek, seqs=1, seq_len=1) == 61 * (512 + 64) * 2
    oss = find_model("gpt-oss-20b")
    per_token = 2 * 8 * 64 * 2
    assert estimate_cache_bytes(oss, seqs=2, seq_len=8192) == 2 * per_token * (12 * 128 + 12 * 8192)
    assert estimate_cache_bytes(find_model("bert-base"), seqs=1, seq_len=128) == 0


def test_layers_group_into_runs_and_cut_points_follow_module_paths() -> None:
    stack = find_model("deepseek-v3").stacks[0]
    assert [(run.first, run.count, run.block.kind) for run in stack.runs()] == [(0, 3, "dense"), (3, 58, "moe")]
    assert stack.cut_points()[0] == "model.layers.1"
    assert len(stack.cut_points()) == 60
    assert stack.border_bytes(Load(seqs=2, seq_len=100), dtype_bytes=2) == 2 * 100 * 7168 * 2
    assert [stack.path for stack in find_model("t5-small").stacks] == ["encoder.block", "decoder.block"]


SOFT_CAP_RANGE = (0.9, 1.25)
"""What an estimate of memory may be of what is measured: a little too much is safe, too little runs out."""


@pytest.mark.parametrize("seq_len", [8, 40, 160])
def test_mem_07_soft_capped_logits_and_their_loss_are_counted_at_every_length(seq_len: int) -> None:
    import torch

    tiny = tiny_model("gemma2", Sizes(vocab=1009))
    model = build(tiny, attention="eager")
    ids = torch.arange(SEQS * seq_len).reshape(SEQS, seq_len) % 1000

    class WithLoss(torch.nn.Module):
        def forward(self) -> Any:
            logits = model(input_ids=ids, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

        def parameters(self, recurse: bool = True) -> Any:
            return model.parameters(recurse)

    kept = kept_bytes(WithLoss(), {})
    kernels = Kernels(attention="eager", dtype_bytes=4)
    batch = MicroBatch(seqs=SEQS, seq_len=seq_len)
    estimate = estimate_saved_bytes(read_config(tiny.values()), batch, kernels, with_loss=True)
    assert SOFT_CAP_RANGE[0] <= estimate / kept <= SOFT_CAP_RANGE[1]
