"""The pages do what they say: commands run, settings load, Python works, and both languages say the same."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.recipes.page import Block, Command, read_blocks, read_commands, without_comments
from tests.recipes.tiny_command import shrink, shrink_settings
from trireme.cli import main
from trireme.config import load_config

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
NAMES = sorted(path.name for path in (GUIDE / "en").glob("*.md"))
ENGLISH = [ROOT / "README.md", *(GUIDE / "en" / name for name in NAMES)]
CHINESE = [ROOT / "README.zh.md", *(GUIDE / "zh" / name for name in NAMES)]
PAIRS = list(zip(ENGLISH, CHINESE, strict=True))
LANGUAGES = {"bash", "python", "yaml", "text"}
POEM = "明月几时有，把酒问青天。\n不知天上宫阙，今夕是何年。\n\n"
SMALLEST = {"model": {"name": "llama-1m"}, "data": {"sources": ["corpus:songci"]}, "train": {"max_steps": 10}}
ONE_OF = {"model": ("name", "factory", "path"), "train": ("max_steps", "max_tokens", "epochs")}


def page_id(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: the repository's recipes, a finished run of one of them, and files of their own."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    shutil.copy(ROOT / "constraints.txt", folder)
    (folder / "benchmarks" / "data").mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / "data" / "published_runs.csv", folder / "benchmarks" / "data")
    _write_own_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shrink(["train", "recipes/lyrics.yaml"])) == 0
    return folder


@pytest.fixture
def reader(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one page's own; the page's modules are forgotten afterwards."""
    folder = tmp_path / "reader"
    shutil.copytree(template, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.parametrize("page", ENGLISH, ids=page_id)
def test_what_a_page_shows_works(
    page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = _names_of_python(reader, monkeypatch)
    for block in read_blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: a block is one of {LANGUAGES}"
        match block.language:
            case "bash":
                for command in read_commands(block):
                    _run(command, monkeypatch=monkeypatch, capsys=capsys)
            case "yaml":
                _load(block)
            case "python" if block.file_name:
                Path(block.file_name).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file_name).write_text(block.text, encoding="utf-8")
            case "python":
                exec(compile(block.text, block.place, "exec"), names)


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[page_id(pair[0]) for pair in PAIRS])
def test_both_languages_show_the_same_code(english: Path, chinese: Path) -> None:
    ours, theirs = ([b for b in read_blocks(page) if b.language != "text"] for page in (english, chinese))
    assert [block.language for block in ours] == [block.language for block in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert without_comments(one) == without_comments(other), f"{one.place} and {other.place}"
        if one.language == "bash":
            assert [c.is_refused for c in read_commands(one)] == [c.is_refused for c in read_commands(other)]


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[page_id(pair[0]) for pair in PAIRS])
def test_both_languages_have_the_same_shape(english: Path, chinese: Path) -> None:
    ours, theirs = (_shape(page.read_text(encoding="utf-8")) for page in (english, chinese))
    assert ours == theirs


