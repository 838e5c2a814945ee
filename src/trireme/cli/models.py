"""``trireme models``: the reference decoders by name, and what one of them costs."""

from __future__ import annotations

import click

from trireme.cli.column import align
from trireme.cli.terminal import print_line
from trireme.cli.verb import VerbGroup
from trireme.graph import (
    ALIASES,
    PRESETS,
    DecoderShape,
    MicroBatch,
    count_model_flops,
    count_model_params,
    count_params,
    estimate_cache_bytes,
    find_graph,
    find_preset,
    flops_per_token,
    model_names,
    model_source,
)
from trireme.units import format_bytes, format_count, format_flops
from trireme.words import say

_SEQ_LEN_OPTION = click.option(
    "--seq-len", type=click.IntRange(min=1), default=2048, show_default=True, help=say("model.help_seq_len")
)


@click.group("models", cls=VerbGroup, invoke_without_command=True, help=say("cli.verb_models"))
@_SEQ_LEN_OPTION
@click.option("--published", is_flag=True, help=say("model.help_published"))
@click.pass_context
def command(context: click.Context, *, seq_len: int, published: bool) -> None:
    if context.invoked_subcommand is None:
        for line in model_names() if published else list_lines(seq_len=seq_len):
            print_line(line)


@command.command("show", help=say("model.help_show"))
@click.argument("name", metavar="NAME|CONFIG.JSON", help=say("model.help_show_name"))
@_SEQ_LEN_OPTION
def show(*, name: str, seq_len: int) -> None:
    is_reference = name in PRESETS or name in ALIASES
    for line in show_lines(name, seq_len=seq_len) if is_reference else graph_lines(name, seq_len=seq_len):
        print_line(line)


def list_lines(*, seq_len: int) -> list[str]:
    """Give the table of all sizes, a line each, and a line on how FLOPs are counted."""
    columns = ("name", "params", "flops", "layers", "width", "heads", "ffn", "vocab")
    rows = [[say(f"model.column_{column}") for column in columns]]
    rows += [_row(name, shape, seq_len) for name, shape in PRESETS.items()]
    formula = flops_per_token(next(iter(PRESETS.values())), seq_len=seq_len).formula
    return [*align(rows), "", say("model.list_note", seq_len=seq_len, formula=formula)]


def show_lines(name: str, *, seq_len: int) -> list[str]:
    """Give one size: its numbers, parameters by group, FLOPs with the formula, and how to ask for it.

    Raises:
        ModelError: There is no such size.
    """
    shape = find_preset(name)
    counts, flops = count_params(shape), flops_per_token(shape, seq_len=seq_len)
    numbers = [f"{key}: {getattr(shape, key)}" for key in DecoderShape.__dataclass_fields__]
    groups = [
        [f"  {say(f'model.group_{group}')}", f"{count:,}", f"{count / counts.total:.1%}"]
        for group, count in counts.by_group().items()
        if count
    ]
    return [
        name,
        *align([[f"  {part}" for part in numbers[start : start + 4]] for start in range(0, len(numbers), 4)]),
        "",
        f"{say('model.show_params')}: {counts.total:,} ({format_count(counts.total)})",
        *align(groups),
        "",
        f"{say('model.show_flops', seq_len=seq_len)}: {format_flops(flops.value_flops)}",
        f"  {say('model.show_formula')}: {flops.formula}",
        "",
        f"{say('model.show_use')} model: {{name: {name}}}",
    ]


def graph_lines(name: str, *, seq_len: int) -> list[str]:
    """Give a published model, or the one of a Hugging Face config.json: its layers, parameters, FLOPs and cache.

    Raises:
        ModelError: There is no such model or file, or its family is unknown.
    """
    graph = find_graph(name)
    params = count_model_params(graph)
    flops = count_model_flops(graph, MicroBatch(seqs=1, seq_len=seq_len))
    groups = [
        ("embedding", params.embedding),
        ("layers", params.layers),
        ("final", params.final),
        ("head", params.head),
    ]
    runs = [f"{run.count} x {run.block.kind}" for stack in graph.stacks for run in stack.runs()]
    source = model_source(graph.name) if graph.name in model_names() else ""
    lines = [
        f"{graph.name or name} ({graph.family}, {graph.architecture})",
        f"{say('model.show_layers')}: {', '.join(runs)}",
        "",
        f"{say('model.show_params')}: {params.total:,} ({format_count(params.total)})",
        *align([[f"  {say(f'model.group_{group}')}", f"{count:,}"] for group, count in groups if count]),
    ]
    if params.active != params.total:
        lines.append(f"  {say('model.show_active')}: {params.active:,} ({format_count(params.active)})")
    lines += [
        "",
        f"{say('model.show_flops', seq_len=seq_len)}: {format_flops(flops.training_per_token)}",
        f"  {say('model.show_formula')}: {flops.formula}",
    ]
    cache_bytes = estimate_cache_bytes(graph, seqs=1, seq_len=seq_len)
    if cache_bytes:
        lines.append(f"{say('model.show_cache', seq_len=seq_len)}: {format_bytes(cache_bytes)}")
    lines += [say("model.show_omitted", what=what) for what in graph.omitted]
    return [*lines, f"{say('model.show_source')}: {source}"] if source else lines


def _row(name: str, shape: DecoderShape, seq_len: int) -> list[str]:
    return [
        name,
        format_count(count_params(shape).total),
        format_flops(flops_per_token(shape, seq_len=seq_len).value_flops).removesuffix("FLOP"),
        str(shape.num_layers),
        str(shape.d_model),
        f"{shape.num_heads} ({shape.num_kv_heads})",
        str(shape.d_ffn),
        str(shape.vocab_size),
    ]
