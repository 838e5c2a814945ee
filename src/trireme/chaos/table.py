"""The page of all drills: every fault, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.chaos.experiment import Finding
from trireme.words import say


def format_table(findings: Sequence[Finding], *, command: str, ranks: int, max_steps: int) -> str:
    """Return the page as Markdown."""
    lines = [
        f"# {say('chaos.title')}",
        "",
        say("chaos.intro", command=command, ranks=ranks, max_steps=max_steps),
        "",
        "| " + " | ".join(say(f"chaos.head_{name}") for name in _HEADS) + " |",
        "|" + "---|" * len(_HEADS),
    ]
    lines += [f"| {' | '.join(_cells(finding))} |" for finding in findings]
    good = sum(finding.as_expected for finding in findings)
    lines += ["", say("chaos.sum", good=good, count=len(findings)), ""]
    return "\n".join(lines)


_HEADS = ("fault", "settings", "found_by", "found_s", "again", "ended")


def _cells(finding: Finding) -> tuple[str, ...]:
    drill = finding.drill
    found_s = "" if finding.found_s is None else f"{finding.found_s:.1f}"
    ended = say(f"chaos.ended_{finding.ended}")
    return (
        f"`{drill}`",
        " ".join(f"`{word}`" for word in drill.overrides),
        finding.found_by,
        found_s,
        str(finding.again_steps),
        ended if finding.as_expected else f"**{ended}**",
    )
