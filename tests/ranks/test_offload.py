"""State and shards elsewhere in layouts: the bits of the same layout without, and checkpoints that any layout takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks.test_precision import CPU, build, gathered, loss_fn, make_batch, own_part
from trireme.checkpoint import open_checkpoint, save_checkpoint
from trireme.config import TrainSection
from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks
from trireme.models import call_model
from trireme.parallel import DiskHome, HostHome, StateHome, parallelize
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


def make_stepper(
    layout: str | None, *, policy: str = "fp32", home: StateHome | None = None, on_host: bool = False
) -> Stepper:
    precision = build_precision(policy, device=CPU)  # type: ignore[arg-type]
    module = apply_precision(build(), precision=precision)
    engine = None
    if layout is not None:
        parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
        example = {name: value[:2] for name, value in make_batch(0).items()}
        model = parallelize(
            module, parsed, example=example, call=call_model, loss_fn=loss_fn, parameters_on_host=on_host
        )
        engine = RanksEngine(model)
    optimizer = build_optimizer(module, TrainSection(max_steps=4))
    placed = place_state(optimizer, module=module, precision=precision, home=home)
    return Stepper(
        module, placed, loss_fn=loss_fn, call=call_model, precision=precision, clip_grad_norm=0.5, engine=engine
    )


def losses_of(stepper: Stepper, steps: range) -> list[float]:
    return [stepper(own_part(stepper, make_batch(step)), lr=1e-2).loss for step in steps]


def check_homes(layout: str, folder: str) -> None:
    plain = losses_of(make_stepper(layout), range(3))
    homes = {"host": HostHome(CPU), "disk": DiskHome(Path(folder))}
    for name, home in homes.items():
        assert losses_of(make_stepper(layout, home=home), range(3)) == plain, name
    if "zero3" in layout:
        assert losses_of(make_stepper(layout, on_host=True), range(3)) == plain
        assert losses_of(make_stepper(layout, on_host=True, home=DiskHome(Path(folder))), range(3)) == plain
    else:
        with pytest.raises(LayoutError, match="zero3"):
            make_stepper(layout, on_host=True)


@pytest.mark.parametrize("layout", ["zero1,dp=2", "zero3,dp=2", "tp=2", "pp=2"])
def test_state_elsewhere_gives_the_bits_of_the_same_layout(layout: str, tmp_path: Path) -> None:
    run_on_ranks(check_homes, 2, layout=layout, folder=str(tmp_path), timeout_s=150.0)


def check_round_trip(folder: str) -> None:
    """Fp32 copies and moments of ZeRO-3 shards on disk, saved whole, go on with tensor parallelism in memory."""
    stepper = make_stepper("zero3,dp=2", policy="bf16_master", home=DiskHome(Path(folder) / "scratch"))
    losses_of(stepper, range(2))
    whole = gathered(stepper, state_tensors(stepper))
    path = Path(folder) / "saved"
    if dist.get_rank() == 0:
        save_checkpoint(path, step=2, tensors=whole, state={}, metrics={})
        assert sum(name.endswith("/master") for name in whole) == len(list(build().parameters()))
    dist.barrier()
    checkpoint = open_checkpoint(next(path.iterdir()))
    expected = losses_of(stepper, range(2, 4))
    for layout, rel in (("zero3,dp=2", 0.0), ("tp=2", 4e-3)):
        other = make_stepper(layout, policy="bf16_master")
        other.optimizer.create_state()  # type: ignore[attr-defined]
        other.engine.restore_state(other.module, checkpoint, state_tensors(other))
        other.counters.num_steps = 2
        assert losses_of(other, range(2, 4)) == pytest.approx(expected, rel=rel), layout


def test_what_is_saved_of_offloaded_state_goes_on_in_another_layout(tmp_path: Path) -> None:
    run_on_ranks(check_round_trip, 2, folder=str(tmp_path), timeout_s=150.0)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    stepper = make_stepper(None, home=DiskHome(tmp_path))
    stepper(make_batch(0), lr=1e-2)
    assert not list(tmp_path.iterdir())
