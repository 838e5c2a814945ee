"""Saving: exact for every dtype and shape, whole or absent, and clear about what stops it."""

import errno
import json
import os
import shutil
from collections import namedtuple

import pytest
import torch
from safetensors.torch import load_file

from trireme.checkpoint import SaveStage, list_checkpoints, open_checkpoint, save_checkpoint
from trireme.checkpoint.stored_type import STORED_TYPES
from trireme.errors import CheckpointError
from trireme.mesh import peak_memory_bytes, reset_peak_memory

_SHAPES = [(), (0,), (3, 0, 2), (1,), (5, 7)]


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    def bits(values: torch.Tensor) -> torch.Tensor:
        return values.contiguous().reshape(-1).view(torch.uint8) if values.numel() else torch.empty(0)

    same_form = left.shape == right.shape and left.dtype == right.dtype
    return same_form and torch.equal(bits(left), bits(right))


def _random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        limit = 2 if dtype == torch.bool else 256
        tensor.reshape(-1).view(torch.uint8).copy_(
            torch.randint(0, limit, (tensor.numel() * tensor.itemsize,), dtype=torch.uint8)
        )
    return tensor


@pytest.mark.parametrize("dtype", STORED_TYPES)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype):
    tensors = {f"model/{shape}": _random_bits(shape, getattr(torch, dtype)) for shape in _SHAPES}
    folder = save_checkpoint(tmp_path, step=1, tensors=tensors, state={"step": 1})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names == tuple(tensors)
    for name, tensor in tensors.items():
        assert _same_bits(checkpoint.tensor(name), tensor), name


def test_the_shard_opens_in_other_tools_with_the_same_values(tmp_path):
    plain = [name for name, stored in STORED_TYPES.items() if not stored.inner and "float4" not in name]
    tensors = {name: _random_bits((3, 5), getattr(torch, name)) for name in plain}
    folder = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    loaded = load_file(next(folder.glob("*.safetensors")))
    assert set(loaded) == set(tensors)
    assert all(_same_bits(loaded[name], tensor) for name, tensor in tensors.items())


def test_complex_numbers_open_in_other_tools_as_their_parts(tmp_path):
    values = torch.randn(4, dtype=torch.complex128)
    folder = save_checkpoint(tmp_path, step=1, tensors={"z": values}, state={})
    assert torch.equal(load_file(next(folder.glob("*.safetensors")))["z"], torch.view_as_real(values))


def test_views_are_saved_as_the_values_that_they_show(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    checkpoint = open_checkpoint(save_checkpoint(tmp_path, step=1, tensors=tensors, state={}))
    for name, tensor in tensors.items():
        assert torch.equal(checkpoint.tensor(name), tensor.detach().resolve_conj()), name


def test_tied_tensors_are_stored_once(tmp_path):
    weight = torch.randn(1000)
    folder = save_checkpoint(tmp_path, step=1, tensors={"model/embed": weight, "model/head": weight}, state={})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.manifest.tensors["model/head"].same_as == "model/embed"
    assert torch.equal(checkpoint.tensor("model/head"), weight)
    assert next(folder.glob("*.safetensors")).stat().st_size < 2 * weight.nbytes


def test_ckp_25_files_hold_the_true_size_of_an_odd_vocabulary(tmp_path):
    folder = save_checkpoint(tmp_path, step=1, tensors={"model/embed": torch.randn(97, 4)}, state={})
    assert load_file(next(folder.glob("*.safetensors")))["model/embed"].shape == (97, 4)
    assert open_checkpoint(folder).shape("model/embed") == (97, 4)


def test_ckp_22_what_was_saved_is_what_was_there_at_the_call(tmp_path):
    weight, state = torch.ones(10), {"steps": [1]}
    folder = save_checkpoint(tmp_path, step=1, tensors={"w": weight}, state=state)
    weight.zero_()
    state["steps"].append(2)
    checkpoint = open_checkpoint(folder)
    assert torch.equal(checkpoint.tensor("w"), torch.ones(10))
    assert checkpoint.state == {"steps": [1]}


def test_the_manifest_says_who_saved_what(tmp_path):
    folder = save_checkpoint(
        tmp_path, step=7, tensors={"w": torch.ones(2)}, state={"a": 1}, metrics={"eval_loss": 2.5}, run_id="r"
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert folder == tmp_path / "step-7"
    assert (manifest["format_version"], manifest["step"], manifest["run_id"], manifest["layout"]) == (1, 7, "r", "dp=1")
    assert manifest["versions"]["torch"] == str(torch.__version__)
    assert manifest["tensors"]["w"]["slices"][0]["ranges"] == [[[0, 2]]]
    assert (folder / "manifest.json").read_bytes() == (folder / "manifest.copy.json").read_bytes()


def _fails_times(count: int, error: OSError):
    left = [count]

    def hook(stage, folder):
        if stage is SaveStage.BEFORE_MANIFEST and left[0]:
            left[0] -= 1
            raise error

    return hook


def test_ckp_31_a_passing_error_of_the_storage_is_retried_and_counted(tmp_path):
    notices = []
    hook = _fails_times(2, OSError(errno.EIO, "input/output error"))
    folder = save_checkpoint(
        tmp_path, step=1, tensors={"w": torch.ones(2)}, state={}, backoff_s=0.0, hook=hook, notice=notices.append
    )
    assert open_checkpoint(folder).manifest.save_retries == 2
    assert len(notices) == 2
    assert [each.name for each in tmp_path.iterdir()] == ["step-1"]


def test_ckp_31_a_lasting_error_ends_in_one_clear_error_and_leaves_nothing(tmp_path):
    hook = _fails_times(99, OSError(errno.EIO, "input/output error"))
    with (
        pytest.raises(CheckpointError, match=r"4 attempts.*input/output error"),
        pytest.warns(UserWarning, match="trying again"),
    ):
        save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2)}, state={}, backoff_s=0.0, hook=hook)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_foreseen_and_named_with_both_numbers(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(2**30, 2**30 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"1\.0\d MiB, 1000 B are free") as caught:
        save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2**18)}, state={})
    assert str(tmp_path) in str(caught.value)


