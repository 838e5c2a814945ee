"""``trireme data report | build | ids | tokenizer``: look at data before any model is built."""

from __future__ import annotations

import math
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb, VerbGroup
from trireme.errors import DataError
from trireme.words import say

if TYPE_CHECKING:
    from trireme.config import RunConfig
    from trireme.data import DataReport, PreparedData, TokenizerReport

_WIDTH_OF_FILES = 120
_SAMPLES_END = 2**63
"""Samples are numbered with 64 bits."""
_RANGE = re.compile(r"(\d+):(\d+)")


@click.group("data", cls=VerbGroup, help=say("cli.verb_data"))
def command() -> None:
    """Hold the commands below."""


_run_file = click.argument("run_file", metavar="RUN.YAML", help=say("cli.run_file"))
_overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))


@command.command("report", cls=Verb, help=say("data_cli.report"))
@_run_file
@_overrides
@click.option("--example", type=click.IntRange(min=0), metavar="N", help=say("data_cli.example_option"))
@click.option("--json", "as_json", is_flag=True, help=say("data_cli.json_option"))
def report(run_file: str, overrides: tuple[str, ...], *, example: int | None, as_json: bool) -> None:
    config = _load(run_file, overrides)
    prepared = _prepare(config)
    if example is None:
        _print_report(_report_of(prepared, config), as_json=as_json)
    else:
        _print_example(prepared, example, as_json=as_json)


@command.command("build", cls=Verb, help=say("data_cli.build"))
@_run_file
@_overrides
def build(run_file: str, overrides: tuple[str, ...]) -> None:
    from trireme.units import format_count

    prepared = _prepare(_load(run_file, overrides))
    evaluated = prepared.evaluation.sources if prepared.evaluation else ()
    for name, store in {source.name: source.store for source in (*prepared.train.sources, *evaluated)}.items():
        documents, tokens = f"{store.num_documents:,}", format_count(store.num_tokens)
        print_line(say("data_cli.built", source=name, documents=documents, tokens=tokens, folder=store.folder))


@command.command("ids", cls=Verb, help=say("data_cli.ids"))
@_run_file
@_overrides
@click.option("--steps", required=True, metavar="A:B", help=say("data_cli.steps_option"))
@click.option("--dp-degree", type=click.IntRange(min=1), default=1, metavar="N", help=say("data_cli.dp_degree_option"))
def ids(run_file: str, overrides: tuple[str, ...], *, steps: str, dp_degree: int) -> None:
    from trireme.data import share_of_rank

    wanted = parse_steps(steps)
    config = _load(run_file, overrides)
    stream = _prepare(config).train
    batch_seqs = config.train.global_batch_seqs
    if wanted.stop * batch_seqs >= _SAMPLES_END:
        raise click.BadParameter(say("data_cli.steps_too_far", text=steps), param_hint="--steps")
    for step in wanted:
        drawn = stream.ids_at(step, global_batch_seqs=batch_seqs).tolist()
        for rank in range(dp_degree):
            mine = drawn[share_of_rank(batch_seqs, dp_rank=rank, dp_degree=dp_degree)]
            print_line(f"{step} {rank}:" + "".join(f" {sample_id}" for sample_id in mine))


@command.command("tokenizer", cls=Verb, help=say("data_cli.tokenizer"))
@click.argument("run_file", metavar="[RUN.YAML]", required=False, help=say("cli.run_file"))
@_overrides
@click.option("--source", "sources", multiple=True, metavar="PATH", help=say("data_cli.source_option"))
@click.option("--vocab-size", type=click.IntRange(min=300), metavar="N", help=say("data_cli.vocab_size_option"))
@click.option("--output", required=True, type=click.Path(path_type=Path), help=say("data_cli.output_option"))
@click.option("--words", type=click.Path(path_type=Path), metavar="FILE", help=say("data_cli.words_option"))
def tokenizer(
    run_file: str | None,
    overrides: tuple[str, ...],
    *,
    sources: tuple[str, ...],
    vocab_size: int | None,
    output: Path,
    words: Path | None,
) -> None:
    from trireme.data import load_words, train_tokenizer_on
    from trireme.observe import WorkProgress

    config = _sources_or_file(run_file, overrides, sources=sources)
    if (output / "tokenizer.json").exists():
        raise DataError("data_cli.output_exists", path=output / "tokenizer.json")
    word_list = load_words(words) if words else ()
    trained = train_tokenizer_on(config.data, vocab_size=vocab_size, words=word_list, progress=WorkProgress())
    trained.tokenizer.save(output)
    asked, learned = vocab_size or config.data.tokenizer_vocab_size, trained.tokenizer.vocab_size
    if learned < asked:
        print_notes([say("data_cli.vocabulary_smaller", asked=asked, learned=learned)])
    _print_tokenizer(trained, output=output)


