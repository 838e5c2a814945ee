"""The loss curve: drawn from the logs, never at a run's expense."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from trireme.observe import Event, LossPlot, Recorder, RunFolder, StepReport
from trireme.observe.curve import Curve, gaps, smooth, thin
from trireme.observe.report import EvalReport

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True, scope="module")
def font_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield


def make_step(step: int, loss: float = 2.0, **changes: object) -> StepReport:
    values: dict[str, object] = {
        "step": step, "max_steps": 10, "loss": loss, "grad_norm": 1.0, "lr": 1e-3, "tokens": 64 * step,
        "step_tokens": 64, "real_tokens": 60, "target_tokens": 58, "step_s": 0.5,
    }  # fmt: skip
    return StepReport(**(values | changes))  # type: ignore[arg-type]


def make_eval(step: int, loss: float = 2.0) -> EvalReport:
    return EvalReport(step=step, loss=loss, num_seqs=4, target_tokens=64, eval_s=0.1)


def test_a_picture_is_written_at_an_evaluation_and_at_the_end(tmp_path: Path) -> None:
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        plot = LossPlot(folder)
        for step in range(1, 4):
            plot.on_step(make_step(step))
        assert not folder.plot_path.exists()
        plot.on_eval(make_eval(3))
        first = folder.plot_path.read_bytes()
        assert first.startswith(PNG)
        plot.on_step(make_step(4, loss=1.0))
        plot.close()
        assert folder.plot_path.read_bytes() != first


@pytest.mark.parametrize("losses", [[math.nan], [math.nan, math.inf], [3.0], [2.0] * 30, [1e-9, 1e9] * 20])
def test_any_curve_can_be_drawn(tmp_path: Path, losses: list[float]) -> None:
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        plot = LossPlot(folder, notice=lambda event: pytest.fail(event.text))
        for step, loss in enumerate(losses, start=1):
            plot.on_step(make_step(step, loss=loss, skipped=not math.isfinite(loss)))
        plot.on_eval(make_eval(len(losses), loss=losses[-1]))
        plot.close()
        assert folder.plot_path.read_bytes().startswith(PNG)


def test_a_resumed_run_draws_its_past_as_well(tmp_path: Path) -> None:
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        recorder = Recorder(folder)
        for step in range(1, 6):
            recorder.on_step(make_step(step, loss=math.nan if step == 3 else 2.0, skipped=step == 3))
        recorder.on_eval(make_eval(5))
        recorder.close()
        curve = LossPlot(folder)._curve
    assert list(curve.steps) == [1, 2, 3, 4, 5]
    assert list(gaps(curve)) == [3]
    assert list(curve.eval_steps) == [5]


def test_a_picture_that_fails_is_one_warning_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr("trireme.observe.plot.draw_curve", broken)
    events: list[Event] = []
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        plot = LossPlot(folder, notice=events.append)
        plot.on_step(make_step(1))
        plot.on_eval(make_eval(1))
        plot.close()
    assert [event.level for event in events] == ["warning"]
    assert "no fonts" in events[0].text


def test_a_long_curve_is_thinned_without_losing_a_spike() -> None:
    steps = np.arange(1, 100_001, dtype=float)
    losses = np.full(100_000, 2.0)
    losses[77_777] = 50.0
    band = thin(steps, losses, max_points=1000)
    assert len(band.steps) <= 1000
    assert band.high.max() == 50.0
    assert band.steps[0] == pytest.approx(steps[:100].mean())


def test_a_single_spike_leaves_no_trace_in_the_smoothed_course() -> None:
    values = np.linspace(3.0, 2.0, 101)
    spiked = values.copy()
    spiked[50] = 1000.0
    assert np.abs(smooth(spiked, half_width=5) - values).max() < 0.02


def test_a_curve_grows_step_by_step() -> None:
    curve = Curve()
    curve.add_step(1, loss=2.0, lr=0.1)
    curve.add_step(2, loss=5.0, lr=0.2, skipped=True)
    assert list(curve.lrs) == [0.1, 0.2]
    assert math.isnan(curve.losses[1])
