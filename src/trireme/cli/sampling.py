"""Options that every verb shares that writes text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.terminal import print_notes
from trireme.job.sampling import Sampling
from trireme.words import say

if TYPE_CHECKING:
    from trireme.job.loading import LoadedRun

_DEFAULT = Sampling()

_OPTIONS = (
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        default=_DEFAULT.max_new_tokens,
        show_default=True,
        help=say("generate.max_new_tokens"),
    ),
    click.option(
        "--temperature", type=float, default=_DEFAULT.temperature, show_default=True, help=say("generate.temperature")
    ),
    click.option("--top-p", type=float, default=_DEFAULT.top_p, show_default=True, help=say("generate.top_p")),
    click.option("--top-k", type=int, default=_DEFAULT.top_k, show_default=True, help=say("generate.top_k")),
    click.option(
        "--seed", type=click.IntRange(min=0), default=_DEFAULT.seed, show_default=True, help=say("generate.seed")
    ),
    click.option("--checkpoint", default="best", show_default=True, help=say("generate.checkpoint")),
    click.option("--device", help=say("generate.device")),
)


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb, in the order that help shows them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_sampling(options: dict[str, Any]) -> Sampling:
    """Return the settings that the options hold."""
    names = ("max_new_tokens", "temperature", "top_p", "top_k", "seed")
    return Sampling(**{name: options[name] for name in names})


def load_for(options: dict[str, Any]) -> LoadedRun:
    """Load the model that a verb's words name, and say which it is."""
    from trireme.job.loading import load_run
    from trireme.mesh import choose_device

    device = choose_device(kind=options["device"])
    loaded = load_run(
        Path(options["path"]),
        checkpoint=options["checkpoint"],
        device=device,
        notice=lambda text: print_notes([text]),
    )
    print_notes([say("generate.loaded", path=loaded.path, device=device)])
    return loaded
