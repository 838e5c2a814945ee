"""The layout that the settings ask for, on the ranks there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trireme.config import LayoutSection, RecomputeSection, RunConfig
from trireme.errors import LayoutError
from trireme.job.planning import check_request
from trireme.parallel import RecomputeRule
from trireme.plan import LayerRecompute, Layout, ParsedLayout, Plan, parse_layout, parse_plan

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How a run is spread: its layout, and what a plan says beyond it.

    ``cuts`` are the blocks at which stages begin, none for balanced ones; ``recompute`` is by block. ``plan`` is
    where they come from, if from one.
    """

    layout: Layout
    cuts: tuple[str, ...] = ()
    recompute: Mapping[str, LayerRecompute] | RecomputeRule = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def fits_memory(self) -> bool:
        """Whether it is still to be chosen what is recomputed: just enough to fit."""
        return self.layout.recompute == "auto" and not self.recompute

    @property
    def needs_ranks(self) -> bool:
        """Whether the run is more than one device doing everything as written."""
        return self.layout.world_size > 1 or self.layout.recompute != "none" or bool(self.recompute)


def is_open(section: LayoutSection) -> bool:
    """Whether the layout is to be searched for (``layout = auto``)."""
    return section.text is not None and section.text.strip().lower() == "auto"


def resolve_layout(config: RunConfig, *, ranks: int, notice: Notice) -> Arrangement:
    """Return what ``layout`` says, with the data-parallel degree filled in.

    ``auto`` gives one device as written: what it will be is known when the model and the machine are.

    Raises:
        LayoutError: It is no layout, or one for another number of ranks; how to start as many is said. Or it is a
            plan for another batch, length or version.
    """
    section = config.layout
    if is_open(section):
        return Arrangement(layout=Layout())
    if section.text is not None and section.text.endswith(".json"):
        plan = load_plan(Path(section.text))
        check_request(plan, config=config)
        arrangement = arrange(plan)
    else:
        parsed = _parse(section, ranks=ranks)
        for text in parsed.notices:
            notice(text)
        arrangement = Arrangement(layout=parsed.layout)
    arrangement = _recomputing(arrangement, config.recompute)
    layout = arrangement.layout
    if layout.world_size != ranks:
        raise LayoutError("job.other_ranks", layout=layout, needs=layout.world_size, ranks=ranks)
    return arrangement


def arrange(plan: Plan) -> Arrangement:
    """Take from a plan what a run can do; a plan that asks for more is refused by name.

    Layers that the plan doesn't name keep everything, whatever its layout calls the whole.
    """
    offloaded = [layer.path for layer in plan.layers if layer.offload]
    if offloaded:
        raise LayoutError("job.plan_offload", path=offloaded[0])
    recompute = {layer.path: layer.recompute for layer in plan.layers}
    layout = replace(plan.layout, recompute="none")
    return Arrangement(layout=layout, cuts=plan.cuts, recompute=recompute, plan=plan)


def _recomputing(arrangement: Arrangement, section: RecomputeSection) -> Arrangement:
    """Add what the section ``recompute`` says to what the layout, or a plan, says."""
    mode, layout = section.mode, arrangement.layout
    said = layout.recompute if arrangement.plan is None else "plan"
    if mode is not None and said not in ("none", mode):
        raise LayoutError("job.recompute_twice", mode=mode, layout=said)
    kind = layout.recompute if mode is None else mode
    if kind == "none" or kind == "auto" or (section.every == 1 and not section.layers):
        return replace(arrangement, layout=replace(layout, recompute=kind))
    rule = RecomputeRule(kind=kind, every=section.every, layers=section.layers)
    return replace(arrangement, layout=replace(layout, recompute="none"), recompute=rule)


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
