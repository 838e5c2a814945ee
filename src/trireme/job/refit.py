"""The nearest layout for another number of ranks: what a run that nodes leave or join goes on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from trireme.config import RunConfig
from trireme.errors import LayoutError
from trireme.job.layout import is_open, resolve_layout
from trireme.plan import Layout, parse_layout
from trireme.words import say


def refit_layout(config: RunConfig, *, ranks: int, notice: Callable[[str], None]) -> Layout | None:
    """Return the layout to use instead of the one asked for; None where that one fits ``ranks``.

    Degrees of tensor, pipeline, context and expert parallelism are kept where they can be, else divided, the fewest
    changes first; data parallelism takes the rest, so the samples and their order stay what they were.

    Raises:
        LayoutError: It is a plan, which is for one number of ranks; or none fits.
    """
    try:
        resolve_layout(config, ranks=ranks, notice=lambda text: None)
    except LayoutError:
        if is_open(config.layout) or (config.layout.text or "").endswith(".json"):
            raise
    else:
        return None
    section = config.layout
    asked = parse_layout(section.text if section.text is not None else section.given).layout
    for candidate in _candidates(asked, ranks=ranks):
        notice(say("job.refit", asked=asked, ranks=ranks, chosen=candidate))
        return candidate
    raise LayoutError("job.other_ranks", layout=asked, needs=asked.world_size, ranks=ranks)


def _candidates(asked: Layout, *, ranks: int) -> Iterator[Layout]:
    """Yield layouts of ``ranks``, those that divide the least first."""
    choices = product(*(_divisors(degree) for degree in (asked.tp, asked.pp, asked.cp)))
    order = sorted(choices, key=lambda each: (asked.tp * asked.pp * asked.cp / (each[0] * each[1] * each[2]), each))
    for tp, pp, cp in order:
        rest, left = divmod(ranks, tp * pp * cp)
        if left or not rest:
            continue
        copies = asked.dp_replicate if asked.zero and rest % asked.dp_replicate == 0 else 1
        shard = rest // copies if asked.zero or asked.ep > 1 else 1
        ep = next(each for each in _divisors(asked.ep) if (shard * cp * tp) % each == 0)
        yield replace(
            asked,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            dp_shard=shard,
            dp_replicate=rest // shard,
            sp=asked.sp and tp > 1,
            vp=asked.vp if pp > 1 else 0,
            schedule=asked.schedule if pp > 1 else "1f1b",
        )


def _divisors(degree: int) -> list[int]:
    return [each for each in range(degree, 0, -1) if degree % each == 0]
