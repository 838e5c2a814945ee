"""Which checkpoint is the newest good one, and which are kept."""

import math
import os
import threading
import time

import pytest
import torch

from trireme.checkpoint import list_checkpoints, newest_checkpoint, open_checkpoint, prune_checkpoints, save_checkpoint
from trireme.checkpoint.folder import new_save_id
from trireme.errors import CheckpointError


def _save(root, step, loss=None, run_id="", **rest):
    metrics = {} if loss is None else {"eval_loss": loss}
    values = {"model/w": torch.full((3,), float(step))}
    return save_checkpoint(root, step=step, tensors=values, state={"s": step}, metrics=metrics, run_id=run_id, **rest)


def _steps(root):
    return [info.step for info in list_checkpoints(root)]


def test_an_absent_or_empty_root_has_no_newest(tmp_path):
    assert newest_checkpoint(tmp_path / "absent") is None
    assert newest_checkpoint(tmp_path) is None
    assert list_checkpoints(tmp_path) == []


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (9, 10, 100):
        _save(tmp_path, step)
    assert newest_checkpoint(tmp_path).step == 100


def test_every_bad_newer_one_is_named_with_its_reason(tmp_path):
    for step in (1, 2, 3, 4):
        _save(tmp_path, step)
    os.truncate(tmp_path / "step-2" / "shard-00000.safetensors", 5)
    (tmp_path / "step-3" / "shard-00000.safetensors").unlink()
    for name in ("manifest.json", "manifest.copy.json"):
        os.truncate(tmp_path / "step-4" / name, 9)
    (tmp_path / f"step-5.inprogress-{new_save_id()}").mkdir()
    notices = []
    assert newest_checkpoint(tmp_path, notice=notices.append).step == 1
    assert [next(step for step in "5432" if f"step-{step}" in text) for text in notices] == ["3", "2", "4", "5"]


def test_one_marked_not_finite_is_never_the_newest(tmp_path):
    _save(tmp_path, 1)
    _save(tmp_path, 2, finite=False)
    notices = []
    assert newest_checkpoint(tmp_path, notice=notices.append).step == 1
    assert "NaN or Inf" in notices[0]


def test_the_newest_is_the_one_saved_last_even_if_a_run_went_back(tmp_path):
    for step in (10, 20):
        _save(tmp_path, step)
    _save(tmp_path, 12)
    assert newest_checkpoint(tmp_path).step == 12
    prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
    assert _steps(tmp_path) == [12]


def test_the_list_tells_size_metrics_and_problems(tmp_path):
    _save(tmp_path, 1, loss=2.0)
    _save(tmp_path, 2)
    shard = tmp_path / "step-2" / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    first, second = list_checkpoints(tmp_path, verify=True)
    assert first.is_good
    assert first.manifest.metrics == {"eval_loss": 2.0}
    assert first.size_bytes == sum(path.stat().st_size for path in first.path.iterdir())
    assert "model/w" in second.problem


@pytest.mark.parametrize("keep_best", [False, True])
def test_ckp_10_keeping_one_keeps_the_newest_and_the_best(tmp_path, keep_best):
    for step, loss in ((2, 3.0), (4, 1.0), (6, 2.0)):
        _save(tmp_path, step, loss=loss)
        prune_checkpoints(tmp_path, keep_last=1, keep_best=keep_best)
        assert newest_checkpoint(tmp_path).step == step
    assert _steps(tmp_path) == ([4, 6] if keep_best else [6])


def test_ckp_10_at_every_moment_a_complete_checkpoint_exists(tmp_path):
    _save(tmp_path, 0)
    empty, done = [], threading.Event()

    def watch():
        while not done.is_set():
            if not any(path.name.startswith("step-") and "." not in path.name for path in tmp_path.iterdir()):
                empty.append(time.monotonic())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for step in range(1, 30):
        _save(tmp_path, step)
        prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
    done.set()
    watcher.join()
    assert empty == []


def test_pruning_tells_what_is_gone(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path, step)
    assert prune_checkpoints(tmp_path, keep_last=2, keep_best=False) == [tmp_path / "step-1"]
    assert _steps(tmp_path) == [2, 3]


def test_a_best_one_needs_a_finite_loss_and_equal_ones_keep_the_later(tmp_path):
    for step, loss in ((1, math.nan), (2, 1.0), (3, 1.0), (4, None), (5, 2.0)):
        _save(tmp_path, step, loss=loss)
    prune_checkpoints(tmp_path, keep_last=1, keep_best=True)
    assert _steps(tmp_path) == [3, 5]


def test_a_good_one_survives_newer_ones_marked_not_finite(tmp_path):
    _save(tmp_path, 1)
    for step in (2, 3):
        _save(tmp_path, step, finite=False)
    prune_checkpoints(tmp_path, keep_last=1, keep_best=True)
    assert _steps(tmp_path) == [1, 3]


def test_damaged_ones_are_not_counted_among_those_kept(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path, step)
    os.truncate(tmp_path / "step-3" / "shard-00000.safetensors", 5)
    prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
    assert newest_checkpoint(tmp_path, notice=lambda text: None).step == 2


def test_ckp_12_only_the_runs_own_checkpoints_are_pruned(tmp_path):
    for step in (2, 4, 6, 8):
        _save(tmp_path, step, run_id="a")
    for step in (1, 3, 5):
        _save(tmp_path, step, run_id="b")
        prune_checkpoints(tmp_path, keep_last=2, keep_best=False, run_id="b")
    assert sorted(_steps(tmp_path)) == [2, 3, 4, 5, 6, 8]
    assert newest_checkpoint(tmp_path, run_id="a").step == 8
    assert newest_checkpoint(tmp_path, run_id="b").step == 5


def test_leftovers_go_when_their_process_is_dead_and_stay_while_it_lives(tmp_path):
    _save(tmp_path, 1)
    alive = tmp_path / f"step-2.inprogress-{new_save_id()}"
    machine, pid, started, rest = new_save_id().split("-")
    dead = tmp_path / f"step-2.inprogress-{machine}-p{2**22 + 1}-{started}-{rest}"
    reused = tmp_path / f"step-3.deleting-{machine}-{pid}-t5-{rest}"
    foreign = tmp_path / f"step-4.inprogress-00000000-p1-t1-{rest}"
    old = tmp_path / f"step-5.inprogress-00000000-p1-t1-{rest}"
    other = tmp_path / "step-notes"
    for folder in (alive, dead, reused, foreign, old, other):
        folder.mkdir()
    os.utime(old, (0, 0))
    gone = prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
    assert set(gone) == {dead, reused, old}
    assert all(folder.exists() for folder in (alive, foreign, other, tmp_path / "step-1"))


def test_a_kill_between_two_renames_costs_nothing(tmp_path):
    folder = _save(tmp_path, 1)
    replaced = tmp_path / f"step-1.replaced-{new_save_id()}"
    folder.rename(replaced)
    assert newest_checkpoint(tmp_path).path == replaced
    prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
    assert replaced.exists()


def test_an_unfinished_folder_and_a_root_are_no_checkpoints(tmp_path):
    for step in (9, 10):
        _save(tmp_path, step)
    with pytest.raises(CheckpointError, match=r"such as .*step-10"):
        open_checkpoint(tmp_path)
    unfinished = (tmp_path / "step-10").rename(tmp_path / f"step-11.inprogress-{new_save_id()}")
    with pytest.raises(CheckpointError, match="cut off"):
        open_checkpoint(unfinished)
