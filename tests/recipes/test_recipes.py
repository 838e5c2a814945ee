"""Every recipe loads, tells editors its schema, and trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.tiny_command import shrink
from trireme.cli import main
from trireme.config import load_config

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def test_there_are_recipes() -> None:
    assert {"lyrics", "python_code"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_the_schema_in_its_first_line(recipe: Path) -> None:
    first = recipe.read_text(encoding="utf-8").splitlines()[0]
    mark = "# yaml-language-server: $schema="
    assert first.startswith(mark)
    assert (recipe.parent / first.removeprefix(mark)).is_file()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_without_a_notice(recipe: Path) -> None:
    assert load_config(recipe).notices == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_two_small_steps(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main(shrink(["train", str(recipe)]))
    said = capsys.readouterr()
    assert status == 0, said.out + said.err
    assert len((tmp_path / "runs" / recipe.stem / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 2
