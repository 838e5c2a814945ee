"""State in host memory and on disk, activations in host memory: the same numbers, bounded resources, clear refusals."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import trireme
from tests.unit.train_pieces import CPU, TinyLM, make_batch, make_pieces, make_stepper
from trireme.checkpoint import open_checkpoint, save_checkpoint
from trireme.config import load_config
from trireme.errors import ConfigError, LayoutError
from trireme.parallel import ActivationOffload, ChunkedOptimizer, DiskHome, HostHome
from trireme.train import Cadence, fit, state_tensors


def _stepper(home=None, *, chunk_numel: int = 64, **keys):
    module = TinyLM(dropout=0.1)
    inner = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    optimizer = inner if home is None else ChunkedOptimizer(inner, home=home, chunk_numel=chunk_numel)
    return make_stepper(module, optimizer=optimizer, clip_grad_norm=0.3, **keys)


def _losses(stepper, *, steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    return [stepper(make_batch(step)).loss for step in range(steps)]


@pytest.mark.parametrize("where", ["host", "disk"])
def test_state_elsewhere_gives_the_same_bits(where, tmp_path):
    plain, moved = _stepper(), _stepper(HostHome(CPU) if where == "host" else DiskHome(tmp_path / "scratch"))
    assert _losses(plain) == _losses(moved)
    one, other = state_tensors(plain), state_tensors(moved)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    if where == "disk":
        assert not list((tmp_path / "scratch").iterdir()), "the scratch file has no name that could be left behind"


def test_a_run_with_state_on_disk_goes_on_from_its_checkpoint_with_or_without_the_disk(tmp_path):
    def save(snapshot):
        return save_checkpoint(
            tmp_path / "saved", step=snapshot.step, tensors=snapshot.tensors, state=snapshot.state, metrics={}
        )

    whole = _stepper()
    fit(make_pieces(whole))
    expected = {name: tensor.clone() for name, tensor in state_tensors(whole).items()}
    first = _stepper(DiskHome(tmp_path / "scratch"))
    cadence = Cadence(eval_every_steps=None, sample_every_steps=None, save_every_steps=3)
    fit(make_pieces(first, save=save, cadence=cadence))
    path = next(each for each in (tmp_path / "saved").iterdir() if each.name.endswith("3"))
    for home in (None, DiskHome(tmp_path / "other")):
        second = _stepper(home)
        fit(make_pieces(second), resume=open_checkpoint(path))
        found = state_tensors(second)
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_off_06_and_off_07_threads_files_and_buffers_do_not_grow_and_each_byte_moves_once_each_way(tmp_path):
    home = DiskHome(tmp_path / "scratch")
    stepper = _stepper(home)
    moved, held = [], []
    for step in range(20):
        result = stepper(make_batch(step))
        moved.append((result.transfers.read_bytes, result.transfers.written_bytes))
        held.append((threading.active_count(), len(os.listdir("/proc/self/fd")), home.buffer_bytes))
    size = stepper.optimizer.state_bytes
    assert set(moved[1:]) == {(size, size)}, "tied weights move once"
    assert len(set(held[2:])) == 1


LARGER = """
import os, resource, sys, torch
from pathlib import Path
from torch import nn
from trireme.parallel import ChunkedOptimizer, DiskHome
from trireme.train import Stepper
torch.set_num_threads(1)

def build(home):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 16384), nn.ReLU(), nn.Linear(16384, 512))
    inner = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    optimizer = ChunkedOptimizer(inner, home=home) if home else inner
    loss_fn = lambda out, batch: ((out - batch["x"]).square().sum(), len(out))
    return Stepper(module, optimizer, loss_fn=loss_fn, count_fn=lambda batch: 4, call=lambda module, batch: module(batch["x"]))

