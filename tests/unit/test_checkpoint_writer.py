"""The writer beside the training: what it writes is the moment of the save, whatever happens to it or to the storage."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import psutil
import pytest
import torch

from tests.unit.many_ranks import events, hear_all, piece_of, save_on_ranks
from trireme.checkpoint import (
    RankSaver,
    Retention,
    StatePiece,
    fetch_newest,
    full_ranges,
    list_checkpoints,
    newest_checkpoint,
    open_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from trireme.checkpoint.fault import VARIABLE

SIZE = 3_000_000
_NUM_PLACES = 300
_SAVES_BEFORE_KILL = (1, 0, 2, 0, 1)


def whole(tensor, *, frozen=False):
    shape = tuple(tensor.shape)
    return StatePiece(tensor=tensor, shape=shape, ranges=full_ranges(shape), frozen=frozen)


@pytest.fixture
def saver():
    made = RankSaver()
    made.warm(value_bytes=8 * SIZE, num_parts=4)
    yield made
    made.close()


def saver_with(fault, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps(fault))
    made = RankSaver()
    made.warm(value_bytes=8 * SIZE, num_parts=4)
    return made


def begin(root, saver, pieces, *, step=1, **lead):
    """Give one rank's order without waiting for its end."""
    from trireme.checkpoint import LeadOrder, WriteOrder, begin_save, blank_manifest, deal_pieces, describe_pieces

    deal = deal_pieces([describe_pieces(pieces)])
    blank = blank_manifest(step=step, state={"step": step}, metrics={}, run_id="run", layout="dp=1", finite=True)
    save_id, folder = begin_save(root, step=step, value_bytes=deal.total_bytes, num_tensors=len(deal.tensors))
    leads = LeadOrder(num_ranks=1, tensors=deal.tensors, manifest=blank, **lead)
    order = WriteOrder(
        number=step, rank=0, folder=folder, save_id=save_id, run_id="run", parts=(), backoff_s=0.01, lead=leads
    )
    assert saver.take(pieces, deal.parts[0], order=order) is None


def test_ckp_21_the_file_holds_the_values_of_the_moment_of_the_save(tmp_path, monkeypatch):
    """CKP-22 too: the writer is slow, the values change at once, and all parts are of one step."""
    saver = saver_with({"kind": "slow", "seconds": 0.1}, monkeypatch)
    values, counter = torch.zeros(SIZE), torch.tensor(0.0)
    for step in range(1, 4):
        values.fill_(step)
        counter.fill_(step)
        begin(tmp_path, saver, {"model/w": whole(values), "optimizer/w/step": whole(counter)}, step=step)
        values.fill_(-1)
        counter.fill_(-1)
        assert "committed" in events(hear_all(saver))
        found = open_checkpoint(tmp_path / f"step-{step}")
        assert found.state["step"] == step == float(found.tensor("optimizer/w/step"))
        assert bool((found.tensor("model/w") == step).all())
    saver.close()


def test_one_rank_writes_what_the_plain_save_writes(tmp_path, saver):
    from safetensors.torch import load_file

    tensors = {
        "model/a": torch.randn(7, 3),
        "model/b": torch.randn(5).bfloat16(),
        "optimizer/a/step": torch.tensor(1.0),
    }
    tensors["model/tied"] = tensors["model/a"]
    save_checkpoint(tmp_path / "plain", step=1, tensors=tensors, state={"step": 1}, run_id="run")
    begin(tmp_path / "beside", saver, {name: whole(tensor) for name, tensor in tensors.items()})
    hear_all(saver)
    plain, beside = (open_checkpoint(tmp_path / name / "step-1") for name in ("plain", "beside"))
    assert plain.manifest.tensors == beside.manifest.tensors
    files = [load_file(each.path / "shard-00000.safetensors") for each in (plain, beside)]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_ckp_30_a_killed_writer_is_replaced_and_the_save_comes_to_its_end(tmp_path, monkeypatch):
    saver = saver_with({"kind": "slow", "seconds": 0.2}, monkeypatch)
    begin(tmp_path, saver, {"model/w": whole(torch.ones(SIZE))})
    time.sleep(0.3)
    os.kill(saver.writer_pid, signal.SIGKILL)
    begun_s = time.monotonic()
    answers = hear_all(saver)
    assert time.monotonic() - begun_s < 10
    assert "died" in answers[0].text
    assert "committed" in events(answers)
    assert bool((open_checkpoint(tmp_path / "step-1").tensor("model/w") == 1).all())
    saver.close()


