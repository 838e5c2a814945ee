"""Restoring: strict, in place, and from any number of pieces."""

import pickle
from dataclasses import replace

import pytest
import torch

from trireme.checkpoint import (
    Checkpoint,
    check_resumable,
    find_nonfinite,
    open_checkpoint,
    restore_tensors,
    save_checkpoint,
    weights_only,
)
from trireme.checkpoint.folder import new_save_id
from trireme.checkpoint.manifest import format_manifest, parse_manifest
from trireme.checkpoint.record import Manifest, TensorRecord
from trireme.checkpoint.shard import tensor_entry, write_shard
from trireme.errors import CheckpointError


def _saved(folder, tensors, **rest) -> Checkpoint:
    return open_checkpoint(save_checkpoint(folder, step=1, tensors=tensors, state={"step": 1}, **rest))


def test_targets_are_filled_in_place_whatever_their_strides(tmp_path):
    source = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    targets = {"a": torch.zeros(4, 3).t(), "b": torch.zeros(5, dtype=torch.int64)}
    addresses = {name: tensor.data_ptr() for name, tensor in targets.items()}
    restore_tensors(_saved(tmp_path, source), targets)
    assert all(torch.equal(targets[name], source[name]) for name in source)
    assert addresses == {name: tensor.data_ptr() for name, tensor in targets.items()}


def test_parameters_that_need_gradients_are_restored(tmp_path):
    module = torch.nn.Linear(3, 2)
    saved = {name: value.detach().clone() for name, value in module.named_parameters()}
    checkpoint = _saved(tmp_path, saved)
    torch.nn.init.zeros_(module.weight)
    restore_tensors(checkpoint, dict(module.named_parameters()))
    assert torch.equal(module.weight, saved["weight"])
    assert module.weight.requires_grad


def test_everything_wrong_is_listed_in_one_error_and_nothing_is_copied(tmp_path):
    checkpoint = _saved(
        tmp_path, {"a": torch.ones(2), "shape": torch.ones(2), "dtype": torch.ones(2), "extra": torch.ones(2)}
    )
    targets = {
        "a": torch.zeros(2),
        "shape": torch.zeros(3),
        "dtype": torch.zeros(2, dtype=torch.float64),
        "absent": torch.zeros(2),
    }
    with pytest.raises(CheckpointError) as caught:
        restore_tensors(checkpoint, targets)
    for part in ("absent", "extra", "shape [2] -> [3]", "dtype float32 -> float64"):
        assert part in str(caught.value)
    assert torch.equal(targets["a"], torch.zeros(2))


def test_ckp_04_entries_that_nobody_claims_are_reported_by_name_and_counted(tmp_path):
    checkpoint = _saved(tmp_path, {f"optim/{i:02d}": torch.ones(1) for i in range(20)})
    with pytest.raises(CheckpointError, match=r"nobody claims: optim/01, .*optim/06 and 13 more"):
        restore_tensors(checkpoint, {"optim/00": torch.zeros(1)})


def test_ckp_07_ckp_36_a_random_state_that_was_not_saved_is_an_error_naming_it(tmp_path):
    checkpoint = _saved(tmp_path, {"model/w": torch.ones(1)})
    targets = {"model/w": torch.zeros(1), "rng/rank-1": torch.zeros(4, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="missing in the checkpoint: rng/rank-1"):
        restore_tensors(checkpoint, targets)


def test_ckp_32_weights_are_told_from_a_run_to_go_on_with(tmp_path):
    full = _saved(tmp_path / "full", {"model/w": torch.ones(2), "optim/w.m": torch.ones(2)})
    assert weights_only(full) == ("model/w",)
    check_resumable(full)
    target = {"model/w": torch.zeros(2)}
    restore_tensors(full, target, prefix="model/")
    assert torch.equal(target["model/w"], torch.ones(2))
    weights = _saved(tmp_path / "weights", {"model/w": torch.ones(2)})
    with pytest.raises(CheckpointError, match="weights only"):
        check_resumable(weights)


def test_ckp_26_tied_weights_come_back_tied_and_by_either_name(tmp_path):
    weight = torch.randn(4)
    checkpoint = _saved(tmp_path, {"model/embed": weight, "model/head": weight})
    both = torch.zeros(4)
    restore_tensors(checkpoint, {"model/embed": both, "model/head": both})
    assert torch.equal(both, weight)
    for name in ("model/embed", "model/head"):
        alone = torch.zeros(4)
        restore_tensors(checkpoint, {name: alone})
        assert torch.equal(alone, weight)


def test_weights_tied_on_one_side_only_are_refused(tmp_path):
    weight, shared = torch.ones(2), torch.zeros(2)
    tied = _saved(tmp_path / "tied", {"embed": weight, "head": weight})
    with pytest.raises(CheckpointError, match="shared memory on one side only: head = embed"):
        restore_tensors(tied, {"embed": torch.zeros(2), "head": torch.zeros(2)})
    apart = _saved(tmp_path / "apart", {"embed": torch.ones(2), "head": torch.full((2,), 2.0)})
    with pytest.raises(CheckpointError, match="shared memory on one side only: head = embed"):
        restore_tensors(apart, {"embed": shared, "head": shared})


def test_nonfinite_tensors_are_named(tmp_path):
    tensors = {
        "fine": torch.ones(2),
        "whole": torch.ones(2, dtype=torch.int64),
        "nan": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
        "inf": torch.tensor([float("inf")]),
        "complex": torch.tensor([complex(0, float("inf"))]),
        "small": torch.tensor([float("nan")]).to(torch.float8_e4m3fn),
    }
    assert set(find_nonfinite(_saved(tmp_path, tensors))) == {"nan", "inf", "complex", "small"}


def test_a_checkpoint_marked_not_finite_is_not_resumable(tmp_path):
    checkpoint = _saved(tmp_path, {"model/w": torch.ones(1), "o": torch.ones(1)}, finite=False)
    with pytest.raises(CheckpointError, match="NaN or Inf"):
        check_resumable(checkpoint)


def test_an_unknown_tensor_is_asked_for_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="has no tensor 'q'"):
        _saved(tmp_path, {"w": torch.ones(1)}).tensor("q")