def parse_steps(text: str) -> range:
    """Return the steps of ``A:B``, from zero, B not included.

    Raises:
        click.BadParameter: It is no range, or an empty one.
    """
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise click.BadParameter(say("data_cli.bad_steps", text=text), param_hint="--steps")
    return range(int(found[1]), int(found[2]))


def _load(run_file: str | None, overrides: tuple[str, ...], *, base: dict[str, Any] | None = None) -> RunConfig:
    from trireme.config import load_config

    loaded = load_config(run_file, overrides, base=base, purpose="data")
    print_notes(loaded.notices)
    return loaded.config


def _sources_or_file(run_file: str | None, overrides: tuple[str, ...], *, sources: tuple[str, ...]) -> RunConfig:
    """Return settings from a run file, or from sources alone; then every argument is an override."""
    if not sources:
        if run_file is None:
            raise click.UsageError(say("data_cli.file_or_source"))
        return _load(run_file, overrides)
    given = (run_file, *overrides) if run_file is not None else overrides
    if run_file is not None and "=" not in run_file:
        raise click.UsageError(say("data_cli.file_and_source", run_file=run_file))
    return _load(None, given, base={"data": {"sources": [{"path": path} for path in sources]}})


def _prepare(config: RunConfig) -> PreparedData:
    from trireme.data import prepare_data
    from trireme.observe import WorkProgress

    return prepare_data(
        config.data, seed=config.run.seed, progress=WorkProgress(), notice=lambda text: print_notes([text])
    )


def _report_of(prepared: PreparedData, config: RunConfig) -> DataReport:
    """Return the report, with epochs where the settings say how long the run is."""
    batch_seqs = config.train.global_batch_seqs
    num_samples = _samples_of_run(config, samples_per_epoch=prepared.train.num_samples)
    if num_samples is None:
        return prepared.report
    return prepared.report_for_run(num_steps=math.ceil(num_samples / batch_seqs), global_batch_seqs=batch_seqs)


def _samples_of_run(config: RunConfig, *, samples_per_epoch: int) -> Fraction | None:
    """Return how many samples the run asks for. ``train.plan_steps`` rounds the same way; it costs torch's import."""
    train = config.train
    if train.max_steps is not None:
        return Fraction(train.max_steps * train.global_batch_seqs)
    if train.max_tokens is not None:
        return Fraction(train.max_tokens, config.data.seq_len)
    return Fraction(str(train.epochs)) * samples_per_epoch if train.epochs is not None else None


def _print_report(found: DataReport, *, as_json: bool) -> None:
    from trireme.data import format_report

    print_line(_json(found.to_json()) if as_json else format_report(found, **_terminal()))


def _print_example(prepared: PreparedData, number: int, *, as_json: bool) -> None:
    from dataclasses import asdict

    from trireme.data import build_example, format_example

    stream = prepared.train
    if number >= stream.num_samples:
        raise DataError("data_cli.no_such_sample", number=number, last=stream.num_samples - 1)
    example = build_example(stream, number, tokenizer=prepared.tokenizer)
    print_line(_json(asdict(example)) if as_json else format_example(example, **_terminal()))


def _print_tokenizer(trained: TokenizerReport, *, output: Path) -> None:
    print_line(say("data_cli.tokenizer_saved", path=output / "tokenizer.json", vocab_size=trained.tokenizer.vocab_size))
    values = {"characters": f"{trained.characters_per_token:.3f}", "bytes": f"{trained.bytes_per_token:.3f}"}
    print_line(say("data_cli.tokenizer_fit", documents=f"{trained.documents:,}", **values))
    if trained.round_trip_ok:
        print_line(say("data_cli.round_trip_exact"))
    else:
        print_line(say("data_cli.round_trip_differs", where=trained.first_difference))


def _terminal() -> dict[str, Any]:
    """Return how wide to write, and whether in colour: only on a terminal that did not ask for none."""
    import os
    import shutil

    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    color = is_terminal and not os.environ.get("NO_COLOR")
    return {"color": color, "width": shutil.get_terminal_size().columns if is_terminal else _WIDTH_OF_FILES}


def _json(values: dict[str, Any]) -> str:
    import json

    return json.dumps(values, ensure_ascii=False, indent=2)
