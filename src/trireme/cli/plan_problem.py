"""From words on the command line to the problem that they pose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme.cluster import load_cluster
from trireme.errors import ConfigError, ModelError
from trireme.graph import ALIASES, PRESETS, ModelGraph, find_graph, find_preset, graph_of_section, read_shape
from trireme.plan import FRAMEWORKS, Problem, find_framework, parse_wish
from trireme.words import say

if TYPE_CHECKING:
    from trireme.config import RunConfig

_TOKENS = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[0-9]+)?)([KMBT]?)", re.IGNORECASE)
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MICROBATCH = re.compile(r"(?:^|(?<=[,\s]))(?:microbatch_seqs|micro_batch_size|mbs)\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The problem, what to tell about how it was read, and what else was asked about it."""

    problem: Problem
    notices: tuple[str, ...]
    wishes: Mapping[str, Mapping[str, Any]]
    tokens: float | None
    node_mtbf_s: float | None
    checkpoint_s: float
    restart_s: float


def ask(given: Mapping[str, Any]) -> Asked:
    """Read everything that the command line says.

    Raises:
        TriremeError: Something is unknown, or missing.
    """
    told: list[str] = []
    config = read_config_file(given["model"])
    batch, seq_len = _batch(given, config)
    model = read_model(given["model"], config=config, seq_len=seq_len, notice=told.append)
    framework = find_framework(given["framework"])
    if framework is None:
        raise ConfigError("plan_cli.unknown_framework", name=given["framework"], names=", ".join(FRAMEWORKS))
    fix, notices = read_wish(given["fix"])
    problem = Problem(
        model=model,
        cluster=load_cluster(given["cluster"]),
        global_batch_seqs=batch,
        seq_len=model.fixed_seq_len or seq_len,
        precision=given["precision"],
        optimizer=given["optimizer"],
        kernels=given["kernels"],
        framework=framework,
        may_offload=given["offload"],
        fix=fix,
    )
    hours = given["node_mtbf_hours"]
    return Asked(
        problem=problem,
        notices=(*told, *notices, *_about(problem)),
        wishes={text: read_wish((text,))[0] for text in given["why"]},
        tokens=None if given["tokens"] is None else read_tokens(given["tokens"]),
        node_mtbf_s=None if hours is None else hours * 3600,
        checkpoint_s=given["checkpoint_s"],
        restart_s=given["restart_s"],
    )


def read_config_file(what: str) -> RunConfig | None:
    """Give the settings of a run, if a file of them is named."""
    if not what.endswith((".yaml", ".yml")):
        return None
    from trireme.config import load_config

    return load_config(what, purpose="show").config


def read_model(what: str, *, config: RunConfig | None, seq_len: int, notice: Callable[[str], None]) -> ModelGraph:
    """Give the graph of a name, a config.json, a folder, code or the model of a run's settings.

    What isn't known by numbers is captured, which needs torch; nothing else does.
    """
    if config is not None and config.model.factory is None:
        try:
            return graph_of_section(config.model)
        except ModelError:
            if config.model.path is None:
                raise
    elif config is None and (what in PRESETS or what in ALIASES):
        return read_shape(find_preset(what), name=what)
    elif config is None and ":" not in what:
        try:
            return find_graph(what)
        except ModelError as error:
            if not Path(what).exists() or error.key in ("graph.unreadable", "graph.not_json", "graph.no_family"):
                raise
    from trireme.job.graph import graph_of_any, graph_of_run

    if config is not None:
        return graph_of_run(config.model, seq_len=seq_len, notice=notice)
    return graph_of_any(what, seq_len=seq_len, notice=notice)


def _batch(given: Mapping[str, Any], config: RunConfig | None) -> tuple[int, int]:
    batch, seq_len = given["global_batch_seqs"], given["seq_len"]
    if config is not None:
        batch = batch or config.train.global_batch_seqs
        seq_len = seq_len or config.data.seq_len
    for option, value in (("--global-batch-seqs", batch), ("--seq-len", seq_len)):
        if value is None:
            raise ConfigError("plan_cli.missing", option=option)
    return batch, seq_len


def read_wish(texts: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read parts of a layout; ``mbs=2`` is the one word that a layout itself doesn't have."""
    text = ",".join(texts)
    sizes = {int(size) for size in _MICROBATCH.findall(text)}
    if len(sizes) > 1:
        raise ConfigError("plan_cli.two_sizes", sizes=", ".join(map(str, sorted(sizes))))
    wish = parse_wish(_MICROBATCH.sub("", text))
    return {**wish.said, **({"microbatch_seqs": sizes.pop()} if sizes else {})}, wish.notices


def read_tokens(text: str) -> float:
    """``15T`` -> 1.5e13.

    Raises:
        ConfigError: It is no number above zero.
    """
    match = _TOKENS.fullmatch(text.strip())
    value = float(re.sub("[_,]", "", match[1])) * _SCALES[match[2].upper()] if match else 0.0
    if value <= 0:
        raise ConfigError("plan_cli.not_tokens", text=text)
    return value


def _about(problem: Problem) -> list[str]:
    """What to know before believing the figures."""
    model = problem.model
    notes = [say("plan_cli.omitted", what=what) for what in model.omitted]
    if model.max_seq_len is not None and problem.seq_len > model.max_seq_len:
        notes.append(say("plan_cli.longer", seq_len=problem.seq_len, max_seq_len=model.max_seq_len))
    return notes
