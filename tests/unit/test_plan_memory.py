"""The memory estimate against what autograd really keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trireme.graph import PRESETS, DecoderShape, count_params
from trireme.plan import activation_bytes, estimate_memory, estimate_state_memory, estimate_step_s

TINY = DecoderShape(
    vocab_size=97, num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=64, max_seq_len=32
)  # fmt: skip
UNTIED_WIDE = DecoderShape(
    vocab_size=512, num_layers=2, d_model=64, num_heads=8, num_kv_heads=2, d_ffn=160, max_seq_len=64
)  # fmt: skip

COUNT_TOLERANCE = 0.01
"""Document boundaries and rotary tables are kept once for all layers and not counted."""


def kept_bytes(shape: DecoderShape, *, policy: str, seqs: int, seq_len: int) -> int:
    """Bytes of distinct storages that autograd keeps in a forward pass, without weights and their casts."""
    import torch

    from trireme.models import Decoder, token_cross_entropy
    from trireme.models.precision import mixed_precision

    torch.manual_seed(0)
    model = Decoder(shape)
    if policy == "bf16_pure":
        model = model.bfloat16()
    weights = {tuple(parameter.shape) for parameter in model.parameters()}
    storages: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in weights and tuple(tensor.t().shape if tensor.dim() == 2 else ()) not in weights:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # its address must not be given to another
        return tensor

    tokens = torch.randint(shape.vocab_size, (seqs, seq_len))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(policy)
    with mixed_precision(model, dtype), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = token_cross_entropy(model(tokens), {"labels": tokens})
    assert loss.requires_grad
    return sum(storages.values())


@pytest.mark.parametrize("shape", [TINY, UNTIED_WIDE], ids=["tiny", "wide"])
@pytest.mark.parametrize("policy", ["fp32", "bf16", "bf16_pure"])
def test_predicted_activations_are_those_that_autograd_keeps(shape: DecoderShape, policy: str) -> None:
    seqs, seq_len = 3, 32
    predicted = activation_bytes(
        shape, compute_bytes=4 if policy == "fp32" else 2, stream_bytes=2 if policy == "bf16_pure" else 4
    )
    total = seqs * seq_len * (predicted.per_token(shape.num_layers) + predicted.logits)
    assert total == pytest.approx(kept_bytes(shape, policy=policy, seqs=seqs, seq_len=seq_len), rel=COUNT_TOLERANCE)


def test_state_is_sixteen_bytes_a_parameter_in_fp32_and_eight_in_pure_bf16() -> None:
    for policy, size in (("fp32", 16), ("bf16_pure", 8), ("bf16", 18)):
        assert estimate_state_memory(1000, policy=policy).total_bytes == 1000 * size  # type: ignore[arg-type]


def test_gradients_meet_activations_only_from_the_second_micro_batch_on() -> None:
    shape = PRESETS["llama-19m"]
    one, two = (
        estimate_memory(shape, policy="fp32", microbatch_seqs=8, seq_len=256, microbatches_per_step=count)
        for count in (1, 2)
    )
    assert one.moment == two.moment == "loss"
    assert one.parts["gradients"] == 0
    assert two.parts["gradients"] == 4 * count_params(shape).total


def test_only_a_cpu_counts_what_its_allocator_keeps() -> None:
    shape = PRESETS["llama-19m"]
    estimates = {
        kernels: estimate_memory(shape, policy="fp32", microbatch_seqs=8, seq_len=256, kernels=kernels)  # type: ignore[arg-type]
        for kernels in ("host", "device")
    }
    assert estimates["host"].parts["allocator"] > 0
    assert estimates["device"].parts["allocator"] == 0


def test_a_large_model_with_a_tiny_batch_peaks_at_the_update() -> None:
    estimate = estimate_memory(PRESETS["llama-8b"], policy="bf16", microbatch_seqs=1, seq_len=128)
    assert estimate.moment == "update"
    assert estimate.parts["activations"] == 0


def test_parts_add_up_and_have_names_in_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = estimate_memory(PRESETS["llama-1m"], policy="bf16", microbatch_seqs=4, seq_len=128, program_bytes=7)
    for language in ("en", "zh"):
        monkeypatch.setenv("TRIREME_LANG", language)
        assert sum(estimate.named_parts().values()) == estimate.total_bytes


def test_a_step_at_forty_percent_of_the_peak() -> None:
    assert estimate_step_s(step_flops=4e12, peak_flops_per_s=1e13) == pytest.approx(1.0)


def test_planning_loads_no_torch() -> None:
    script = "import sys, trireme.plan; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
