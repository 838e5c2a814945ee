"""From a file, words on the command line and Python values to one checked RunConfig."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trireme.config.check import Finding, Purpose, check_config
from trireme.config.derive import Deriver
from trireme.config.document import node_from_python, read_document
from trireme.config.merge import Flat, Setting, Tree, flatten, flatten_overrides
from trireme.config.origin import DEFAULT, Key, Origin, format_key
from trireme.config.problem import Problem, origin_finder, problems_of, raise_problems
from trireme.config.root import RunConfig
from trireme.config.schema import Section
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A run's settings, where each came from, and what is worth saying about them."""

    config: RunConfig
    origins: dict[str, Origin]
    notices: list[str]
    path: Path | None = None

    def to_yaml(self, *, with_origins: bool = False) -> str:
        """Return every value as YAML that loads to the same settings; with a comment on each if asked."""
        from trireme.config.show import format_yaml

        return format_yaml(self.config, origins=self.origins if with_origins else None)


def load_config(
    path: Path | str | None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    purpose: Purpose = "train",
    ranks: int | None = None,
) -> Loaded:
    """Return the settings of ``path`` with ``overrides`` (``key=value``) on top and ``base`` below.

    ``purpose`` says what must be complete: everything to ``train``, all but the model for a ``module`` given
    as an object, the sources for ``data``,
    nothing to ``show``. ``ranks``, where known, is what a data-parallel degree that isn't given follows from.

    Raises:
        ConfigError: Every problem at once, a line each: where, which key, which rule, what works.
    """
    layers = list(_layers(path, tuple(overrides), base=base))
    tree, notices, problems = _merge(layers, ranks=ranks)
    config = _validate(tree, problems=problems)
    top = Origin(layer="file", file=str(path)) if path is not None else Origin(layer="command line")
    notices += _check(config, purpose=purpose, origin_of=origin_finder(tree.origins), top=top)
    return Loaded(
        config=config,
        origins=dict(_origins(config, origins=tree.origins)),
        notices=list(dict.fromkeys(notices)),
        path=None if path is None else Path(path),
    )


def parse_config(values: Mapping[str, Any], *, purpose: Purpose = "train") -> RunConfig:
    """Return the settings that a plain mapping holds, checked like a file."""
    return load_config(None, base=values, purpose=purpose).config


def _layers(path: Path | str | None, overrides: tuple[str, ...], *, base: Mapping[str, Any] | None) -> Iterator[Flat]:
    if base is not None:
        yield flatten(node_from_python(base), layer="python")
    if path is not None:
        yield flatten(read_document(Path(path)), layer="file", file=str(path))
    yield flatten_overrides(overrides)


def _merge(layers: list[Flat], *, ranks: int | None) -> tuple[Tree, list[str], list[Problem]]:
    tree = Tree()
    joint: dict[str, Setting] = {}
    for layer in layers:
        _drop_replaced(joint, layer=layer)
        for setting in layer.settings:
            tree.apply(setting)
        joint |= layer.joint
    deriver = Deriver(tree, joint=joint, ranks=ranks)
    deriver.run()
    for layer in reversed(layers):
        _apply_implied(layer, tree=tree)
    notices = [notice for layer in layers for notice in layer.notices] + deriver.notices
    problems = [problem for layer in layers for problem in layer.problems] + deriver.problems
    return tree, notices, problems


def _drop_replaced(joint: dict[str, Setting], *, layer: Flat) -> None:
    """A later batch size replaces an earlier accumulation, for together they would contradict."""
    if any(setting.key == ("train", "global_batch_seqs") for setting in layer.settings):
        replaced = joint.pop("gradient_accumulation_steps", None)
        if replaced is not None:
            layer.notices.append(
                say(
                    "config.overridden",
                    place=replaced.origin.place,
                    word="gradient_accumulation_steps",
                    key="train.global_batch_seqs",
                    by=layer.settings[0].origin.place,
                )
            )


def _apply_implied(layer: Flat, *, tree: Tree) -> None:
    for setting in layer.implied:
        if setting.key not in tree.origins:
            tree.apply(setting)
            layer.notices.append(
                say(
                    "config.implied",
                    place=setting.origin.place,
                    word=setting.origin.alias,
                    key=format_key(setting.key),
                    value=setting.value,
                )
            )


def _validate(tree: Tree, *, problems: list[Problem]) -> RunConfig:
    try:
        config = RunConfig.model_validate(tree.values)
    except ValidationError as error:
        problems = [*problems, *problems_of(error, origin_of=origin_finder(tree.origins))]
        raise_problems([*tree.problems, *problems])
        raise
    raise_problems([*tree.problems, *problems])
    return config


def _check(config: RunConfig, *, purpose: Purpose, origin_of: Callable[[Key], Origin], top: Origin) -> list[str]:
    """Raise what contradicts; return what is worth a notice."""
    findings = check_config(config, purpose=purpose)
    located = [(finding, _locate(finding, origin_of=origin_of, top=top)) for finding in findings]
    raise_problems([problem for finding, problem in located if not finding.is_notice])
    return [str(problem) for _, problem in located]


def _locate(finding: Finding, *, origin_of: Callable[[Key], Origin], top: Origin) -> Problem:
    origin = origin_of(finding.at)
    return Problem(origin=top if origin is DEFAULT else origin, name=finding.name, values=finding.values)


def _origins(section: Section, *, origins: Mapping[Key, Origin], prefix: Key = ()) -> Iterator[tuple[str, Origin]]:
    """Yield every leaf key with where its value came from."""
    for name in type(section).model_fields:
        key, value = (*prefix, name), getattr(section, name)
        if isinstance(value, Section):
            yield from _origins(value, origins=origins, prefix=key)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            for index, part in enumerate(value):
                yield from _origins(part, origins=origins, prefix=(*key, index))
        else:
            inside = [origin for other, origin in origins.items() if other[: len(key)] == key]
            yield format_key(key), max(inside, key=lambda origin: origin.rank, default=DEFAULT)