@pytest.mark.parametrize("kind", ["die", "die_at_commit", "torn", "fail"])
def test_ckp_31_what_strikes_twice_costs_two_attempts_and_no_checkpoint(tmp_path, monkeypatch, kind):
    fault = {"kind": kind, "times": 2, "marks": str(tmp_path / "marks")}
    saver = saver_with(fault, monkeypatch)
    begin(tmp_path / "root", saver, {"model/w": whole(torch.ones(SIZE))})
    answers = hear_all(saver)
    # A writer that starts anew after the manifest has only the name left to give.
    assert events(answers).count("note") == (1 if kind == "die_at_commit" else 2)
    found = open_checkpoint(tmp_path / "root" / "step-1")
    assert found.manifest.save_retries == (2 if kind in ("torn", "fail") else 0)
    assert [each.name for each in (tmp_path / "root").iterdir()] == ["step-1"]
    saver.close()


@pytest.mark.parametrize("fault", [{"kind": "full"}, {"kind": "fail", "times": 99}, {"kind": "die", "times": 99}])
def test_a_save_that_can_not_be_made_costs_nothing_that_was_there(tmp_path, monkeypatch, fault):
    save_checkpoint(tmp_path / "root", step=1, tensors={"model/w": torch.ones(3)}, state={"step": 1}, run_id="run")
    saver = saver_with({**fault, "marks": str(tmp_path / "marks")}, monkeypatch)
    begin(tmp_path / "root", saver, {"model/w": whole(torch.ones(SIZE))}, step=2)
    assert "failed" in events(hear_all(saver))
    assert newest_checkpoint(tmp_path / "root", notice=lambda text: None).step == 1
    assert not (tmp_path / "root" / "step-2").exists()
    monkeypatch.setenv(VARIABLE, "{}")
    saver.close()


def test_a_writer_that_no_longer_answers_is_replaced(tmp_path, monkeypatch):
    saver = saver_with({"kind": "hang", "marks": str(tmp_path / "marks")}, monkeypatch)
    saver._link._silence_s = 1.0
    begin(tmp_path / "root", saver, {"model/w": whole(torch.ones(SIZE))})
    answers = hear_all(saver)
    assert "no longer answers" in answers[0].text
    assert "committed" in events(answers)
    saver.close()


def test_a_rank_that_could_not_write_is_named_and_the_save_is_given_up(tmp_path, monkeypatch):
    rows = torch.arange(10.0).view(10, 1)
    pieces = [{"model/w": piece_of(rows, (((start, 5),), ((0, 1),)))} for start in (0, 5)]
    savers = [RankSaver(background=False), saver_with({"kind": "full"}, monkeypatch)]
    answers = save_on_ranks(tmp_path, pieces, savers=savers)
    assert "failed" in events(answers)
    assert "rank 1" in answers[-2].text
    assert not list(tmp_path.glob("step-*"))
    savers[1].close()


def test_without_memory_for_a_snapshot_the_live_values_are_written_at_once(tmp_path, monkeypatch):
    from collections import namedtuple

    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("Memory", "available")(1000))
    saver = RankSaver()
    with pytest.raises(AssertionError, match="a snapshot needs"):
        begin(tmp_path, saver, {"model/w": whole(torch.ones(7))})
    assert "committed" in events(saver.hear())
    assert torch.equal(open_checkpoint(tmp_path / "step-1").tensor("model/w"), torch.ones(7))
    saver.close()


def test_what_is_frozen_is_stored_once_and_pruning_never_loses_it(tmp_path, saver):
    """A base under an adapter: linked from save to save, by a new writer too, and whole in any copy."""
    base, adapter = torch.randn(SIZE), torch.zeros(5)
    pieces = {"model/base": whole(base, frozen=True), "model/adapter": whole(adapter)}
    for step in (1, 2, 3):
        adapter.fill_(step)
        begin(tmp_path / "root", saver, pieces, step=step, retention=Retention(last=1, best=False))
        assert "committed" in events(hear_all(saver))
    later = RankSaver(background=False)
    begin(tmp_path / "root", later, pieces, step=4)
    hear_all(later)
    shards = [tmp_path / "root" / f"step-{step}" / "shard-00000.frozen.safetensors" for step in (3, 4)]
    assert shards[0].stat().st_ino == shards[1].stat().st_ino
    assert not (tmp_path / "root" / "step-1").exists()
    shutil.copytree(tmp_path / "root" / "step-4", tmp_path / "copy" / "step-4")
    shutil.rmtree(tmp_path / "root")
    found = open_checkpoint(tmp_path / "copy" / "step-4")
    assert torch.equal(found.tensor("model/base"), base)
    assert found.manifest.shards["shard-00000.frozen.safetensors"].save_id != found.manifest.save_id
    base[0] += 1
    begin(tmp_path / "root", saver, pieces, step=5)
    assert "committed" in events(hear_all(saver))
    assert torch.equal(open_checkpoint(tmp_path / "root" / "step-5").tensor("model/base"), base)


