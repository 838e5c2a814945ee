"""Fleet's calls on the articles' model: a few lines, eight ranks, the numbers of one device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import trireme.fleet as fleet
from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks

VOCAB, WIDTH, ROWS, LENGTH = 96, 32, 16, 12
SAME = 1e-5
"""What is asked of fp32, relative to the largest element."""
RATE, CLIP = 0.1, 0.5


class Block(nn.Module):
    """Attention and a feed-forward layer, as the articles write them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm_1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm_2(x + self.feed(x))


class LargeLM(nn.Module):
    """The articles' model: an embedding, blocks in a row, an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(input_ids)))


def build() -> LargeLM:
    torch.manual_seed(3)
    return LargeLM()


def make_batch(seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(VOCAB, (ROWS, LENGTH), generator=random)
    for row in range(ROWS):
        labels[row, 2 + row % 9 :] = -100
    return {"input_ids": torch.randint(VOCAB, (ROWS, LENGTH), generator=random), "labels": labels}


def loss_fn(outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()


def part_of(batch: Mapping[str, Tensor], model: fleet.FleetModel) -> dict[str, Tensor]:
    """This data-parallel rank's samples; tp and pp ranks have the same."""
    degree = model.layout.dp
    place = dist.get_rank() // model.layout.tp % degree
    return {name: value.chunk(degree)[place] for name, value in batch.items()}


def train_with_fleet(configs: dict[str, Any], *, early: bool) -> dict[str, Any]:
    """The lines a user writes; returns what they show."""
    strategy = fleet.DistributedStrategy(hybrid_configs=configs)
    fleet.init(strategy)
    example = make_batch(0) if early else None
    model = fleet.distributed_model(build(), example_batch=example, loss_fn=loss_fn)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=RATE), clip_grad_norm=CLIP)
    losses, gradients = [], {}
    for step in range(3):
        losses.append(float(model.train_step(part_of(make_batch(step), model), loss_fn)))
        gradients = model.parallel.full_gradients() if step == 0 else gradients
        optimizer.step()
        optimizer.zero_grad()
    held = sum(each.numel() for each in model.parallel.module.parameters())
    evaluated = float(model.eval_step(part_of(make_batch(9), model), loss_fn))
    return {
        "losses": losses,
        "gradients": {name: each.numpy() for name, each in gradients.items()},
        "ratio": model.parallel.local_param_ratio,
        "names": [name for name, _ in model.named_parameters()],
        "norm": optimizer.last.norm,
        "evaluated": evaluated,
        "held": held,
    }


def train_alone() -> tuple[list[float], dict[str, Tensor], float, float]:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, gradients, norm = [], {}, 0.0
    for step in range(3):
        batch = make_batch(step)
        optimizer.zero_grad()
        loss_sum, count = loss_fn(model(batch["input_ids"]), batch)
        (loss_sum / count).backward()
        gradients = gradients or {name: copy.deepcopy(each.grad) for name, each in model.named_parameters()}
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
        losses.append(float(loss_sum.detach() / count))
    batch = make_batch(9)
    with torch.no_grad():
        loss_sum, count = loss_fn(model(batch["input_ids"]), batch)
    return losses, gradients, norm, float(loss_sum / count)


THREE_AXES = {"dp_degree": 2, "mp_degree": 2, "pp_degree": 2}


@pytest.mark.parametrize(
    ("configs", "early", "share"),
    [
        ({**THREE_AXES, "sharding_stage": 3}, True, 1 / 8),
        (THREE_AXES, False, 1 / 4),
        ({"dp_degree": 2, "sharding_stage": 1}, False, 1 / 2),
    ],
)
def test_the_articles_lines_give_the_numbers_of_one_device(configs: dict[str, Any], early: bool, share: float) -> None:
    losses, gradients, norm, evaluated = train_alone()
    num_ranks = 8 if "pp_degree" in configs else 2
    found = run_on_ranks(train_with_fleet, num_ranks, configs=configs, early=early, timeout_s=120.0)
    for rank in found:
        assert rank["losses"] == pytest.approx(losses, rel=1e-4), "AdamW makes steps of rounding errors"
        assert rank["losses"][0] == pytest.approx(losses[0], rel=SAME)
        assert rank["norm"] == pytest.approx(norm, rel=1e-2)
        assert rank["evaluated"] == pytest.approx(evaluated, rel=1e-2)
        assert 0.8 * share <= rank["ratio"] <= 1.25 * share
        assert set(rank["names"]) <= set(gradients)
    assert set(found[0]["gradients"]) == set(gradients)
    for name, gradient in found[0]["gradients"].items():
        error = float(
            (torch.from_numpy(gradient) - gradients[name]).abs().max() / gradients[name].abs().max().clamp(min=1e-3)
        )
        assert error <= SAME, f"{name}: {error}"


def test_fleets_settings_are_known_or_refused() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 2, "mp_degree": 2}
    strategy.recompute = True
    strategy.amp = True
    strategy.amp_configs = {"dtype": "float16", "init_loss_scaling": 1024}
    layout = strategy.parse(ranks=4).layout
    assert (layout.dp, layout.tp, layout.recompute) == (2, 2, "full")
    assert (strategy.precision, strategy.init_loss_scale) == ("fp16", 1024.0)
    with pytest.raises(LayoutError, match="has no hybrid_config; it has hybrid_configs"):
        strategy.hybrid_config = {}
    with pytest.raises(LayoutError, match=r"has no sharding_configs\.stge"):
        fleet.DistributedStrategy(sharding_configs={"stge": 2}).parse(ranks=2)
    with pytest.raises(LayoutError, match="no parameter server"):
        fleet.init(is_collective=False)


def test_sharding_by_fleets_switch_is_a_stage() -> None:
    strategy = fleet.DistributedStrategy(sharding=True, sharding_configs={"stage": 2})
    assert strategy.parse(ranks=2).layout.zero == 2
    assert fleet.DistributedStrategy(sharding=True).parse(ranks=2).layout.zero == 1


def test_fleets_words_for_the_wire_are_read_or_refused() -> None:
    assert fleet.DistributedStrategy(fp16_allreduce=True).communication.compress == "fp16"
    assert fleet.DistributedStrategy(dgc=True).communication.topk_ratio == 0.001
    assert fleet.DistributedStrategy(communication={"compress": "int8"}).communication.compress == "int8"
    for said, word in (
        ({"compres": "int8"}, "compress"),
        ({"compress": "zip"}, "int8"),
        ({"local_steps": 4}, "Stepper"),
    ):
        with pytest.raises(LayoutError, match=word):
            _ = fleet.DistributedStrategy(communication=said).communication
