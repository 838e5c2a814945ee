"""The shape of the house: directions between rooms, what loads what, names, sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MAX_FUNCTION_LINES = 60
MEDIAN_FUNCTION_LINES = 14  # the clear projects of this field have 4 to 11
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def modules(repository: Path) -> list[Path]:
    return sorted((repository / "src" / "trireme").rglob("*.py"))


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_rooms_import_only_from_rooms_below(repository: Path) -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_loads_nothing_heavy_before_a_verb_is_called() -> None:
    heavy = {"torch", "pydantic", "numpy", "yaml", "rich", "pyarrow", "tokenizers", "matplotlib", "transformers"}
    assert not loaded_by("import trireme.cli") & heavy
    assert not loaded_by("from trireme.cli import main; main(['--help'])") & heavy
    assert not loaded_by("from trireme.cli import main; main(['version'])") & heavy
    assert not loaded_by("import trireme") & heavy


@pytest.mark.parametrize(
    "room", ["words", "errors", "units", "shapes", "config", "graph", "cluster", "plan", "data", "observe"]
)
def test_rooms_below_the_waterline_and_the_data_room_load_no_torch(room: str) -> None:
    every = "pkgutil.iter_modules(getattr(room, '__path__', []))"
    load = f"[importlib.import_module(f'{{room.__name__}}.{{name}}') for _, name, _ in {every}]"
    statement = f"import importlib, pkgutil, trireme.{room} as room\n{load}"
    assert not loaded_by(statement) & {"torch", "transformers"}


def test_every_module_says_what_it_is_and_no_name_says_nothing(repository: Path) -> None:
    for path in modules(repository):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
        assert path.stem not in FORBIDDEN_NAMES, path


def test_functions_stay_small(repository: Path) -> None:
    sizes = {
        f"{path.relative_to(repository)}:{node.name}": lines
        for path in modules(repository)
        for node, lines in _functions(path)
    }
    too_long = {name: lines for name, lines in sizes.items() if lines > MAX_FUNCTION_LINES}
    assert not too_long
    ordered = sorted(sizes.values())
    assert ordered[len(ordered) // 2] <= MEDIAN_FUNCTION_LINES


def _functions(path: Path) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Yield each function with its lines, the docstring not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            has_text = (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            )
            doc_lines = (first.end_lineno or 0) - first.lineno + 1 if has_text else 0
            yield node, (node.end_lineno or 0) - node.lineno + 1 - doc_lines


def test_nothing_is_left_for_later(repository: Path) -> None:
    marks = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
    found = [
        f"{path.relative_to(repository)}:{number}"
        for folder in ("src", "tests", "docs", "benchmarks", "recipes")
        for path in sorted((repository / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".yaml") and not path.is_symlink()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]
    assert not found


def test_public_rooms_list_names_that_exist(repository: Path) -> None:
    for path in sorted((repository / "src" / "trireme").glob("*/__init__.py")):
        room = f"trireme.{path.parent.name}"
        code = f"import {room} as room\nprint(*[n for n in getattr(room, '__all__', []) if not hasattr(room, n)])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stdout.split(), room


def test_readme_and_guide_exist_in_both_languages(repository: Path) -> None:
    assert (repository / "README.md").stat().st_size > 1000
    assert (repository / "README.zh.md").stat().st_size > 1000
    english = {path.name for path in (repository / "docs" / "guide" / "en").glob("*.md")}
    chinese = {path.name for path in (repository / "docs" / "guide" / "zh").glob("*.md")}
    assert english
    assert english == chinese


def test_links_between_our_documents_lead_somewhere(repository: Path) -> None:
    documents = [
        *repository.glob("*.md"),
        *(repository / "docs").rglob("*.md"),
        *(repository / "benchmarks").rglob("*.md"),
    ]
    for document in documents:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("mailto:"):
                assert (document.parent / target).exists(), f"{document.relative_to(repository)} -> {target}"


def test_decisions_are_numbered_and_say_what_would_change_them(repository: Path) -> None:
    notes = sorted((repository / "docs" / "decisions").glob("*.md"))
    assert notes
    for note in notes:
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+", note.stem), note
        assert "would change" in note.read_text(encoding="utf-8"), note
