"""Logits that are never all there: loss and every gradient equal the plain ones; whoever looks gets the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trireme.config import ModelSection
from trireme.models import DeferredLogits, build_model, call_model, deferring, token_cross_entropy

VOCAB, WIDTH = 61, 16
SAME = 1e-12
"""fp64: what the order of sums explains, relative to the largest element."""


class Capped(nn.Module):
    """A head with a bias whose logits are scaled and softly capped, as a user writes it."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        if tied:
            self.head.weight = self.table.weight
        self.double()

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.table(input_ids))) * 3.0
        return torch.tanh(logits / 2.0) * 2.0


def gemma() -> nn.Module:
    config = transformers.Gemma2Config(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, attn_implementation="eager",
    )  # fmt: skip
    return transformers.Gemma2ForCausalLM(config).double()


def own() -> nn.Module:
    shape = {"name": "llama-1m", "num_layers": 1, "d_model": WIDTH, "num_heads": 2, "d_ffn": 32}
    return build_model(ModelSection.model_validate(shape), vocab_size=VOCAB, seq_len=40, seed=1).double()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "own": own,
    "gemma": gemma,
    "capped": lambda: Capped(tied=False),
    "tied": lambda: Capped(tied=True),
}


def shifted(outputs: Tensor, batch: dict[str, Tensor], **options: Any) -> Tensor:
    """The loss as people write it."""
    logits = outputs[..., :-1, :].contiguous().float() if outputs.dtype != torch.float64 else outputs[..., :-1, :]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["labels"][:, 1:].reshape(-1), **options)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "ours": lambda outputs, batch: token_cross_entropy(outputs, batch)[0],
    "shifted mean": shifted,
    "smoothed sum": lambda outputs, batch: shifted(outputs, batch, label_smoothing=0.1, reduction="sum"),
    "looked at": lambda outputs, batch: shifted(outputs, batch) + 0.1 * outputs.softmax(-1).square().sum(),
}


def make_batch() -> dict[str, Tensor]:
    ids = torch.randint(VOCAB, (3, 40), generator=torch.Generator().manual_seed(2))
    labels = ids.clone()
    labels[0, :30] = -100
    return {"input_ids": ids, "labels": labels}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_a_deferred_loss_and_all_its_gradients_equal_the_plain_ones(model: str, loss: str) -> None:
    torch.manual_seed(0)
    module, batch = MODELS[model](), make_batch()
    results = []
    for call in (call_model, deferring(call_model)):
        module.zero_grad()
        outputs = call(module, batch)
        found = LOSSES[loss](outputs, batch)
        (found * 3.0).backward()
        results.append((found.detach(), {name: each.grad for name, each in module.named_parameters()}))
        assert isinstance(outputs, DeferredLogits) == (call is not call_model)
        assert call is call_model or (outputs.made is None) == (loss != "looked at")
    (plain, expected), (deferred, gradients) = results
    assert abs(float(plain - deferred)) <= SAME * abs(float(plain))
    for name, gradient in expected.items():
        assert float((gradient - gradients[name]).abs().max()) <= SAME * float(gradient.abs().max()), name


def test_z_loss_adds_the_squared_logarithm_of_the_sum() -> None:
    torch.manual_seed(0)
    module, batch = Capped(tied=True), make_batch()
    logits = call_model(module, batch).view(-1, VOCAB)
    labels = batch["labels"].view(-1)
    known = labels != -100
    plain = F.cross_entropy(logits, labels, reduction="sum") + 0.3 * logits.logsumexp(-1)[known].square().sum()
    expected = torch.autograd.grad(plain, list(module.parameters()))
    outputs = deferring(call_model)(module, batch)
    assert isinstance(outputs, DeferredLogits)
    found = outputs.cross_entropy(labels, z_loss=0.3)
    assert abs(float(found.detach() - plain.detach())) <= SAME * float(plain.detach())
    for gradient, other in zip(expected, torch.autograd.grad(found, list(module.parameters())), strict=True):
        assert float((gradient - other).abs().max()) <= SAME * float(gradient.abs().max())


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any tensor had."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result.is_meta:
            self.largest = max(self.largest, result.numel())
        return result


def test_no_tensor_is_as_large_as_the_logits() -> None:
    table = nn.Embedding(5000, 4)
    module = nn.Sequential(table, nn.Linear(4, 5000, bias=False))
    batch = {"input_ids": torch.randint(5000, (8, 128)), "labels": torch.randint(5000, (8, 128))}
    with LargestTensor() as watch:
        token_cross_entropy(deferring(lambda each, batch: each(batch["input_ids"]))(module, batch), batch)[0].backward()
    assert 0 < watch.largest <= 8 * 128 * 5000 // 8