def test_errors_survive_the_way_home_from_a_worker_process(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "none")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def _write_sharded(folder, tensors, cuts):
    """Write a checkpoint of several shards: ``cuts[name]`` lists the ranges that each shard holds."""
    save_id = new_save_id()
    num_shards = max(len(pieces) for pieces in cuts.values())
    written = []
    for i in range(num_shards):
        entries = [
            replace(tensor_entry(name, _cut(tensors[name], pieces[i])), ranges=pieces[i])
            for name, pieces in cuts.items()
            if i < len(pieces)
        ]
        written.append(write_shard(folder / f"shard-{i:05d}.safetensors", entries, save_id=save_id))
    records = {
        name: TensorRecord(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            slices=tuple(piece for shard in written for owner, piece in shard.slices if owner == name),
        )
        for name, tensor in tensors.items()
    }
    manifest = Manifest(
        save_id=save_id,
        run_id="",
        step=1,
        sequence=1,
        created_at_s=0.0,
        layout="tp=2",
        finite=True,
        save_retries=0,
        versions={},
        metrics={},
        state={},
        shards={shard.record.file: shard.record for shard in written},
        tensors=records,
    )
    for name in ("manifest.json", "manifest.copy.json"):
        (folder / name).write_bytes(format_manifest(manifest))
    return manifest


def _cut(tensor, ranges):
    for dim, pieces in enumerate(ranges):
        index = torch.cat([torch.arange(start, start + length) for start, length in pieces])
        tensor = tensor.index_select(dim, index)
    return tensor


def test_ckp_05_slices_of_several_ranges_in_several_shards_make_up_the_whole(tmp_path):
    tensors = {"fused": torch.arange(60.0).reshape(10, 6), "rows": torch.arange(97 * 2).reshape(97, 2)}
    cuts = {
        # A fused matrix: query rows 0-3, key rows 4-6, value rows 7-9, each dealt to two ranks.
        "fused": [
            (((0, 2), (4, 2), (7, 1)), ((0, 6),)),
            (((2, 2), (6, 1), (8, 2)), ((0, 2),)),
            (((2, 2), (6, 1), (8, 2)), ((2, 4),)),
        ],
        "rows": [(((0, 25),), ((0, 2),)), (((25, 24),), ((0, 2),)), (((49, 48),), ((0, 2),))],
    }
    folder = tmp_path / "step-1"
    folder.mkdir()
    _write_sharded(folder, tensors, cuts)
    checkpoint = open_checkpoint(folder)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in tensors.items())


def test_a_manifest_reads_back_equal_to_what_was_written(tmp_path):
    folder = tmp_path / "step-1"
    folder.mkdir()
    manifest = _write_sharded(folder, {"w": torch.ones(4)}, {"w": [(((0, 2),),), (((2, 2),),)]})
    assert parse_manifest(format_manifest(manifest), path=folder) == manifest


@pytest.mark.parametrize(
    "pieces",
    [
        [(((0, 2),),)],
        [(((0, 3),),), (((2, 2),),)],
        [(((0, 2),),), (((0, 2),),)],
        [(((2, 2), (0, 2)),)],
    ],
)
def test_slices_that_leave_out_or_repeat_elements_are_refused(tmp_path, pieces):
    folder = tmp_path / "step-1"
    folder.mkdir()
    _write_sharded(folder, {"w": torch.ones(4)}, {"w": pieces})
    with pytest.raises(CheckpointError, match="contradicts itself"):
        open_checkpoint(folder)
