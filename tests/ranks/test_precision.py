"""Number formats in layouts: the losses and weights of one device under the same policy, and skips that all ranks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.config import ModelSection, PrecisionSection, TrainSection
from trireme.mesh import run_on_ranks
from trireme.models import build_model, call_model
from trireme.parallel import gather_whole, parallelize
from trireme.plan import parse_layout
from trireme.train import (
    RanksEngine,
    Stepper,
    apply_precision,
    build_optimizer,
    build_precision,
    place_state,
    state_tensors,
)

CPU = torch.device("cpu")
VOCAB, ROWS, LENGTH, STEPS = 97, 8, 16, 4
SAME_LOSS = {"bf16": 4e-3, "bf16_master": 4e-3, "bf16_pure": 8e-3, "fp16": 5e-4, "fp16_master": 5e-4}
"""Relative: a layout rounds partial sums that one device rounds once; bf16 has 8 bits, fp16 11. Weights that are rounded
at random follow gradients of other rounding."""
SAME_WEIGHTS = 0.1
"""Of all that the weights moved, as a norm."""

SPOILED: list[bool] = []
"""Not empty: this rank's gradients overflow, though its loss doesn't."""

LAYOUTS = {"dp=2,micro=2": 2, "zero1,dp=2": 2, "zero2,dp=2,micro=2": 2, "zero3,dp=2": 2, "tp=2": 2, "pp=2": 2}


def build() -> nn.Module:
    shape = {"num_layers": 2, "d_model": 32, "num_heads": 4, "num_kv_heads": 2, "d_ffn": 64}
    return build_model(
        ModelSection.model_validate({"name": "llama-1m", **shape}), vocab_size=VOCAB, seq_len=LENGTH, seed=1
    )


def make_batch(seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (ROWS, LENGTH), generator=random)
    labels = ids.roll(-1, 1)
    for row in range(ROWS):
        labels[row, int(torch.randint(3, LENGTH, (1,), generator=random)) :] = -100
    return {"input_ids": ids, "labels": labels}


def loss_fn(outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    if SPOILED:
        outputs.register_hook(lambda gradient: gradient * float("inf"))
    loss = F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()


def make_stepper(policy: str, layout: str | None = None) -> Stepper:
    section = PrecisionSection(policy=policy, stochastic_rounding=policy == "bf16_pure", init_loss_scale=256.0)  # type: ignore[arg-type]
    precision = build_precision(policy, device=CPU, section=section)  # type: ignore[arg-type]
    module = apply_precision(build(), precision=precision)
    engine, pieces = None, None
    if layout is not None:
        parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
        example = {name: value[:2] for name, value in make_batch(0).items()}
        model = parallelize(module, parsed, example=example, call=call_model, loss_fn=loss_fn)
        engine, pieces = RanksEngine(model), model.pieces
    # A large epsilon: AdamW would otherwise make the sign of gradients that are all rounding count like the others.
    optimizer = build_optimizer(module, TrainSection(max_steps=STEPS, eps=1e-3, weight_decay=0.1))
    return Stepper(
        module,
        place_state(optimizer, module=module, precision=precision, seed=7, pieces=pieces),
        loss_fn=loss_fn,
        call=call_model,
        precision=precision,
        clip_grad_norm=0.5,
        engine=engine,
    )


def own_part(stepper: Stepper, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    line = stepper.engine.model.axes["dp"]  # type: ignore[attr-defined]
    return {name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}


def gathered(stepper: Stepper, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Give state whole on rank 0, on one device as it is."""
    engine = stepper.engine
    if not isinstance(engine, RanksEngine):
        return tensors
    return gather_whole({name: engine._piece(name, tensor) for name, tensor in tensors.items()})


def exact_weights(stepper: Stepper) -> dict[str, Tensor]:
    """Give the weights that the optimizer steps on, whole: masters where there are any."""
    found = {}
    for name, tensor in state_tensors(stepper).items():
        if name.startswith("model/"):
            found.setdefault(name.removeprefix("model/"), tensor)
        elif name.endswith("/master"):
            found[name.removeprefix("optimizer/").removesuffix("/master")] = tensor
    named = {f"model/{name}": tensor for name, tensor in found.items()}
    whole = gathered(stepper, named)
    return {name: tensor.detach().float().clone() for name, tensor in whole.items()}


def check_policies(layout: str) -> None:
    for policy, same in SAME_LOSS.items():
        alone, spread = make_stepper(policy), make_stepper(policy, layout)
        before = exact_weights(alone)
        for step in range(STEPS):
            batch = make_batch(step)
            expected, found = alone(batch, lr=1e-2), spread(own_part(spread, batch), lr=1e-2)
            assert abs(found.loss - expected.loss) <= same * expected.loss, (policy, step, found.loss, expected.loss)
            assert abs(found.grad_norm - expected.grad_norm) <= 10 * same * expected.grad_norm, (policy, step)
            assert found.outcome == expected.outcome == "updated"
        after, other = exact_weights(alone), exact_weights(spread)
        for name in other:
            moved, apart = (after[name] - before[name]).norm(), (other[name] - after[name]).norm()
            limit = SAME_WEIGHTS if policy != "bf16_pure" else 0.5  # a rounded weight is a whole spacing away
            assert apart <= limit * moved, f"{policy} {name}: {float(apart / moved):.3f}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_policy_in_a_layout_equals_one_device_under_the_same_policy(layout: str) -> None:
    run_on_ranks(check_policies, LAYOUTS[layout], layout=layout, timeout_s=120.0)


def check_overflow(layout: str) -> None:
    """One rank's gradient overflows at step 1: every rank skips, keeps its weights and halves its scale."""
    for policy in ("fp16", "fp16_master"):
        stepper = make_stepper(policy, layout)
        scales = []
        for step in range(3):
            before = {name: tensor.clone() for name, tensor in state_tensors(stepper).items()}
            SPOILED[:] = [True] if step == 1 and dist.get_rank() == dist.get_world_size() - 1 else []
            result = stepper(own_part(stepper, make_batch(step)), lr=1e-2)
            scales.append(result.loss_scale)
            assert result.outcome == ("overflow" if step == 1 else "updated")
            if step == 1:
                assert all(torch.equal(before[name], tensor) for name, tensor in state_tensors(stepper).items())
        assert scales == [256.0, 128.0, 128.0]
        assert stepper.counters.num_overflows == 1


@pytest.mark.parametrize("layout", ["dp=2", "zero2,dp=2", "tp=2", "pp=2"])
def test_amp_an_overflow_on_one_rank_skips_the_step_on_all(layout: str) -> None:
    run_on_ranks(check_overflow, 2, layout=layout, timeout_s=120.0)
