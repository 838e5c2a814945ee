"""The run folder: who may open it, and what is never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trireme.errors import TrainError
from trireme.observe import Recorder, RunFolder, StepReport, read_jsonl, read_state, suggest_runs

HOLD = """
import sys, time
from pathlib import Path
from trireme.observe import RunFolder
folder = RunFolder.open_fresh(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(60)
"""


def make_step(step: int, **changes: object) -> StepReport:
    values: dict[str, object] = {
        "step": step, "max_steps": 10, "loss": 2.0 + 0.1 / step, "grad_norm": 1.0, "lr": 1e-3, "tokens": 64 * step,
        "step_tokens": 64, "real_tokens": 60, "target_tokens": 58, "step_s": 0.5,
    }  # fmt: skip
    return StepReport(**(values | changes))  # type: ignore[arg-type]


def write_run(path: Path, steps: int) -> None:
    with RunFolder.open_fresh(path) as folder:
        recorder = Recorder(folder)
        for step in range(1, steps + 1):
            recorder.on_step(make_step(step))
        recorder.close()
        folder.mark(status="stopped", step=steps, max_steps=10)


def test_a_folder_with_a_run_is_refused_and_the_message_names_both_ways_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    with pytest.raises(TrainError, match=r"step 3 of 10.*--resume.*--overwrite"):
        RunFolder.open_fresh(tmp_path / "run")
    assert len(read_jsonl(tmp_path / "run" / "log.jsonl")) == 3


def test_a_finished_run_says_that_it_is_finished_and_what_to_type(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 3)
    with RunFolder.open_resume(tmp_path / "run") as folder:
        folder.mark(status="finished", step=10)
    with pytest.raises(TrainError, match=r"finished.*trireme generate"):
        RunFolder.open_fresh(tmp_path / "run")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(TrainError, match="no Trireme run"):
        RunFolder.open_fresh(tmp_path, overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_overwrite_removes_the_old_run_and_leaves_files_of_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 3)
    (run / "checkpoints" / "step-3").mkdir(parents=True)
    (run / "notes.md").write_text("mine")
    old = read_state(run)
    with RunFolder.open_fresh(run, overwrite=True) as folder:
        assert folder.state.run_id != old.run_id
        assert read_state(run).run_id == old.run_id, "nothing goes before the new run begins"
        folder.begin()
        assert read_state(run).run_id == folder.state.run_id
    assert sorted(entry.name for entry in run.iterdir()) == ["notes.md", "run.json", "run.lock"]


def test_a_run_that_never_made_a_step_is_taken_over(tmp_path: Path) -> None:
    with pytest.raises(ValueError), RunFolder.open_fresh(tmp_path / "run"):
        raise ValueError("bad data")
    assert read_state(tmp_path / "run").status == "failed"
    RunFolder.open_fresh(tmp_path / "run").close()


def test_mon_02_a_second_process_is_refused_by_the_first_ones_id(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "open\n"
        for open_folder in (RunFolder.open_resume, RunFolder.open_fresh):
            with pytest.raises(TrainError, match=f"process {first.pid} is writing"):
                open_folder(tmp_path / "run")
        assert read_state(tmp_path / "run").status == "running"
    finally:
        first.kill()
        first.wait()
    assert read_state(tmp_path / "run").status == "interrupted"
    with RunFolder.open_resume(tmp_path / "run") as folder:
        assert folder.state.status == "interrupted"


def test_a_forked_child_that_outlives_a_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.open_fresh(tmp_path / "run")
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        os.close(folder._lock._fd)  # as the kernel does when the parent is killed
        folder._lock._fd = -1
        RunFolder.open_resume(tmp_path / "run").close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="no run to resume"):
        RunFolder.open_resume(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="which is a file"):
        RunFolder.open_fresh(tmp_path / "file")
    with pytest.raises(TrainError, match="cannot write"):
        RunFolder.open_fresh(tmp_path / "file" / "run")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(TrainError, match="cannot write"):
            RunFolder.open_fresh(tmp_path / "locked" / "run")


def test_a_decision_is_measured_once_and_reused_by_resume(tmp_path: Path) -> None:
    measured = []

    def measure() -> dict[str, object]:
        measured.append(1)
        return {"policy": "bf16", "gain": 1.7}

    with RunFolder.open_fresh(tmp_path / "run") as folder:
        first = folder.decide("precision", measure)
    with RunFolder.open_resume(tmp_path / "run") as folder:
        assert folder.decide("precision", measure) == first == {"policy": "bf16", "gain": 1.7}
    assert len(measured) == 1


def test_the_log_is_cut_to_the_checkpoint_and_goes_on_in_the_same_file(tmp_path: Path) -> None:
    write_run(tmp_path / "unbroken", 9)
    write_run(tmp_path / "broken", 7)
    with (tmp_path / "broken" / "log.jsonl").open("ab") as log:
        log.write(b'{"kind": "step", "step": 8, "lo')  # killed while writing
    with RunFolder.open_resume(tmp_path / "broken") as folder:
        cut = folder.truncate_log(5)
        assert (cut.kept, cut.dropped, cut.missing) == (5, 3, 0)
        recorder = Recorder(folder)
        for step in range(6, 10):
            recorder.on_step(make_step(step))
        recorder.close()
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("broken", "unbroken")]
    assert logs[0] == logs[1]


def test_a_cut_says_which_steps_have_no_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 4)
    with RunFolder.open_resume(tmp_path / "run") as folder:
        assert folder.truncate_log(6).missing == 2


def test_a_damaged_line_is_named_with_file_and_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 2)
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("garbage\n" + log.read_text())
    with RunFolder.open_resume(tmp_path / "run") as folder, pytest.raises(TrainError, match=r"log\.jsonl:1 "):
        folder.truncate_log(2)


def test_a_mistyped_run_is_met_with_the_runs_that_exist(tmp_path: Path) -> None:
    for name in ("lyrics", "python_code"):
        write_run(tmp_path / name, 1)
    assert suggest_runs(tmp_path / "lyrcs") == [tmp_path / "lyrics"]
    assert set(suggest_runs(tmp_path / "zzz")) == {tmp_path / "lyrics", tmp_path / "python_code"}


def test_run_json_names_no_person_and_no_machine(tmp_path: Path) -> None:
    RunFolder.open_fresh(tmp_path / "run").close()
    assert set(json.loads((tmp_path / "run" / "run.json").read_text())) == {
        "run_id", "status", "step", "max_steps", "created", "updated", "attempts", "trireme", "format",
    }  # fmt: skip
