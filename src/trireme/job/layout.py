"""The layout that the settings ask for, on the ranks there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trireme.config import LayoutSection
from trireme.errors import LayoutError
from trireme.plan import Layout, ParsedLayout, Plan, parse_layout, parse_plan

Notice = Callable[[str], None]


def resolve_layout(section: LayoutSection, *, ranks: int, notice: Notice) -> Layout:
    """Return what ``layout`` says, with the data-parallel degree filled in.

    Raises:
        LayoutError: It is no layout, or one for another number of ranks; how to start as many is said.
    """
    if section.text is not None and section.text.endswith(".json"):
        layout = load_plan(Path(section.text)).layout
    else:
        parsed = _parse(section, ranks=ranks)
        for text in parsed.notices:
            notice(text)
        layout = parsed.layout
    if layout.world_size != ranks:
        raise LayoutError("job.other_ranks", layout=layout, needs=layout.world_size, ranks=ranks)
    return layout


def _parse(section: LayoutSection, *, ranks: int) -> ParsedLayout:
    asked = section.text if section.text is not None else section.given
    if ranks > 1:
        return parse_layout(asked, ranks=ranks)
    # One process was started: say how to start as many as the layout asks for, not that the degrees don't fit one.
    return parse_layout(asked)


def load_plan(path: Path) -> Plan:
    """Read a plan.json.

    Raises:
        LayoutError: There is none, or it isn't one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LayoutError("job.no_plan", path=path, reason=error.strerror) from error
    return parse_plan(text)
