"""``trireme env``: what this machine and this installation have, to read or to attach to a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.errors import TriremeError
from trireme.units import format_bytes
from trireme.words import say

_OPTIONAL = ("transformers",)


@click.command("env", cls=Verb, help=say("cli.verb_env"))
@click.option("--json", "as_json", is_flag=True, help=say("cli.env_json"))
def command(*, as_json: bool) -> None:
    facts = collect_facts()
    if as_json:
        print_line(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    rows = list(_rows(facts))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print_line(f"{label:<{width}}  {text}")


def collect_facts() -> dict[str, Any]:
    """Return versions, machine and the device that training would take, as JSON."""
    device = _device()  # imports torch, so that ``environment`` sees the accelerators
    from trireme.observe import environment

    facts = environment()
    del facts["command"]
    return {**facts, "device": device}


def _device() -> dict[str, Any]:
    """The device, or why there is none: a broken torch is what this command is called for."""
    try:
        from trireme.mesh import choose_device, device_facts

        facts = device_facts(choose_device(), measure=False)
    except (ImportError, OSError, RuntimeError, TriremeError) as error:
        return {"problem": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "name": facts.name,
        "kind": facts.kind,
        "memory_bytes": facts.memory_bytes,
        "formats": {name: support.name.lower() for name, support in facts.formats.items()},
        "peak_flops_per_s": dict(facts.peak_flops_per_s),
    }


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "trireme", facts["trireme"]
    yield "python", facts["python"]
    packages = {name: say("cli.env_none") for name in _OPTIONAL} | facts["packages"]
    yield from sorted(packages.items())
    yield "os", facts["os"]
    yield "cpu", f"{facts['cpu']} ({say('cli.env_cores', cores=facts['cpu_cores'])})"
    yield "memory", format_bytes(facts["memory_bytes"])
    yield "accelerators", ", ".join(facts["accelerators"]) or say("cli.env_no_accelerator")
    device = facts["device"]
    if "problem" in device:
        yield "device", device["problem"]
    else:
        formats = ", ".join(f"{name} {support}" for name, support in device["formats"].items())
        yield "device", f"{device['kind']}, {format_bytes(device['memory_bytes'])}: {formats}"
    if facts["git_commit"]:
        yield "git commit", facts["git_commit"]
    yield from facts["variables"].items()
