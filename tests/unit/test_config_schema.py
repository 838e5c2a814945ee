"""The published schema: current, true to the loader, and every key of it read by the program."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from trireme.config import LayoutSection, RunConfig, SourceSection, build_json_schema, load_config
from trireme.config.document import read_document
from trireme.config.keys import all_fields
from trireme.config.schema import Section
from trireme.errors import ConfigError

VALIDATOR = jsonschema.Draft202012Validator(build_json_schema())


def test_the_schema_beside_the_recipes_is_current(repository: Path) -> None:
    committed = json.loads((repository / "recipes" / "schema.json").read_text(encoding="utf-8"))
    assert committed == build_json_schema(), "run: trireme config schema > recipes/schema.json"


def test_each_recipe_names_the_schema_fits_it_and_loads(repository: Path) -> None:
    recipes = sorted((repository / "recipes").rglob("*.yaml"))
    assert recipes
    for recipe in recipes:
        text = recipe.read_text(encoding="utf-8")
        first = text.splitlines()[0]
        prefix = "# yaml-language-server: $schema="
        assert first.startswith(prefix), recipe
        assert (recipe.parent / first.removeprefix(prefix)).resolve() == repository / "recipes" / "schema.json"
        load_config(recipe)
        VALIDATOR.validate(read_document(recipe).plain())


def test_the_schema_is_valid_and_describes_every_key_and_word() -> None:
    schema = build_json_schema()
    VALIDATOR.check_schema(schema)
    assert schema["$schema"].startswith("https://json-schema.org/")
    for definition in schema["$defs"].values():
        for key, field in definition["properties"].items():
            assert field.get("description"), key
    assert schema["properties"]["mp_degree"] == {"description": "Read as layout.tp.", "deprecated": True}


def test_descriptions_end_like_sentences() -> None:
    for key, field in all_fields().items():
        assert str(field.info.description).rstrip().endswith((".", ")")), key


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"model": "llama-19m", "data": {"sources": ["a", {"path": "b"}]}, "precision": "bf16"}, True),
        ({"data": {"sources": "a"}, "train": {"sample_prompts": "x", "lr": 1e-3, "max_steps": 1e3}}, True),
        ({"mp_degree": 1, "train": {"learning_rate": 1e-3}}, True),
        ({"train": {"max_stpes": 1}}, False),
        ({"train": {"lr": -1}}, False),
        ({"train": {"schedule": "cosin"}}, False),
        ({"precision": "bf17"}, False),
        ({"data": {"sources": [{"weight": 1}]}}, False),
        ({"data": {"seq_len": True}}, False),
        ({"trian": {}}, False),
    ],
)
def test_the_schema_and_the_loader_agree(values: dict[str, Any], fits: bool) -> None:
    assert VALIDATOR.is_valid(values) is fits
    try:
        load_config(None, base=values, purpose="show")
        loads = True
    except ConfigError:
        loads = False
    assert loads is fits


# -- every key is read by something -----------------------------------------------------------------


def test_every_key_is_read_outside_the_room_of_settings(repository: Path) -> None:
    """A key that nothing reads would be ignored in silence.

    A read is ``<section>.<key>`` where the left side is a name, attribute or annotation of that
    section: ``train.lr``, ``self.train.lr``, ``section.lr`` in a function whose ``section`` is
    annotated ``TrainSection``.
    """
    read = {pair for path in _sources(repository) for pair in _reads(ast.parse(path.read_text(encoding="utf-8")))}
    unread = [
        f"{section.__name__}.{name}"
        for section in _sections(RunConfig)
        for name in section.model_fields
        if (section, name) not in read and section is not LayoutSection
    ]
    assert not unread, f"nothing reads: {', '.join(unread)}"


def test_every_key_of_a_layout_is_handed_on() -> None:
    """``plan`` reads a layout as a mapping, so no code names its keys one by one."""
    samples = {"schedule": "zb", "recompute": "full", "cp_kind": "ring", "hsdp": "2x2", "sp": True}
    for name in set(LayoutSection.model_fields) - {"text"}:
        value = samples.get(name, 2)
        assert LayoutSection.model_validate({name: value}).given == {name: value}


def _sources(repository: Path) -> Iterator[Path]:
    for path in sorted((repository / "src" / "trireme").rglob("*.py")):
        if "config" not in path.relative_to(repository / "src" / "trireme").parts[:1]:
            yield path


def _sections(root: type[Section]) -> Iterator[type[Section]]:
    found = {type(root()), *(field.section for field in all_fields().values() if field.section is not None)}
    yield from sorted(found - {RunConfig}, key=lambda section: section.__name__)


def _reads(tree: ast.Module) -> Iterator[tuple[type[Section], str]]:
    for scope in _scopes(tree):
        names = {**_annotated(tree, only_attributes=True), **_annotated(scope), **_assigned(scope)}
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                section = _section_of(node.value, names)
                if section is not None and node.attr in section.model_fields:
                    yield section, node.attr
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                section = _section_of(node.args[0], names)
                yield from ((section, text) for text in _texts(tree) if section and text in section.model_fields)


def _section_of(node: ast.AST, names: dict[str, type[Section]]) -> type[Section] | None:
    """``config.train`` is that section by its name; a bare name must be annotated or assigned from one."""
    if isinstance(node, ast.Attribute) and node.attr in RunConfig.model_fields:
        return _by_name()[node.attr]
    return names.get(_last_name(node))


def _assigned(scope: ast.AST) -> dict[str, type[Section]]:
    """``train = config.train`` and ``for source in data.sources``."""
    found: dict[str, type[Section]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in _by_name():
            found |= {_last_name(target): _by_name()[node.value.attr] for target in node.targets}
        elif isinstance(node, (ast.For, ast.comprehension)) and _last_name(node.iter).endswith("sources"):
            found[_last_name(node.target)] = SourceSection
    return found


def _texts(tree: ast.Module) -> set[str]:
    """Texts of a module: where a section is read by ``getattr`` over a list, the list is among them."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node


def _by_name() -> dict[str, type[Section]]:
    """``config.train`` and a variable ``train`` are that section; a source is what it is called."""
    named = {
        name: section for field in all_fields().values() if (section := field.section) for name in (field.key[-1],)
    }
    return {name: section for name, section in named.items() if not name.endswith("sources")}


def _annotated(scope: ast.AST, *, only_attributes: bool = False) -> dict[str, type[Section]]:
    """Names and attributes that a scope annotates with a section."""
    sections = {section.__name__: section for section in _sections(RunConfig)}
    found: dict[str, type[Section]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.arg) and node.annotation is not None and not only_attributes:
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign):
            name, annotation = _last_name(node.target), node.annotation
        else:
            continue
        for part in ast.walk(annotation):
            if isinstance(part, ast.Name) and part.id in sections:
                found[name] = sections[part.id]
    return found


def _last_name(node: ast.AST) -> str:
    """``self._train`` -> ``train``: the name by which a value goes."""
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def test_a_key_that_nothing_reads_would_be_found() -> None:
    tree = ast.parse(
        "def f(section: TrainSection):\n    return section.lr\n\ndef g(c, data):\n    return c.data.seq_len, data.workers\n"
    )
    names = {f"{section.__name__}.{name}" for section, name in _reads(tree)}
    assert names == {"TrainSection.lr", "DataSection.seq_len"}