def losses(stepper):
    batches = [torch.randn(4, 512, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    return " ".join(stepper({"x": x}).loss.hex() for x in batches)

stepper = build(DiskHome(Path(sys.argv[1])) if len(sys.argv) > 1 else None)
if len(sys.argv) > 1:
    module = stepper.module
    module(torch.randn(4, 512)).sum().backward()  # what a step needs beside the state
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
    limit = used + (96 << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    module.zero_grad()
print(losses(stepper), flush=True)
if len(sys.argv) > 1:
    try:
        stepper.optimizer = torch.optim.AdamW(stepper.module.parameters(), lr=1e-3, fused=True)
        print(losses(stepper))
    except (MemoryError, RuntimeError):
        print("does not fit", flush=True)
os._exit(0)  # where no memory is left there is none to end tidily
"""


def test_a_model_whose_optimizer_state_is_larger_than_the_memory_limit_trains_to_the_same_losses(tmp_path):
    """128 MiB of state; the limit leaves 96 MiB of private memory beyond what the model and its gradients take."""
    lines = []
    for words in ([], [str(tmp_path / "scratch")]):
        command = [sys.executable, "-c", LARGER, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-500:]
        lines.append(done.stdout.strip().splitlines())
    assert lines[1] == [lines[0][0], "does not fit"], "with its state in memory the same model is beyond the limit"


def test_a_full_or_missing_disk_is_one_line(tmp_path, monkeypatch):
    def full(descriptor, start, length):
        raise OSError(28, "No space left on device")

    module = TinyLM()
    inner = torch.optim.AdamW(module.parameters())
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(LayoutError, match=r"needs .* are free"):
            ChunkedOptimizer(inner, home=DiskHome(tmp_path / "scratch"))
    assert not list((tmp_path / "scratch").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(LayoutError, match=r"offload\.path"):
        ChunkedOptimizer(inner, home=DiskHome(tmp_path / "file" / "below"))


def test_a_disk_that_fails_in_the_middle_stops_the_step_with_one_line(tmp_path, monkeypatch):
    stepper = _stepper(DiskHome(tmp_path))
    stepper(make_batch(0))

    def broken(descriptor, buffers, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(LayoutError, match="Input/output error"):
        stepper(make_batch(1))


class Wide(nn.Module):
    """A module whose activations are large and weights small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _wide(*, offloads: bool, recomputes: bool = False):
    module = Wide()
    if recomputes:
        trireme.recompute(module.layers)
    activations = ActivationOffload(module, device=CPU, min_bytes=1024) if offloads else None
    stepper = trireme.Stepper(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss_fn=lambda out, batch: (out.square().sum(), len(out)),
        count_fn=lambda batch: len(batch["x"]),
        call=lambda module, batch: module(batch["x"]),
        activations=activations,
    )
    return stepper, activations


def test_rec_08_recomputation_and_offload_together_give_the_same_bits():
    results = []
    for offloads in (False, True):
        for recomputes in (False, True):
            stepper, activations = _wide(offloads=offloads, recomputes=recomputes)
            loss = stepper({"x": torch.randn(64, 256, generator=torch.Generator().manual_seed(1))}).loss
            results.append((loss, [each.detach().clone() for each in stepper.module.parameters()]))
            assert not offloads or activations.pool_bytes > 0
    for loss, weights in results[1:]:
        assert loss == results[0][0]
        assert all(torch.equal(one, other) for one, other in zip(weights, results[0][1], strict=True))


def test_off_04_the_pool_stays_what_one_step_needed_and_is_free_after_it():
    stepper, activations = _wide(offloads=True)
    pools = []
    for step in range(8):
        result = stepper({"x": torch.randn(64, 256, generator=torch.Generator().manual_seed(step))})
        pools.append(activations.pool_bytes)
        assert result.transfers.read_bytes == result.transfers.written_bytes > 0
    assert len(set(pools)) == 1
    assert sum(each.numel() for free in activations._free.values() for each in free) == pools[0]


def test_offload_words_that_do_nothing_are_said_and_wrong_ones_refused():
    words = ["model=llama-1m", "data.sources=corpus:songci", "train.max_steps=1"]
    loaded = load_config(None, (*words, "offload.path=/tmp/x"))
    assert any("offload.path has no effect" in text for text in loaded.notices)
    assert load_config(None, (*words, "offload=disk")).config.offload.optimizer == "disk"
    with pytest.raises(ConfigError, match="floppy"):
        load_config(None, (*words, "offload.optimizer=floppy"))


def test_state_that_was_copied_is_given_back_to_the_place_where_it_lives(tmp_path):
    stepper = _stepper(DiskHome(tmp_path))
    _losses(stepper)
    kept = copy.deepcopy(stepper.optimizer.state_dict())
    before = stepper.optimizer.state[stepper.module.norm.weight]["exp_avg"]
    pointer = before.data_ptr()
    before.zero_()
    stepper.optimizer.load_state_dict(kept)
    assert stepper.optimizer.state[stepper.module.norm.weight]["exp_avg"].data_ptr() == pointer
    assert float(before.abs().sum()) > 0
