"""``trireme cluster probe``: measure this machine and write what ``--cluster`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trireme.cli.numbers import FiniteRange
from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb, VerbGroup
from trireme.errors import ConfigError
from trireme.units import format_bytes, format_flops
from trireme.words import say

if TYPE_CHECKING:
    import torch

    from trireme.cluster import Cluster, DeviceSpec, Link

_FORMATS = ("float32", "bfloat16", "float16")


@click.group("cluster", cls=VerbGroup, help=say("cli.verb_cluster"))
def command() -> None:
    pass


@command.command("probe", cls=Verb, help=say("probe.help"))
@click.option("--out", metavar="FILE.yaml", type=click.Path(path_type=Path), default=None, help=say("probe.help_out"))
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help=say("probe.help_ranks"))
@click.option("--seconds", type=FiniteRange(min=0.01), default=0.5, show_default=True, help=say("probe.help_s"))
def probe(*, out: Path | None, ranks: int, seconds: float) -> None:
    from trireme.cluster import format_cluster_file

    cluster = measure_cluster(ranks=ranks, limit_s=seconds)
    for line in cluster_lines(cluster):
        print_line(line)
    if out is not None:
        _write(out, format_cluster_file(cluster))
        print_line(say("probe.written", path=out))


def measure_cluster(*, ranks: int, limit_s: float) -> Cluster:
    """Measure the device of this process, and exchanges between ranks where they run on the processor."""
    from trireme.cluster import LINKS, NODES, Cluster, find_device
    from trireme.mesh import choose_device, device_facts, measures_whole_process

    device = choose_device()
    facts = device_facts(device)
    is_processor = measures_whole_process(device)
    name = f"CPU ({facts.name})" if is_processor else facts.name
    spec = measure_device(device, name=name, memory_bytes=facts.memory_bytes, limit_s=limit_s)
    known = find_device(facts.name)
    node = next((node for node in NODES.values() if known is not None and node.accelerator == known), None)
    if is_processor:  # ranks share the processor's memory
        spec = replace(spec, memory_bytes=spec.memory_bytes // ranks)
    link = _measured_link(ranks) if is_processor and ranks > 1 else LINKS[node.intra if node else "shared-memory"]
    return Cluster(
        name="probed",
        accelerator=spec,
        ranks_per_node=ranks,
        num_nodes=1,
        intra=link,
        inter=LINKS[node.inter if node else "eth-10"],
        cards_per_node=1,
    )


def measure_device(device: torch.device, *, name: str, memory_bytes: int, limit_s: float) -> DeviceSpec:
    """Give a device as measured: a peak is what it takes for the planner to foresee the products that ran."""
    from trireme.cluster import DeviceSpec, ceiling_of
    from trireme.mesh import measure_memory_bytes_per_s

    spec = DeviceSpec(
        name=name,
        words=frozenset(name.lower().split()),
        peak_flops_per_s={},
        memory_bytes=memory_bytes,
        memory_bytes_per_s=measure_memory_bytes_per_s(device, limit_s=limit_s),
        link_bytes_per_s=None,
        source=say("probe.source"),
        date=date.today().isoformat(),
    )
    rates = _product_rates(device, limit_s=limit_s)
    peaks = {dtype: rate / ceiling_of(spec, dtype=dtype)[0] for dtype, rate in rates.items()}
    return replace(spec, peak_flops_per_s=peaks)


def _product_rates(device: torch.device, *, limit_s: float) -> Mapping[str, float]:
    import torch

    from trireme.mesh import FormatSupport, format_support, measure_matmul_flops_per_s

    support = format_support(device)
    wanted = [dtype for dtype in _FORMATS if support.get(dtype) is FormatSupport.NATIVE or dtype == "float32"]
    return {dtype: measure_matmul_flops_per_s(device, getattr(torch, dtype), limit_s=limit_s) for dtype in wanted}


def _measured_link(ranks: int) -> Link:
    from trireme.cluster import Source, plain_link
    from trireme.mesh import measure_link

    figures = measure_link(ranks)
    source = Source(where=say("probe.source"), date=date.today().isoformat())
    return plain_link(name="probed-link", bytes_per_s=figures.bytes_per_s, latency_s=figures.latency_s, source=source)


def cluster_lines(cluster: Cluster) -> list[str]:
    """Give what was measured, a line each."""
    spec = cluster.accelerator
    lines = [say("probe.device", name=spec.name, memory=format_bytes(spec.memory_bytes))]
    lines += [
        say("probe.products", dtype=dtype, rate=format_flops(rate)) for dtype, rate in spec.peak_flops_per_s.items()
    ]
    lines.append(say("probe.memory", rate=format_bytes(round(spec.memory_bytes_per_s))))
    rate = format_bytes(round(cluster.intra.bytes_per_s))
    lines.append(say("probe.link", name=cluster.intra.name, rate=rate, latency=f"{1e6 * cluster.intra.latency_s:.1f}"))
    return lines


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("truth.unwritable", path=path, reason=error.strerror or type(error).__name__) from None
