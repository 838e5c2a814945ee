"""kill -9 in the middle of a save: the save is whole or absent, and what was there before stays."""

import multiprocessing
import random
import time

import torch

from trireme.checkpoint import list_checkpoints, newest_checkpoint, open_checkpoint, prune_checkpoints, save_checkpoint

_NUM_KILLS = 20
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["trireme.mesh.preload"])


def _save_for_ever(root, step, pipe):
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        values = {f"w{i}": torch.full((1 << 18,), float(step)) for i in range(16)}
        save_checkpoint(root, step=step, tensors=values, state={"step": step})
        pipe.send(step)
        step += 1


def _kill_while_saving(root, step, wait_s):
    """Start a process that saves step after step, kill it after a while, return the last step it reported."""
    ours, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_save_for_ever, args=(root, step, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    time.sleep(wait_s)
    process.kill()
    process.join()
    last = step - 1
    while True:
        try:
            last = ours.recv()
        except EOFError:
            return last


def test_a_kill_at_any_moment_never_leaves_a_torn_checkpoint_nor_costs_an_old_one(tmp_path):
    moment = random.Random(7)
    last, num_cut_off = 0, 0
    save_checkpoint(tmp_path, step=0, tensors={"w": torch.zeros(2)}, state={"step": 0})
    for _ in range(_NUM_KILLS):
        committed = _kill_while_saving(tmp_path, last + 1, moment.uniform(0.0, 0.2))
        num_cut_off += any(".inprogress-" in each.name for each in tmp_path.iterdir())
        found = newest_checkpoint(tmp_path, notice=lambda text: None)
        # A save may have got its name just before it could be reported; never the other way round.
        assert found.step in (committed, committed + 1)
        if found.step:
            assert all(bool((found.tensor(name) == found.step).all()) for name in found.names)
        for info in list_checkpoints(tmp_path):
            assert info.is_good
            assert open_checkpoint(info.path).state == {"step": info.step}
        prune_checkpoints(tmp_path, keep_last=1, keep_best=False)
        assert [each.name for each in tmp_path.iterdir()] == [f"step-{found.step}"], "leftovers of the dead are removed"
        last = found.step
    assert last > 0, "some saves must have been completed for this to mean anything"
    assert num_cut_off > 0, "some must have been cut off, too"
