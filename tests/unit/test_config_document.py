"""Reading YAML: lines, numbers, and everything that is not what a person meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.config.document import parse_document, read_document
from trireme.errors import ConfigError


def read(text: str) -> Any:
    return parse_document(text, file="run.yaml").plain()


def message(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2e-5", 2e-5),
        ("2E-5", 2e-5),
        ("2.0e-5", 2e-5),
        (".00002", 2e-5),
        ("1e6", 1e6),
        ("1_000", 1000),
        ("-3", -3),
        ("+0.5", 0.5),
        ("5.", 5.0),
        ("007", 7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
    ],
)
def test_plain_scalars_are_what_a_person_takes_them_for(written: str, value: Any) -> None:
    found = read(f"key: {written}")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "written", ["off", "on", "yes", "no", "Off", "y", "2026-01-01", "1:30", "2e-5x", "'true'", '"1"', "0x1f", "e5"]
)
def test_other_plain_scalars_stay_text(written: str) -> None:
    assert read(f"key: {written}")["key"] == written.strip("'\"")


def test_each_key_knows_its_line() -> None:
    root = parse_document("a: 1\n\nb:\n  c: 2\n  d: [x,\n      y]\n", file="run.yaml").value
    assert isinstance(root, dict)
    inner = root["b"].value
    assert isinstance(inner, dict)
    items = inner["d"].value
    assert isinstance(items, list)
    assert [root["a"].line, root["b"].line, inner["c"].line, inner["d"].line, items[1].line] == [1, 3, 4, 5, 6]


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    for number, text in enumerate(("", "# nothing\n", "---\n")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        assert not read_document(path).plain()


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbftrain: {lr: 1}\n")
    assert read_document(path).plain() == {"train": {"lr": 1}}


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("train:\n  sample_prompts: 明月\n".encode("gb18030"))
    with pytest.raises(ConfigError, match=r"run\.yaml:2: byte 0xc3 is not UTF-8"):
        read_document(path)


def test_a_file_that_is_not_there_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "lyrics.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Did you mean .*lyrics\.yaml"):
        read_document(tmp_path / "lyric.yaml")
    with pytest.raises(ConfigError, match="does not exist"):
        read_document(tmp_path / "nowhere" / "x.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        read_document(tmp_path)


def test_keys_given_twice_name_both_lines() -> None:
    assert message("train:\n  lr: 1\n  lr: 2\n").startswith("run.yaml:3: lr is given twice, first at run.yaml:2")


def test_a_tab_is_called_a_tab() -> None:
    assert message("train:\n\tlr: 1\n").startswith("run.yaml:2: a tab indents this line")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1, 2\nb: 3\n", 2),
        ("a: 'x\n", 1),
        ("a: b: c\n", 1),
        ("a: 1\n--- \nb: 2\n", 2),
        ("&a [*a]\n", 1),
        ("a: *b\n", 1),
    ],
)
def test_broken_yaml_is_said_with_its_line(text: str, line: int) -> None:
    assert message(text).startswith(f"run.yaml:{line}: ")


def test_tags_and_keys_that_are_not_names_are_refused() -> None:
    assert "!!python" in message("a: !!python/object:os.system x\n") or "python" in message("a: !!python/name:os x\n")
    assert "is not a text" in message("1: x\n")
    assert "is not a text" in message("true: x\n")
    assert "is not a text" in message("? [a]\n: x\n")


@pytest.mark.parametrize(("text", "shown"), [("[a]: 1", "[...]"), ("? {a: 1}\n: 1", "{...}"), ("1: 2", "1")])
def test_a_key_that_is_no_name_is_shown_as_written(text: str, shown: str) -> None:
    assert message(text) == f"run.yaml:1: the key {shown} is not a text; keys are names such as train."


@pytest.mark.parametrize("character", ["\0", "\7", "\x7f"])
def test_a_control_character_is_named_with_its_line(character: str) -> None:
    assert message(f"a: 1\nb: {character}\n").startswith("run.yaml:2: this is not YAML")


def test_a_number_that_is_none_is_said_with_its_beginning() -> None:
    assert message("a: " + "9" * 5000) == f"run.yaml:1: {'9' * 40}... can't be read as int; write a plain value."
    assert message("a: !!int x") == "run.yaml:1: x can't be read as int; write a plain value."


def test_anchors_and_merged_mappings_work() -> None:
    text = "a: &base {lr: 1, clip: 2}\nb:\n  <<: *base\n  lr: 3\nc: {<<: [*base, {x: 4}]}\n"
    assert read(text)["b"] == {"lr": 3, "clip": 2}
    assert read(text)["c"] == {"lr": 1, "clip": 2, "x": 4}
    assert "merges mappings only" in message("b: {<<: 5}\n")


def test_anchors_that_multiply_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "expands without end" in message("\n".join(lines))


def test_values_nested_without_end_are_refused() -> None:
    assert "nested more than" in message("a: " + "[" * 200 + "]" * 200)
    assert "depth" in message("a: " + "[" * 20_000 + "]" * 20_000)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab:[]{}-#&*!|>'\"%@`\t\n ,?~0.e\x00\ufeff明")), max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse_document(text, file="run.yaml")
    except ConfigError as error:
        assert "\n" not in str(error)
