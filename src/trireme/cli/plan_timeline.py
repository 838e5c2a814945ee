"""The pipeline of a layout as a picture: a row for each rank, a box for each action, gaps where a rank waits."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from trireme.plan import step_timeline
from trireme.units import format_duration
from trireme.words import say

if TYPE_CHECKING:
    from trireme.plan import Event, Found, Timeline

_COLOURS = {"F": "#4c8bd0", "B": "#e0913f", "I": "#e0913f", "W": "#7bb56a", "S": "#b9bec6"}
_LEFT, _TOP, _ROW, _BAR, _WIDTH = 70, 62, 26, 22, 1400
_OPENING = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
    'font-family="sans-serif" font-size="12">'
)
_LABEL_PX = 14
"""A box narrower than this has no room for the number of its micro-batch."""

_MANY = 20_000
"""With more boxes than this none says what it is when pointed at: the file would be too large for a browser."""


def timeline_svg(found: Found) -> str:
    """Draw a step's actions on the clock; pointing at a box tells what it is."""
    timeline = step_timeline(found.workload)
    height = _TOP + _ROW * len(timeline.ranks) + 34
    width = _LEFT + _WIDTH + 20
    kinds = [kind for kind in _COLOURS if any(event.kind == kind for rank in timeline.ranks for event in rank.events)]
    return "\n".join(
        [
            _OPENING.format(width=width, height=height),
            f'<rect class="ground" width="{width}" height="{height}" fill="#ffffff"/>',
            _text(10, 20, _title(found, timeline), size=14),
            *_legend(kinds),
            *_rows(timeline),
            *_clock(timeline, y=height - 12),
            "</svg>",
            "",
        ]
    )


def _title(found: Found, timeline: Timeline) -> str:
    return say(
        "plan_cli.timeline_title",
        model=found.workload.model.name,
        layout=found.workload.layout,
        makespan=_seconds(timeline.makespan_s),
        bubble=f"{timeline.bubble_ratio:.1%}",
    )


def _legend(kinds: list[str]) -> Iterator[str]:
    for place, kind in enumerate(kinds):
        x = 10 + 210 * place
        yield f'<rect class="legend" x="{x}" y="34" width="14" height="14" fill="{_COLOURS[kind]}"/>'
        yield _text(x + 20, 46, say(f"plan_cli.timeline_{kind}"))


def _rows(timeline: Timeline) -> Iterator[str]:
    pixels_per_s = _WIDTH / timeline.makespan_s if timeline.makespan_s else 0.0
    pointed = sum(len(rank.events) for rank in timeline.ranks) <= _MANY
    for number, rank in enumerate(timeline.ranks):
        y = _TOP + _ROW * number
        yield _text(10, y + 15, f"pp {number}")
        for event in rank.events:
            yield from _box(event, y=y, pixels_per_s=pixels_per_s, pointed=pointed)


def _box(event: Event, *, y: int, pixels_per_s: float, pointed: bool) -> Iterator[str]:
    x, wide = _LEFT + event.start_s * pixels_per_s, (event.end_s - event.start_s) * pixels_per_s
    shade = 1.0 if event.stage == event.rank else 0.72  # another stage of the same rank
    head = f'<rect class="{event.kind}" x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_BAR}"'
    look = f'fill="{_COLOURS[event.kind]}" fill-opacity="{shade}" stroke="#ffffff" stroke-width="0.5"'
    yield f"{head} {look}>{_told(event)}</rect>" if pointed else f"{head} {look}/>"
    if wide >= _LABEL_PX and event.kind != "S":
        yield _text(x + wide / 2, y + 15, str(event.microbatch), size=10, anchor="middle")


def _told(event: Event) -> str:
    told = say(
        "plan_cli.timeline_event",
        action=say(f"plan_cli.timeline_{event.kind}"),
        stage=event.stage,
        microbatch=event.microbatch,
        start=_seconds(event.start_s),
        took=_seconds(event.end_s - event.start_s),
    )
    return f"<title>{escape(told)}</title>"


def _clock(timeline: Timeline, *, y: int) -> Iterator[str]:
    for quarter in range(5):
        yield _text(_LEFT + _WIDTH * quarter / 4, y, _seconds(timeline.makespan_s * quarter / 4), anchor="middle")


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _seconds(value_s: float) -> str:
    return f"{value_s * 1000:.3g} ms" if value_s < 1 else format_duration(value_s)
