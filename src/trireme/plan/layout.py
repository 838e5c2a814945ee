"""Layout: how a run is spread over ranks. This file says what one is and prints it, ``layout_parse`` reads it.

The same keys stand in text (``tp=2,pp=2,zero3,sp,schedule=1f1b``), in YAML, in dotted overrides and in plan.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from trireme.errors import LayoutError
from trireme.plan.schedule import SCHEDULE_NAMES, ScheduleName, num_chunks

Recompute = Literal["none", "selective", "full", "auto"]
CpKind = Literal["allgather", "ring", "ulysses"]

RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
CP_KINDS: tuple[CpKind, ...] = get_args(CpKind)
DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""Keys that are degrees of axes."""

ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of all axes and the techniques on them; two equal layouts run the same way.

    ``vp`` (stages a rank holds) is what the schedule implies unless said, and 1f1b over several is interleaved.
    ``dp_shard`` is the data-parallel axis over which ZeRO shards state and experts are spread; with ``zero=0`` its
    ranks hold whole copies all the same. ``microbatches_per_step`` None is the least that fills the pipeline.

    Raises:
        LayoutError: A degree is no whole number of at least 1, or a choice is none of those there are.
    """

    pp: int = 1
    vp: int = 0
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: int = 0
    sp: bool = False
    schedule: ScheduleName = "1f1b"
    microbatches_per_step: int | None = None
    recompute: Recompute = "none"
    cp_kind: CpKind = "allgather"

    def __post_init__(self) -> None:
        for key in DEGREES:
            check_whole(key, getattr(self, key))
        check_choice("zero", self.zero, ZERO_STAGES)
        check_choice("sp", self.sp, (True, False))
        check_choice("schedule", self.schedule, SCHEDULE_NAMES)
        check_choice("recompute", self.recompute, RECOMPUTES)
        check_choice("cp_kind", self.cp_kind, CP_KINDS)
        if self.microbatches_per_step is not None:
            check_whole("micro", self.microbatches_per_step)
        if self.vp == 0:
            object.__setattr__(self, "vp", num_chunks(self.schedule, vp=2 if self.schedule == "interleaved" else 1))
        check_whole("vp", self.vp)
        if self.schedule == "1f1b" and self.vp > 1:
            object.__setattr__(self, "schedule", "interleaved")

    @property
    def world_size(self) -> int:
        """Ranks this layout needs; experts add none."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def dp(self) -> int:
        """Data-parallel degree of both kinds: into how many parts a global batch is cut."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_stages(self) -> int:
        """Pipeline stages of all ranks."""
        return self.pp * self.vp

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step on one data-parallel rank; unless said, the least that fills the pipeline."""
        return self.microbatches_per_step or (2 * self.pp if self.schedule == "zbv" else self.pp)

    def __str__(self) -> str:
        return format_layout(self)


def check_whole(key: str, value: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LayoutError("layout.not_whole", key=key, value=value)


def check_choice(key: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse what is none of the choices (True is not 1)."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise LayoutError("layout.not_choice", key=key, value=value, choices=", ".join(map(str, choices)))


def format_layout(layout: Layout) -> str:
    """Print the shortest text that reads as this layout, slow axes first."""
    words = [f"pp={layout.pp}"] if layout.pp > 1 else []
    words += _format_dp(layout)
    words += [f"{key}={getattr(layout, key)}" for key in ("cp", "tp", "ep") if getattr(layout, key) > 1]
    words += ["sp"] if layout.sp else []
    words += _format_schedule(layout)
    if layout.microbatches_per_step is not None:
        words.append(f"micro={layout.microbatches_per_step}")
    words += [f"recompute={layout.recompute}"] if layout.recompute != "none" else []
    words += [f"cp_kind={layout.cp_kind}"] if layout.cp_kind != "allgather" else []
    return ",".join(words) or "dp=1"


def _format_dp(layout: Layout) -> list[str]:
    """Data-parallel degrees and the ZeRO stage, in the words that mean exactly them."""
    stage = [f"zero{layout.zero}"]
    if layout.dp_replicate > 1 and (layout.dp_shard > 1 or layout.zero):
        return [f"hsdp={layout.dp_replicate}x{layout.dp_shard}", *(stage if layout.zero != 3 else [])]
    if layout.dp_replicate > 1:
        return [f"{'dp_replicate' if layout.ep > 1 else 'dp'}={layout.dp_replicate}"]
    degree = layout.dp_shard
    if layout.zero:
        return [f"dp={degree}", *stage] if degree > 1 else stage
    if degree == 1:
        return []
    return [f"dp={degree}"] if layout.ep > 1 else [f"dp_shard={degree}", *stage]


def _format_schedule(layout: Layout) -> list[str]:
    words = [f"schedule={layout.schedule}"] if layout.schedule != "1f1b" else []
    implied = Layout(schedule=layout.schedule).vp
    return [*words, f"vp={layout.vp}"] if layout.vp != implied else words


def layout_mapping(layout: Layout) -> dict[str, Any]:
    """Give every key with its value, as YAML and plan.json hold it."""
    return {
        "pp": layout.pp,
        "vp": layout.vp,
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.dp_shard,
        "cp": layout.cp,
        "tp": layout.tp,
        "ep": layout.ep,
        "zero": layout.zero,
        "sp": layout.sp,
        "schedule": layout.schedule,
        "micro": layout.num_microbatches,
        "recompute": layout.recompute,
        "cp_kind": layout.cp_kind,
    }
