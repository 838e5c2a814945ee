"""The loader: the same batches however they are prepared, and no way to hang or leave anything behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.unit.memory_stream import make_store, make_stream, one_row_documents
from trireme.data import slot
from trireme.data.batch import Batch
from trireme.data.loader import Loader
from trireme.data.stream import SampleStream
from trireme.errors import DataError

SECONDS = 30.0
"""Far more than noticing takes, far less than a hang."""


@pytest.fixture(scope="module")
def stream() -> SampleStream:
    return make_stream(make_store([9] * 20 + [40, 3, 3, 5, 12], num_shards=2), make_store(one_row_documents(7)))


def mapped(name: str) -> SampleStream:
    return make_stream(make_store(one_row_documents(12)), sample_map=f"tests.unit.sample_maps:{name}")


def contents(batch: Batch) -> tuple[object, ...]:
    arrays = (batch.sample_ids, batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
    return batch.step, batch.num_real_tokens, batch.num_target_tokens, *(array.tolist() for array in arrays)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and any(is_alive(pid) for pid in pids):
        time.sleep(0.02)
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("workers", "prefetch", "first_step"), [(0, 1, 0), (0, 4, 5), (1, 1, 0), (1, 3, 5), (2, 1, 5), (3, 2, 4)]
)
def test_dat_02_batches_are_the_same_for_any_workers_and_prefetch(
    stream: SampleStream, workers: int, prefetch: int, first_step: int
) -> None:
    expected = [stream.read(s, global_batch_seqs=5, dp_rank=1, dp_degree=2) for s in range(first_step, 12)]
    loader = Loader(
        stream,
        global_batch_seqs=5,
        first_step=first_step,
        last_step=12,
        dp_rank=1,
        dp_degree=2,
        workers=workers,
        prefetch=prefetch,
    )
    with loader:
        assert [contents(batch) for batch in loader] == [contents(batch) for batch in expected]
        assert list(loader) == []


def test_dat_02_a_stream_of_100_numbered_samples_is_seen_once_for_two_ranks_and_any_workers() -> None:
    numbered = make_stream(make_store(one_row_documents(100)))
    for workers in (0, 1, 3):
        seen: list[int] = []
        for rank in range(2):
            options = {"global_batch_seqs": 10, "last_step": 10, "dp_rank": rank, "dp_degree": 2}
            with Loader(numbered, workers=workers, **options) as loader:
                seen += [int(i) for batch in loader for i in batch.sample_ids]
        assert sorted(seen) == list(range(100))


def test_dat_01_every_worker_gives_samples_whatever_the_number_of_files() -> None:
    """Six files or one, two ranks, two and four workers: steps are dealt out, not files."""
    for num_shards, workers, ranks in ((6, 2, (0, 1)), (1, 4, (1,))):
        sharded = make_stream(make_store(one_row_documents(60), num_shards=num_shards))
        for rank in ranks:
            options = {"global_batch_seqs": 10, "last_step": 6, "dp_rank": rank, "dp_degree": 2}
            with Loader(sharded, workers=workers, **options) as loader:
                steps = [batch.step for batch in loader]
            assert {step % workers for step in steps} == set(range(workers))


def test_a_batch_stays_as_it_was_when_the_next_ones_come(stream: SampleStream) -> None:
    with Loader(stream, global_batch_seqs=4, last_step=8, workers=1, prefetch=1) as loader:
        first = next(loader)
        before = contents(first)
        list(loader)
        assert contents(first) == before


def test_dat_05_random_functions_give_the_same_for_any_workers() -> None:
    results = []
    for workers in (0, 2):
        with Loader(mapped("draw_from_everywhere"), global_batch_seqs=4, last_step=6, workers=workers) as loader:
            results.append([contents(batch) for batch in loader])
    assert results[0] == results[1]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("raise_value_error", DataError, "raised ValueError: bad row 7 for sample"),
        ("raise_eof", DataError, "raised EOFError: the user's own file ended for sample"),
        ("shorten", DataError, "input_ids of shape"),
    ],
)
def test_an_error_arrives_as_what_it_was(workers: int, name: str, kind: type[Exception], message: str) -> None:
    with Loader(mapped(name), global_batch_seqs=4, workers=workers) as loader:
        with pytest.raises(kind, match=message) as caught:
            next(loader)
        assert type(caught.value) is kind
        with pytest.raises(DataError, match="closed"):
            next(loader)


def test_an_error_whose_arguments_cannot_travel_is_told() -> None:
    loader = Loader(mapped("raise_odd_error"), global_batch_seqs=4, workers=1)
    with loader, pytest.raises(DataError, match="OddError: 3 and 4"):
        next(loader)


def test_batches_before_the_error_are_still_given() -> None:
    with Loader(mapped("keep"), global_batch_seqs=4, workers=2, last_step=4) as loader:
        assert [batch.step for batch in loader] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "fate"), [("kill_own_process", "killed by signal 9"), ("exit_own_process", "exit code 3")]
)
def test_a_dead_worker_is_named_within_seconds(name: str, fate: str) -> None:
    begun = time.monotonic()
    with Loader(mapped(name), global_batch_seqs=4, workers=2) as loader:
        pids = loader.worker_pids
        with pytest.raises(DataError, match=rf"Data worker 0 \(process {pids[0]}\) (was|ended).*") as caught:
            next(loader)
    assert fate in str(caught.value)
    assert time.monotonic() - begun < SECONDS
    wait_until_gone(pids)


def test_closing_ends_workers_even_in_the_middle_of_a_sample() -> None:
    loader = Loader(mapped("take_long"), global_batch_seqs=4, workers=2)
    pids = loader.worker_pids
    time.sleep(0.5)
    loader.close()
    loader.close()
    wait_until_gone(pids)


def test_dropping_the_loader_ends_threads_and_workers(stream: SampleStream) -> None:
    threads = threading.active_count()
    for workers in (0, 2):
        loader = Loader(stream, global_batch_seqs=4, workers=workers)
        next(loader)
        pids = loader.worker_pids
        del loader
        gc.collect()
        wait_until_gone(pids)
    assert threading.active_count() == threads


def test_no_descriptors_and_no_shared_memory_are_left(stream: SampleStream) -> None:
    def held() -> tuple[int, set[str]]:
        return len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))

    with Loader(stream, global_batch_seqs=4, workers=1) as loader:
        next(loader)
    gc.collect()
    before = held()
    for _ in range(2):
        with Loader(stream, global_batch_seqs=4, workers=1) as loader:
            next(loader)
    del loader
    gc.collect()
    assert held() == before


SCRIPT = """
import sys, time
from tests.unit.memory_stream import make_store, make_stream, one_row_documents
from trireme.data.loader import Loader
stream = make_stream(make_store(one_row_documents(12)), sample_map="tests.unit.sample_maps:print_something")
loader = Loader(stream, global_batch_seqs=4, workers=2)
next(loader)
print(*loader.worker_pids, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_trainer_and_ctrl_c_leaves_no_noise(tmp_path: Path, blow: signal.Signals) -> None:
    """The script has no main guard and lives in a file: workers must not run it again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    trainer = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 2
    if blow == signal.SIGINT:
        os.killpg(trainer.pid, blow)  # as a terminal does
    else:
        trainer.send_signal(blow)
    _, errors = trainer.communicate(timeout=SECONDS)
    wait_until_gone(pids)
    assert errors.count("Traceback") <= (blow == signal.SIGINT)
    assert "this is not a result" in errors


def test_a_system_without_room_says_how_much_is_needed(stream: SampleStream, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slot.os, "posix_fallocate", refuse)
    with pytest.raises(DataError, match=r"need .*KiB of shared memory.*No space left"):
        Loader(stream, global_batch_seqs=32, workers=1)


def test_ranks_without_samples_work_with_processes(stream: SampleStream) -> None:
    with Loader(stream, global_batch_seqs=1, dp_rank=0, dp_degree=2, workers=1, last_step=2) as loader:
        assert [batch.input_ids.shape for batch in loader] == [(0, 8), (0, 8)]


def test_an_error_in_the_thread_arrives(stream: SampleStream, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Batch:
        raise ValueError("bad row 7")

    monkeypatch.setattr(stream, "read", fail)
    with Loader(stream, global_batch_seqs=4) as loader, pytest.raises(ValueError, match="bad row 7"):
        next(loader)


def test_going_on_from_a_step_gives_what_was_due(stream: SampleStream) -> None:
    with Loader(stream, global_batch_seqs=4, last_step=9) as loader:
        ids = [batch.sample_ids for batch in loader]
    with Loader(stream, global_batch_seqs=4, first_step=4, last_step=9) as loader:
        assert loader.next_step == 4
        assert np.concatenate([batch.sample_ids for batch in loader]).tolist() == np.concatenate(ids[4:]).tolist()