def test_every_byte_region_of_a_checkpoint_of_four_ranks_is_guarded(tmp_path):
    """At 300 places a bit is flipped or the file cut: each is found, and each falls back to the good one."""
    generator = torch.Generator().manual_seed(0)
    tensors = {f"model/{i}": torch.randn(16, 11, generator=generator) for i in range(3)}
    tensors["optimizer/0/step"] = torch.tensor(3.0)
    for step in (1, 2):
        pieces = [
            {
                name: piece_of(tensor, (((rank * 4, 4),), ((0, 11),)) if tensor.dim() else ())
                for name, tensor in tensors.items()
            }
            for rank in range(4)
        ]
        save_on_ranks(tmp_path, pieces, step=step)
    place, found = random.Random(5), 0
    files = sorted((tmp_path / "step-2").iterdir())
    assert len(files) == 6
    for i in range(_NUM_PLACES):
        path = files[i % len(files)]
        data = path.read_bytes()
        # Regions of equal size in turn, a place in each at random.
        region, regions = i // len(files), _NUM_PLACES // len(files)
        offset = min(len(data) - 1, int(len(data) * (region + place.random()) / regions))
        damaged = data[:offset] + bytes([data[offset] ^ (1 << i % 8)]) + data[offset + 1 :] if i % 2 else data[:offset]
        path.write_bytes(damaged)
        notices: list[str] = []
        step = newest_checkpoint(tmp_path, notice=notices.append).step
        # Damage to one manifest is made good by its copy.
        assert step == (2 if path.suffix == ".json" else 1), (path.name, offset)
        assert notices, (path.name, offset)
        found += 1
        path.write_bytes(data)
    assert found == _NUM_PLACES
    assert newest_checkpoint(tmp_path, notice=lambda text: None).step == 2


@pytest.mark.parametrize("place", ["folder", "memory://copies"])
def test_a_copy_elsewhere_is_whole_or_not_there_and_comes_back(tmp_path, place):
    place = str(tmp_path / "elsewhere") if place == "folder" else place
    saver = RankSaver(background=False)
    for step in (1, 2):
        begin(tmp_path / "root", saver, {"model/w": whole(torch.full((9,), float(step)))}, step=step, copy_to=place)
        assert "copied" in events(saver.hear())
    shutil.rmtree(tmp_path / "root")
    found = fetch_newest(place, tmp_path / "root", run_id="run", notice=pytest.fail)
    assert found.step == 2
    assert torch.equal(found.tensor("model/w"), torch.full((9,), 2.0))
    assert fetch_newest(place, tmp_path / "root", run_id="other", notice=pytest.fail) is None


def _save_for_ever(root, step, pipe):
    torch.set_num_threads(1)
    saver = RankSaver()
    saver.warm(value_bytes=1 << 24, num_parts=20)
    pipe.send(saver.writer_pid)
    while True:
        pieces = {f"model/{i}": whole(torch.full((1 << 17,), float(step))) for i in range(16)}
        begin(root, saver, pieces, step=step)
        hear_all(saver)
        pipe.send(step)
        step += 1


def test_a_kill_of_the_trainer_leaves_no_torn_checkpoint_and_no_writer(tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["trireme.mesh.preload"])
    moment, last, writers = random.Random(3), 0, []
    for saves in _SAVES_BEFORE_KILL:
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=_save_for_ever, args=(tmp_path, last + 1, theirs))
        process.start()
        theirs.close()
        writers.append(ours.recv())
        reported = last
        for _ in range(saves):
            reported = ours.recv()
        time.sleep(moment.uniform(0.0, 0.15))
        process.kill()
        process.join()
        while True:
            try:
                reported = ours.recv()
            except EOFError:
                break
        found = newest_checkpoint(tmp_path, notice=lambda text: None)
        step = found.step if found else 0
        assert step in (reported, reported + 1)
        assert all(info.is_good for info in list_checkpoints(tmp_path, verify=True))
        prune_checkpoints(tmp_path, keep_last=1, keep_best=False, run_id="run")
        last = step
    assert last > 0
    for _ in range(100):
        alive = [pid for pid in writers if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            break
        time.sleep(0.05)
    assert not alive, "a writer outlived its trainer"
