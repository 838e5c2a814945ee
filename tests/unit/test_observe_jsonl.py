"""The log: strict JSON, exact floats, whole lines through full disks and kills."""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import TrainError
from trireme.observe import Event, JsonlLog, Recorder, RunFolder, SampleReport, StepReport, read_jsonl
from trireme.observe.recorder import step_fields
from trireme.observe.strict_json import from_line, to_line


def parse_strictly(line: str) -> dict[str, object]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def make_step(**changes: object) -> StepReport:
    values: dict[str, object] = {
        "step": 1, "max_steps": 10, "loss": 2.5, "grad_norm": 1.0, "lr": 1e-3, "tokens": 64, "step_tokens": 64,
        "real_tokens": 60, "target_tokens": 58, "step_s": 0.5,
    }  # fmt: skip
    return StepReport(**(values | changes))  # type: ignore[arg-type]


@settings(max_examples=60)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_mon_03_every_float_survives_strict_json_bit_for_bit(value: float) -> None:
    line = to_line({"step": 1, "loss": value})
    strict = parse_strictly(line)
    if not math.isfinite(value):
        assert strict["loss"] is None
        assert strict["loss_text"] in {"nan", "inf", "-inf"}
    back = from_line(line)["loss"]
    assert struct.pack("d", back) == struct.pack("d", value) or (math.isnan(back) and math.isnan(value))


def test_mon_03_a_nan_in_a_run_leaves_four_points_that_parse(tmp_path: Path) -> None:
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        recorder = Recorder(folder)
        for step, loss in enumerate([1.0, math.nan, math.inf, 2.0], start=1):
            recorder.on_step(make_step(step=step, loss=loss))
        recorder.close()
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [parse_strictly(line)["loss"] for line in lines] == [1.0, None, None, 2.0]
    assert [str(fields["loss"]) for fields in read_jsonl(folder.log_path)] == ["1.0", "nan", "inf", "2.0"]


def test_a_step_has_the_promised_fields_and_three_honest_speeds() -> None:
    fields = step_fields(make_step(flops=1e9, peak_flops_per_s=1e10))
    assert {"step", "loss", "grad_norm", "lr", "tokens"} <= fields.keys()
    speeds = [fields[name] for name in ("tokens_per_s", "real_tokens_per_s", "target_tokens_per_s")]
    assert speeds == [128.0, 120.0, 116.0]
    assert fields["flops_per_s"] == 2e9
    assert fields["mfu"] == pytest.approx(0.2)


def test_mfu_is_null_where_no_peak_is_known() -> None:
    assert step_fields(make_step(flops=1e9))["mfu"] is None


def test_a_full_disk_loses_no_line_and_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    log = JsonlLog(tmp_path / "log.jsonl", notice=events.append)
    log.write({"step": 1})
    write, full = os.write, [True]

    def short_then_full(fd: int, data: bytes) -> int:
        if not full[0]:
            return write(fd, data)
        if len(data) > 5:
            return write(fd, bytes(data[:5]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", short_then_full)
    log.write({"step": 2})
    log.write({"step": 3})
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1}\n'
    assert [event.level for event in events] == ["warning"]
    full[0] = False
    log.write({"step": 4})
    log.close()
    assert [fields["step"] for fields in read_jsonl(tmp_path / "log.jsonl")] == [1, 2, 3, 4]
    assert [event.level for event in events] == ["warning", "info"]


def test_a_disk_that_stays_full_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonlLog(tmp_path / "log.jsonl", notice=lambda event: None, max_waiting=3)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write({"step": 1})
    log.write({"step": 2})
    with pytest.raises(TrainError, match=r"3 lines .* No space left"):
        log.write({"step": 3})
    with pytest.raises(TrainError, match="3 lines"):
        log.close()


def test_a_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from trireme.observe import JsonlLog
log = JsonlLog(Path(sys.argv[1]), notice=print)
for step in range(1, 501):
    log.write({"step": step})
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "log.jsonl")], check=False)
    assert len(read_jsonl(tmp_path / "log.jsonl")) == 500


def test_a_torn_last_line_is_taken_back_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    log = JsonlLog(path, notice=print)
    log.write({"step": 2})
    log.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_samples_are_kept_for_programs_and_people_and_cut_on_resume(tmp_path: Path) -> None:
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        recorder = Recorder(folder)
        recorder.on_step(make_step())
        for step, text in ((1, "几时有```"), (2, "在何处")):
            recorder.on_sample(SampleReport(step=step, prompt="明月", text=text, num_tokens=3, temperature=0.8, seed=0))
        recorder.close()
        whole = (folder.path / "samples.md").read_text(encoding="utf-8")
        assert whole.count("明月") == 2
        assert "````text\n明月几时有```\n````" in whole
        folder.truncate_log(1)
        cut = (folder.path / "samples.md").read_text(encoding="utf-8")
        assert whole.startswith(cut)
        assert cut.count("明月") == 1
