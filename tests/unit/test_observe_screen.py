"""Where lines go: colours on a terminal, plain text elsewhere, never an end of the run."""

from __future__ import annotations

import io

import pytest

from trireme.observe import Line, Screen, visible

RED = "\x1b[31mred\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_report_with_its_own_colours_keeps_them_on_a_terminal() -> None:
    terminal = Terminal()
    Screen(terminal).write_styled(RED)
    assert "\x1b[31m" in terminal.getvalue()


def test_a_log_gets_a_reports_lines_as_they_are() -> None:
    log = io.StringIO()
    screen = Screen(log)
    screen.write_styled("one\n  two")
    screen.write_lines([Line("three", "title"), Line("four")])
    assert log.getvalue() == "one\n  two\nthree\nfour\n"


def test_a_line_can_not_carry_colours_of_its_own() -> None:
    for stream in (Terminal(), io.StringIO()):
        Screen(stream).write(RED)
        assert "\\x1b[31mred\\x1b[0m" in stream.getvalue()


def test_a_dumb_terminal_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen(Terminal())
    assert not screen.has_live
    assert screen.width is None


def test_lines_on_a_terminal_have_no_live_bar() -> None:
    terminal = Terminal()
    screen = Screen(terminal, mode="lines")
    screen.show_live("bar")
    assert terminal.getvalue() == ""
    assert screen.width is not None


def test_chinese_emoji_and_tabs_stay_and_controls_are_spelled_out() -> None:
    assert visible("明月\t🐉👩‍🚀") == "明月\t🐉👩‍🚀"
    assert visible("a\x00\x1b\r\x7f\x9b\u2029\ud800") == "a\\x00\\x1b\\x0d\\x7f\\x9b\\u2029\\ud800"
