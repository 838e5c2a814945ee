"""What a person and a program read of a simulated rank."""

from __future__ import annotations

from typing import Any

from trireme.plan import layout_mapping
from trireme.simulate.run import Simulation
from trireme.units import format_bytes
from trireme.words import say


def report_lines(found: Simulation) -> list[str]:
    """Give what a person reads."""
    measured, peak = found.measured, found.measured.peak
    lines = [
        say(
            "simulate.title",
            rank=found.rank,
            ranks=found.layout.world_size,
            layout=found.layout,
            seqs=found.seqs,
            seq_len=found.seq_len,
        ),
        say("simulate.parameters", numel=f"{measured.parameter_numel:,}"),
        say(
            "simulate.peak",
            size=format_bytes(peak.num_bytes),
            num_bytes=peak.num_bytes,
            moment=say(f"simulate.moment_{peak.moment}"),
        ),
    ]
    lines += [
        say("simulate.part", name=say(f"simulate.part_{part}"), size=format_bytes(size))
        for part, size in peak.parts.items()
    ]
    lines += [say("simulate.resting", size=format_bytes(measured.resting_bytes)), say("simulate.collectives")]
    lines += _collective_lines(found) or [say("simulate.no_collectives")]
    parts = " · ".join(say(f"simulate.clock_{part}", seconds=f"{took:.1f}") for part, took in found.parts_s.items())
    return [*lines, say("simulate.took", seconds=f"{sum(found.parts_s.values()):.1f}", parts=parts)]


def _collective_lines(found: Simulation) -> list[str]:
    measured = found.measured
    return [
        say(
            "simulate.collective",
            axis=axis,
            kind=kind,
            calls=calls,
            size=format_bytes(measured.moved_bytes[axis, kind]),
        )
        for (axis, kind), calls in sorted(measured.calls.items())
        if axis != "self"
    ]


def report_json(found: Simulation) -> dict[str, Any]:
    """Give what a program reads; bytes and seconds."""
    measured = found.measured
    return {
        "layout": layout_mapping(found.layout),
        "text": str(found.layout),
        "ranks": found.layout.world_size,
        "rank": found.rank,
        "seqs": found.seqs,
        "seq_len": found.seq_len,
        "parameters": measured.parameter_numel,
        "peak_bytes": measured.peak.num_bytes,
        "peak_parts_bytes": dict(measured.peak.parts),
        "peak_moment": measured.peak.moment,
        "resting_bytes": measured.resting_bytes,
        "collectives": [
            {"axis": axis, "kind": kind, "calls": calls, "bytes": measured.moved_bytes[axis, kind]}
            for (axis, kind), calls in sorted(measured.calls.items())
        ],
        "notices": list(found.notices),
        "took_s": dict(found.parts_s),
    }
