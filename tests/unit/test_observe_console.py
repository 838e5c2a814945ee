"""What a person sees: true numbers, at a pace one can read, on terminals and in logs."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.observe import (
    ClosingFacts,
    Console,
    EvalReport,
    Event,
    OpeningFacts,
    SampleReport,
    Screen,
    StepReport,
    WorkProgress,
    closing_report,
    opening_report,
)
from trireme.observe.bar import ASCII, BLOCKS, FINE, draw_bar
from trireme.observe.rows import cell_width
from trireme.observe.step_line import StepWindow

EXACT = 1e-12


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_step(step: int, *, max_steps: int = 100, **changes: object) -> StepReport:
    values: dict[str, object] = {
        "step": step, "max_steps": max_steps, "loss": 2.0, "grad_norm": 1.0, "lr": 1e-3, "tokens": 64 * step,
        "step_tokens": 64, "real_tokens": 60, "target_tokens": 50, "step_s": 0.5, "flops": 1e9,
        "peak_flops_per_s": 1e10, "memory_bytes": 3 << 20,
    }  # fmt: skip
    return StepReport(**(values | changes))  # type: ignore[arg-type]


def make_console(clock: Clock, **options: object) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(screen=Screen(stream), clock=clock, **options), stream  # type: ignore[arg-type]


def run_steps(console: Console, clock: Clock, *, count: int, step_s: float, max_steps: int | None = None) -> None:
    for step in range(1, count + 1):
        clock.now_s += step_s
        console.on_step(make_step(step, max_steps=max_steps or count))


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "en")


def test_mon_06_with_interval_three_the_loss_shown_is_the_token_weighted_mean_of_three_steps() -> None:
    clock = Clock()
    console, stream = make_console(clock, every_steps=3, throttle=False)
    losses, tokens = [7.0, 4.0, 2.0, 1.0, 9.0], [5, 10, 25, 50, 10]
    for step, (loss, count) in enumerate(zip(losses, tokens, strict=True), start=1):
        console.on_step(make_step(step, max_steps=5, loss=loss, target_tokens=count))
    lines = stream.getvalue().splitlines()
    assert [line.split("loss ")[1].split()[0] for line in lines] == ["7.0000", f"{(40 + 50) / 35:.4f}", "2.3333"]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 10_000)), min_size=1, max_size=20))
def test_mon_06_a_window_is_the_mean_over_all_trained_tokens(steps: list[tuple[float, int]]) -> None:
    window = StepWindow()
    for loss, count in steps:
        window.add(make_step(1, loss=loss, target_tokens=count))
    expected = math.fsum(loss * count for loss, count in steps) / sum(count for _, count in steps)
    assert window.loss == pytest.approx(expected, rel=EXACT, abs=EXACT)


def test_mon_09_a_skipped_step_is_counted_and_leaves_the_mean_alone() -> None:
    clock = Clock()
    console, stream = make_console(clock, every_steps=2, throttle=False)
    console.on_step(make_step(1, max_steps=4))
    console.on_step(make_step(2, max_steps=4, loss=math.nan, grad_norm=math.nan, skipped=True, num_skipped=1))
    console.on_step(make_step(3, max_steps=4, loss=3.0, num_skipped=1))
    console.on_step(make_step(4, max_steps=4, loss=math.inf, skipped=True, num_skipped=2))
    first, second, third = stream.getvalue().splitlines()
    assert "skipped" not in first
    assert "loss nan" in second
    assert "1 skipped (1 so far)" in second
    assert "loss 3.0000" in third
    assert "1 skipped (2 so far)" in third


def test_the_step_line_has_all_that_people_look_for() -> None:
    clock = Clock()
    console, stream = make_console(clock)
    run_steps(console, clock, count=1, step_s=0.5, max_steps=4)
    line = stream.getvalue()
    for part in ("1/4", "▕███░░░░░░░░░▏", "25%", "loss 2.0000", "grad_norm 1", "lr 1.00e-03", "128 tok/s (120 real",
                 "100 trained)", "2 GFLOP/s", "MFU 20.0%", "mem 3.00 MiB", "1.5s left"):  # fmt: skip
        assert part in line


def test_a_log_gets_a_line_in_two_seconds_and_the_first_and_the_last() -> None:
    clock = Clock()
    console, stream = make_console(clock)
    run_steps(console, clock, count=500, step_s=0.01)
    lines = stream.getvalue().splitlines()
    steps = [int(line.split("/")[0].split()[-1]) for line in lines]
    assert steps[0] == 1
    assert steps[-1] == 500
    assert len(steps) == 4


def test_a_run_of_few_slow_steps_shows_each() -> None:
    clock = Clock()
    console, stream = make_console(clock)
    run_steps(console, clock, count=40, step_s=20.0)
    assert len(stream.getvalue().splitlines()) == 40


def test_a_step_that_is_evaluated_is_shown_before_its_evaluation() -> None:
    clock = Clock()
    console, stream = make_console(clock)
    run_steps(console, clock, count=3, step_s=0.1, max_steps=9)
    console.on_eval(EvalReport(step=3, loss=1.0, num_seqs=1, target_tokens=1, eval_s=1.0))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1].split("/")[0] for line in lines[:2]] == ["1", "3"]
    assert lines[2].startswith("eval at step 3")


def test_lines_become_rarer_in_a_long_run() -> None:
    clock = Clock()
    console, stream = make_console(clock)
    run_steps(console, clock, count=7200, step_s=1.0)
    assert 7200 / 30 <= len(stream.getvalue().splitlines()) <= 500


def test_an_interval_said_outright_is_kept() -> None:
    clock = Clock()
    console, stream = make_console(clock, every_steps=10, throttle=False)
    run_steps(console, clock, count=95, step_s=0.001)
    assert len(stream.getvalue().splitlines()) == 1 + 9 + 1


def test_time_left_counts_evaluation_and_saving() -> None:
    clock = Clock()
    console, stream = make_console(clock, throttle=False)
    for step in (1, 2, 3):
        clock.now_s += 10.0  # of which the step itself took half a second
        console.on_step(make_step(step, max_steps=5))
    assert "20.0s left" in stream.getvalue().splitlines()[-1]


def test_off_leaves_warnings_and_the_end() -> None:
    console, stream = make_console(Clock(), progress="off")
    console.on_step(make_step(1))
    console.on_eval(EvalReport(step=1, loss=1.0, num_seqs=1, target_tokens=1, eval_s=1.0))
    console.on_sample(SampleReport(step=1, prompt="a", text="b", num_tokens=1, temperature=0, seed=0))
    console.on_event(Event(kind="save", text="saved"))
    console.on_event(Event(kind="nonfinite", text="loss is nan", level="warning"))
    assert stream.getvalue() == "warning: loss is nan\n"


def test_a_sample_can_not_steer_the_terminal() -> None:
    console, stream = make_console(Clock())
    text = "月\x1b[2J明\r\n第二行\x07\u2028"
    console.on_sample(SampleReport(step=1, prompt="明", text=text, num_tokens=1, temperature=0, seed=0))
    shown = stream.getvalue()
    assert "明月\\x1b[2J明" in shown
    assert "第二行\\x07" in shown
    assert not any(ord(char) < 32 and char != "\n" for char in shown)


def test_a_terminal_gets_a_live_bar_and_its_cursor_back() -> None:
    terminal = Terminal()
    clock = Clock()
    console = Console(screen=Screen(terminal), clock=clock)
    run_steps(console, clock, count=3, step_s=1.0)
    console.on_event(Event(kind="nonfinite", text="loss is nan", level="warning"))
    console.close()
    shown = terminal.getvalue()
    assert "\x1b[?25l" in shown
    assert shown.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in shown[-60:]
    assert "warning: loss is nan" in shown


def test_a_stream_without_block_characters_gets_ascii_and_question_marks() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(screen=Screen(stream), clock=Clock())
    console.on_step(make_step(50))
    console.on_event(Event(kind="x", text="明月"))
    assert b"[######......]" in raw.getvalue()
    assert b"\n??\n" in raw.getvalue()


def test_a_reader_that_goes_away_does_not_stop_a_run() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console(screen=Screen(Broken()), clock=Clock())
    console.on_step(make_step(1))
    console.close()


@settings(max_examples=50)
@given(st.floats(-1, 2), st.integers(1, 80), st.sampled_from([BLOCKS, FINE, ASCII]))
def test_a_bar_has_the_width_asked_for(ratio: float, width: int, style: object) -> None:
    assert len(draw_bar(ratio, width=width, style=style)) == width + 2  # type: ignore[arg-type]


def test_a_bar_is_full_only_at_the_end() -> None:
    assert draw_bar(0.0, width=4) == "▕░░░░▏"
    assert draw_bar(0.999, width=4) == "▕███░▏"
    assert draw_bar(1.0, width=4) == "▕████▏"


def test_work_is_shown_in_a_log_at_a_readable_pace() -> None:
    clock, stream = Clock(), io.StringIO()
    work = WorkProgress(Screen(stream), clock=clock)
    work.start("tokenise songci", 1000)
    for _ in range(100):
        clock.now_s += 0.1
        work.advance(10)
    work.finish()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "20%  200/1K" in lines[0]
    assert lines[-1] == "tokenise songci: 1K in 10.0s"


def test_short_work_and_work_of_unknown_length_are_fine() -> None:
    clock, stream = Clock(), io.StringIO()
    work = WorkProgress(Screen(stream), clock=clock)
    work.start("short", 10)
    work.finish()
    assert stream.getvalue() == ""
    work.start("read", None)
    clock.now_s += 3
    work.advance(5)
    work.finish()
    work.advance(1)
    assert stream.getvalue().splitlines() == ["read  5  3.0s", "read: 5 in 3.0s"]


def opening_facts() -> OpeningFacts:
    return OpeningFacts(
        run_dir=Path("runs/lyrics"), model="llama-3m", param_groups={"embedding": 786432, "norms": 2496},
        num_params=3_000_000, flops_per_token=2e7, flops_formula="6*N", seq_len=256, global_batch_seqs=32,
        microbatch_seqs=12, max_steps=300, first_step=100, device="CPU", device_memory_bytes=16 << 30,
        precision="bf16", precision_reason="1.7x fp32, measured", optimizer="AdamW",
        optimizer_groups={"decay": 2_997_504, "no decay": 2496},
        memory_parts={"parameters": 1 << 30, "logits": 1 << 29},
        peak_flops_per_s=2e11, peak_source="measured", step_s=0.25, step_s_basis="3 steps measured",
    )  # fmt: skip


def test_the_opening_report_says_the_work_before_it_is_done() -> None:
    text = "\n".join(line.text for line in opening_report(opening_facts()))
    for part in (
        "3,000,000 (embedding 786K, norms 2.5K)",
        "20 MFLOP = 6*N",
        "8,192 tokens = 32 sequences x 256, in 3 pass(es) of 12",
        "300 steps, 2.46M tokens, 49.2 TFLOP",
        "goes on after step 100",
        "bf16 (1.7x fp32, measured)",
        "1.50 GiB (parameters 1.00 GiB",
        "50.0s, 250 ms a step (3 steps measured)",
        "peak 200 GFLOP/s",
    ):
        assert part in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_reports_are_aligned_in_both_languages(monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    monkeypatch.setenv("TRIREME_LANG", language)
    lines = [line.text for line in opening_report(opening_facts())[1:]]
    names = [line.strip().split("  ")[0] for line in lines]
    starts = {cell_width(line[: line.index(name) + len(name)]) for line, name in zip(lines, names, strict=True)}
    values = {cell_width(line) - cell_width(line[len(line) - len(_value(line)) :]) for line in lines}
    assert len(values) == 1
    assert max(starts) + 2 == values.pop()


def _value(line: str) -> str:
    return line.strip().split("  ", 1)[1].lstrip()


def test_the_closing_report_names_commands_that_can_be_copied() -> None:
    facts = ClosingFacts(
        run_dir=Path("runs/my lyrics"), outcome="stopped", step=40, max_steps=100, duration_s=61, tokens=10_000,
        last_loss=3.5, best_eval_loss=3.6, best_eval_step=30, num_skipped=2, prompt="明月",
        checkpoint=Path("runs/my lyrics/checkpoints/step-40"), predicted_memory_bytes=1 << 30,
        measured_memory_bytes=2 << 30, resume_command="trireme train lyrics.yaml --resume",
        extend_command="never shown",
    )  # fmt: skip
    text = "\n".join(line.text for line in closing_report(facts))
    for part in ("Stopped at step 40 of 100", "3.6000 at step 30", "ratio 0.50", "trireme train lyrics.yaml --resume",
                 "trireme generate 'runs/my lyrics' --prompt \"明月\"", "trireme chat 'runs/my lyrics'",
                 "trireme config show 'runs/my lyrics/config.yaml'"):  # fmt: skip
        assert part in text
    assert "never shown" not in text


def test_without_a_checkpoint_nothing_is_promised_that_needs_one() -> None:
    facts = ClosingFacts(
        run_dir=Path("runs/a"), outcome="failed", step=0, max_steps=9, duration_s=1, tokens=0
    )  # fmt: skip
    assert "generate" not in "\n".join(line.text for line in closing_report(facts))