@pytest.mark.parametrize("page", [*ENGLISH, *CHINESE], ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_is_reachable_and_its_links_lead_into_the_repository(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        place = (page.parent / target) if target else page
        assert place.exists(), f"{page.name} -> {target}"
        if anchor:
            assert anchor in _anchors(place.read_text(encoding="utf-8")), f"{page.name} -> {target}#{anchor}"
    if page.parent.parent == GUIDE and page.name != "index.md":
        assert f"]({page.name}" in (page.parent / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_tables_of_settings_are_those_of_the_schema(language: str) -> None:
    tables = _settings_table()
    page = tables.page_path(language).read_text(encoding="utf-8")
    assert page == tables.fill(page, language=language), "run python docs/settings_table.py"


def test_every_setting_has_a_chinese_meaning_of_what_it_means_now() -> None:
    tables = _settings_table()
    meanings = tables.chinese_meanings()
    assert {key: entry["en"] for key, entry in meanings.items()} == {
        key: field.info.description for key, field in tables.described_keys().items()
    }, "translate what changed in docs/settings_zh.yaml"
    for key, entry in meanings.items():
        assert re.search("[\u4e00-\u9fff]", entry["zh"]), key


def test_a_table_that_fell_behind_is_noticed() -> None:
    tables = _settings_table()
    page = tables.page_path("en").read_text(encoding="utf-8").replace("| `0.0003` |", "| `0.001` |")
    assert page != tables.fill(page, language="en")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_error_that_troubleshooting_quotes_is_said_by_the_program(language: str) -> None:
    page = (GUIDE / language / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"<!-- ([a-z_]+)\.([a-z_]+) -->\n+#+ `(.+)`", page)
    assert len(quoted) == page.count("<!-- ")
    for words, name, text in quoted:
        sentence = getattr(importlib.import_module(f"trireme.words.{words}").TEXTS[name], language)
        parts = [re.escape(part.strip()) for part in text.split("…")]
        assert re.search(".*".join(parts), sentence), f"{words}.{name} says: {sentence}"


def _run(command: Command, *, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    match command.words[0]:
        case "make":
            _check_make(command)
        case "pip":
            _check_pip(command)
        case "." | "source":
            assert command.words[1] == ".venv/bin/activate", command.place
        case "python":
            assert (ROOT / command.words[1]).is_file(), command.place
        case "trireme":
            _run_trireme(command, monkeypatch=monkeypatch, capsys=capsys)
        case _:
            raise AssertionError(f"{command.place}: nothing here tries {command.words[0]}")


def _run_trireme(command: Command, *, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = list(command.words[1:])
    with monkeypatch.context() as patch:
        patch.setenv("TRIREME_LANG", "en")
        for name, value in command.variables:
            patch.setenv(name, value)
        patch.setattr("sys.stdin", io.StringIO(command.stdin))
        capsys.readouterr()
        status = main(words if command.is_refused else shrink(words))
    said = capsys.readouterr()
    wanted = 2 if command.is_refused else 0
    assert status == wanted, f"{command.place}: {' '.join(command.words)}\n{said.out}{said.err}"
    if command.output:
        Path(command.output).write_text(said.out, encoding="utf-8")


def _check_make(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in command.words[1:]:
        name, sign, _ = word.partition("=")
        known = rf"^{name} \?=|\$\({name}\)|\$\(if \$\({name}\)" if sign else rf"^{name}:"
        assert re.search(known, makefile, re.MULTILINE), f"{command.place}: {word}"


def _check_pip(command: Command) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = list(command.words[2:])
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).is_file(), command.place
    for word in words:
        for extra in re.findall(r"\[(\w+)\]", word):
            assert extra in project["optional-dependencies"], f"{command.place}: {word}"


def _load(block: Block) -> None:
    """Load a whole run file as training would, and write it down for the commands that follow; check a part in one."""
    values = yaml.safe_load(block.text)
    if {"model", "data", "train"} <= set(values):
        path = Path(block.file_name or "mine.yaml")
        path.write_text(block.text, encoding="utf-8")
        config = load_config(path).config
    else:
        config = load_config(None, base=_merge(values)).config
    from trireme.data.source import resolve_source

    for source in (*config.data.sources, *config.data.eval_sources):
        resolve_source(source.path)


def _merge(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put a part of a run file into the smallest whole one; what it decides takes the place of the default."""
    whole = {name: dict(section) for name, section in SMALLEST.items()}
    for name, section in values.items():
        if not isinstance(section, dict):
            whole[name] = section
            continue
        if any(key in section for key in ONE_OF.get(name, ())):
            for key in ONE_OF[name]:
                whole[name].pop(key, None)
        whole[name] = whole.get(name, {}) | section
    return whole


def _names_of_python(reader: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a snippet may take for granted: a model, its optimizer, batches; and runs that end in a moment."""
    import torch

    import trireme
    from trireme.models import build_model

    run = trireme.run
    monkeypatch.setattr(
        trireme,
        "run",
        lambda settings, *overrides, **options: run(
            settings, *overrides, *shrink_settings(settings, overrides, **options), **options
        ),
        raising=False,
    )
    config = load_config(reader / "runs" / "lyrics" / "config.yaml").config
    model = build_model(config.model, vocab_size=400, seq_len=32, seed=0)
    ids = torch.arange(64).reshape(2, 32)
    batch = {"input_ids": ids, "labels": ids + 1}
    optimizer = torch.optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "batches": [batch, batch], "__name__": "page"}


def _write_own_files(folder: Path) -> None:
    """The files that pages speak of as the reader's own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"{POEM}{number}\n" for number in range(30)]
    (folder / "essays").mkdir()
    for number, text in enumerate(texts[:8]):
        (folder / "essays" / f"{number}.txt").write_text(text * 4, encoding="utf-8")
    (folder / "old.txt").write_bytes((POEM * 20).encode("gb18030"))
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    (folder / "chats.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "chats.jsonl").write_text(lines, encoding="utf-8")
    pairs = [{"question": f"{n} + {n}?", "answer": f"{n + n}. {POEM}"} for n in range(40)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    (folder / "web").mkdir()
    pq.write_table(pa.table({"text": texts}), folder / "web" / "0.parquet")
    (folder / "words.txt").write_text("明月 100\n青天 50\n", encoding="utf-8")


def _shape(page: str) -> dict[str, Any]:
    """Headings by level, and rows of each table."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = prose.splitlines()
    return {
        "headings": [len(line) - len(line.lstrip("#")) for line in lines if line.startswith("#")],
        "rows": sum(line.startswith("|") for line in lines),
    }


def _anchors(page: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def _settings_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_table", ROOT / "docs" / "settings_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