def test_a_disk_that_fills_up_on_the_way_is_not_retried(tmp_path):
    save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2)}, state={})
    hook = _fails_times(99, OSError(errno.ENOSPC, "no space left"))
    with pytest.raises(CheckpointError, match="the disk ran full"):
        save_checkpoint(tmp_path, step=2, tensors={"w": torch.ones(2)}, state={}, hook=hook)
    assert [info.step for info in list_checkpoints(tmp_path)] == [1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="can't be written to"):
        save_checkpoint(tmp_path / "file" / "checkpoints", step=1, tensors={}, state={})


def test_saving_a_step_again_replaces_it_whole(tmp_path):
    save_checkpoint(tmp_path, step=1, tensors={"w": torch.zeros(2)}, state={"n": 1}, run_id="a")
    folder = save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2)}, state={"n": 2}, run_id="a")
    assert open_checkpoint(folder).state == {"n": 2}
    assert [each.name for each in tmp_path.iterdir()] == ["step-1"]


def test_a_damaged_folder_of_the_same_step_gives_way(tmp_path):
    folder = save_checkpoint(tmp_path, step=1, tensors={"w": torch.zeros(2)}, state={}, run_id="a")
    os.truncate(folder / "shard-00000.safetensors", 10)
    save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2)}, state={}, run_id="a")
    assert torch.equal(open_checkpoint(folder).tensor("w"), torch.ones(2))


def test_ckp_12_a_step_of_another_run_is_not_replaced(tmp_path):
    save_checkpoint(tmp_path, step=1, tensors={"w": torch.zeros(2)}, state={}, run_id="a")
    with pytest.raises(CheckpointError, match="belongs to another run"):
        save_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(2)}, state={}, run_id="b")
    assert torch.equal(open_checkpoint(tmp_path / "step-1").tensor("w"), torch.zeros(2))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(2, device="meta"), "meta device"),
        (torch.eye(3).to_sparse(), "plain dense"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8"),
    ],
)
def test_what_has_no_exact_form_is_refused_by_name(tmp_path, tensor, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        save_checkpoint(tmp_path, step=1, tensors={"bad/one": tensor}, state={})
    assert "bad/one" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


_SLACK_BYTES = 96 * 2**20
"""The allocator's own reserves, seen up to 58 MiB; a save that gathered all tensors would take 256 MiB more."""


def test_memory_stays_bounded_by_one_tensor(tmp_path):
    # Transposed, so that saving needs a copy of each.
    tensors = {f"w{i}": torch.randn(1024, 2048).t() for i in range(32)}
    cpu = torch.device("cpu")
    reset_peak_memory(cpu)
    before_bytes = peak_memory_bytes(cpu)
    folder = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    open_checkpoint(folder)
    assert peak_memory_bytes(cpu) - before_bytes < tensors["w0"].nbytes + _SLACK_BYTES
