"""The training loss: sums, counts, precision, memory."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trireme.errors import ModelError
from trireme.models import token_cross_entropy

FP32 = 1e-6
"""Relative: the sum of a few thousand fp32 terms in another order."""


def logits_and_labels(rows: int, columns: int, *, ignored: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(2, rows, columns, generator=generator)
    labels = torch.randint(columns, (2, rows), generator=generator)
    labels[torch.rand(2, rows, generator=generator) < ignored] = -100
    return logits, labels


@pytest.mark.parametrize("columns", [97, 70_000])
def test_loss_and_gradient_equal_the_librarys_in_fp32(columns: int) -> None:
    logits, labels = logits_and_labels(40, columns)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss_sum, count = token_cross_entropy(ours, {"labels": labels})
    reference = F.cross_entropy(theirs.flatten(0, 1), labels.flatten(), reduction="sum")
    assert count == (labels != -100).sum()
    assert torch.allclose(loss_sum, reference, rtol=FP32)
    (loss_sum / count).backward()
    (reference / count).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-5, atol=FP32 / 10)


def test_it_passes_gradcheck() -> None:
    logits, labels = logits_and_labels(5, 7)
    exact = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: token_cross_entropy(x, {"labels": labels})[0] * 3, (exact,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_logits_have_fp32_statistics_and_a_16_bit_gradient(dtype: torch.dtype) -> None:
    logits, labels = logits_and_labels(300, 500)
    small = logits.to(dtype).requires_grad_()
    loss_sum, _ = token_cross_entropy(small, {"labels": labels})
    reference = F.cross_entropy(small.detach().float().flatten(0, 1), labels.flatten(), reduction="sum")
    assert loss_sum.dtype == torch.float32
    assert torch.allclose(loss_sum, reference, rtol=FP32)
    loss_sum.backward()
    assert small.grad is not None
    assert small.grad.dtype == dtype
    exact = small.detach().float().softmax(-1)
    exact[labels == -100] = 0
    exact[labels != -100, labels[labels != -100]] -= 1
    assert (small.grad.float() - exact).abs().max() < torch.finfo(dtype).eps


def test_autocast_changes_nothing() -> None:
    logits, labels = logits_and_labels(30, 97)
    plain, _ = token_cross_entropy(logits, {"labels": labels})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, _ = token_cross_entropy(logits, {"labels": labels})
    assert torch.equal(plain, cast)


def test_los_04_nothing_to_learn_is_zero_and_not_nan() -> None:
    logits, labels = logits_and_labels(10, 97, ignored=1.1)
    logits.requires_grad_()
    loss_sum, count = token_cross_entropy(logits, {"labels": labels})
    loss_sum.backward()
    assert (loss_sum, count) == (0.0, 0)
    assert logits.grad is not None
    assert not logits.grad.any()


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 39), max_size=4), ignored=st.floats(0, 1))
def test_los_01_sums_and_counts_add_up_over_any_split(cuts: list[int], ignored: float) -> None:
    logits, labels = logits_and_labels(40, 31, ignored=ignored)
    whole, count = token_cross_entropy(logits, {"labels": labels})
    edges = [0, *sorted(set(cuts)), 40]
    parts = [token_cross_entropy(logits[:, a:b], {"labels": labels[:, a:b]}) for a, b in itertools.pairwise(edges)]
    assert sum(int(part[1]) for part in parts) == count
    assert torch.allclose(torch.stack([part[0] for part in parts]).sum(), whole, rtol=1e-5)


@pytest.mark.parametrize("label", [97, -1, 2**31 - 1])
def test_a_label_outside_the_vocabulary_is_named(label: int) -> None:
    logits, labels = logits_and_labels(10, 97)
    labels[0, 3] = label
    with pytest.raises(ModelError, match=rf"{label}.*97"):
        token_cross_entropy(logits, {"labels": labels.int()})


def test_no_fp32_copy_of_the_logits_is_made() -> None:
    logits = torch.randn(1, 4096, 1024).bfloat16().requires_grad_()
    largest: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.dtype == torch.float32:
                largest.append(out.numel())
            return out

    with Watch():
        token_cross_entropy(logits, {"labels": torch.zeros(1, 4096, dtype=torch.int64)})[0].backward()
    assert max(largest) < logits.numel() / 3
