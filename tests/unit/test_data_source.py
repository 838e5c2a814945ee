"""Paths to files: what is read, what is passed over, and what an error says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trireme.data.corpus import CORPORA
from trireme.data.source import resolve_source
from trireme.errors import DataError


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def names(path: str) -> list[str]:
    return [file.path.name for file in resolve_source(path).files]


def test_a_folder_is_read_in_order_and_names_what_it_passes_over(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a/1.jsonl", "c.parquet", "note.md", "img.png", "img2.png", ".hidden.txt"):
        write(tmp_path / name)
    resolved = resolve_source(str(tmp_path))
    assert [file.path.name for file in resolved.files] == ["1.jsonl", "2.txt", "c.parquet"]
    assert resolved.ignored == {".md": 1, ".png": 2, "hidden": 1}


def test_links_and_pipes_in_a_folder_are_counted_and_nothing_is_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "broken.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    resolved = resolve_source(str(tmp_path / "in"))
    assert [file.path.name for file in resolved.files] == ["a.txt"]
    assert resolved.ignored == {"linked folder": 1, "broken link or no file": 2}


def test_a_glob_that_goes_round_in_linked_folders_reads_each_file_once(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt")
    write(tmp_path / "in" / "b" / "c.txt")
    (tmp_path / "in" / "b" / "loop").symlink_to(tmp_path / "in")
    resolved = resolve_source(str(tmp_path / "in" / "**" / "*.txt"))
    assert [file.path.relative_to(tmp_path).as_posix() for file in resolved.files] == ["in/a.txt", "in/b/c.txt"]
    assert resolved.ignored["met before by another path"] > 0


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, onerror: Callable[[OSError], None]) -> list[object]:
        onerror(PermissionError(errno.EACCES, "Permission denied", str(folder)))
        return []

    monkeypatch.setattr("trireme.data.source.os.walk", refuse)
    with pytest.raises(DataError, match="can't be read: Permission denied"):
        resolve_source(str(tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "broken link", "device"])
def test_what_is_neither_file_nor_folder_is_called_so(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.txt"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "broken link":
        path.symlink_to("nowhere")
    else:
        path = Path("/dev/null")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        resolve_source(str(path))


@pytest.mark.parametrize("path", ["~no-such-user-here/x.txt", "x" * 5000 + ".txt", "a.txt#_", "a.txt#"])
def test_a_path_that_no_system_takes_is_one_sentence(path: str) -> None:
    with pytest.raises(DataError):
        resolve_source(path)


def test_a_folder_that_is_hidden_itself_may_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path / ".mine" / "a.txt")
    write(tmp_path / ".mine" / ".git" / "b.txt")
    assert names(str(tmp_path / ".mine")) == ["a.txt"]
    assert names(str(tmp_path / ".mine" / ".git" / "b.txt")) == ["b.txt"]


def test_a_glob_takes_what_it_matches(tmp_path: Path) -> None:
    for name in ("x/1.txt", "x/y/2.txt", "x/y/3.jsonl"):
        write(tmp_path / name)
    assert names(str(tmp_path / "x" / "**" / "*.txt")) == ["1.txt", "2.txt"]


def test_a_number_sign_limits_the_records_unless_it_is_in_the_name(tmp_path: Path) -> None:
    plain, odd = write(tmp_path / "a.jsonl"), write(tmp_path / "a.jsonl#5.txt")
    assert resolve_source(f"{plain}#500").max_records == 500
    assert resolve_source(str(odd)).max_records is None
    with pytest.raises(DataError, match="first 500"):
        resolve_source(f"{plain}#0")


@pytest.mark.parametrize(
    ("name", "kind", "packing"),
    [
        ("a.TXT", "txt", ""),
        ("a.jsonl.gz", "jsonl", "gz"),
        ("a.jsonl.zst", "jsonl", "zst"),
        ("a.txt.xz", "txt", "xz"),
        ("a.json", "json", ""),
        ("a.tfrecords", "tfrecord", ""),
        ("train.tfrecord-00003-of-00010", "tfrecord", ""),
        ("a.tfrecord.gz", "tfrecord", "gz"),
        ("a.parquet", "parquet", ""),
    ],
)
def test_the_name_tells_form_and_packing(tmp_path: Path, name: str, kind: str, packing: str) -> None:
    (file,) = resolve_source(str(write(tmp_path / name))).files
    assert (file.kind, file.compression) == (kind, packing)


def test_a_missing_path_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "lyrics.jsonl")
    with pytest.raises(DataError, match=r"lyric\.jsonl doesn't exist.*lyrics\.jsonl"):
        resolve_source(str(tmp_path / "lyric.jsonl"))


def test_a_folder_with_nothing_readable_says_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "a.docx")
    with pytest.raises(DataError, match=r"\.docx \(1\).*Readable"):
        resolve_source(str(tmp_path))


def test_an_empty_file_is_an_error_alone_and_counted_among_others(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.txt", "")
    with pytest.raises(DataError, match="is empty"):
        resolve_source(str(empty))
    write(tmp_path / "full.txt")
    resolved = resolve_source(str(tmp_path))
    assert resolved.empty == (empty,)
    assert len(resolved.files) == 1


def test_an_unknown_corpus_lists_the_known() -> None:
    with pytest.raises(DataError, match="corpus:songci"):
        resolve_source("corpus:tangshi")


def test_every_corpus_has_files_and_a_licence() -> None:
    for corpus in CORPORA.values():
        assert all(path.is_file() for path, _ in corpus.files())
        assert corpus.license
    licence = CORPORA["songci"].license_file
    assert licence is not None
    assert "MIT" in licence.read_text(encoding="utf-8")


def test_the_code_corpus_holds_no_tests_and_no_packages() -> None:
    parts = {part for path, _ in CORPORA["python-code"].files() for part in path.parts}
    assert not parts & {"site-packages", "test", "idlelib", "turtledemo"}
