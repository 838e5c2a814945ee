"""Every form of file gives its documents, and every kind of damage gives one clear sentence."""

from __future__ import annotations

import gzip
import json
import lzma
import struct
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.config import SourceSection
from trireme.data import SourceCounts, read_documents
from trireme.data.crc32c import crc32c_short, crc32c_spans
from trireme.data.tfrecord import parse_example, read_frames
from trireme.errors import DataError

ROWS = [{"title": f"题{i}", "text": f"第{i}句，明月几时有。"} for i in range(50)]
TEXTS = [row["text"] for row in ROWS]


def jsonl(rows: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def texts(path: Path | str, *, bad: str = "stop", counts: SourceCounts | None = None, **options: object) -> list[str]:
    source = SourceSection(path=str(path), **options)
    return [document.text for document in read_documents(source, on_bad_record=bad, counts=counts)]


def example(features: dict[str, bytes]) -> bytes:
    """A tf.train.Example of bytes features, by the wire format."""

    def field(number: int, data: bytes) -> bytes:
        size, head = len(data), bytes([number << 3 | 2])
        while size >= 128:
            head, size = head + bytes([size & 127 | 128]), size >> 7
        return head + bytes([size]) + data

    entries = [field(1, field(1, k.encode()) + field(2, field(1, field(1, v)))) for k, v in features.items()]
    return field(1, b"".join(entries))


def write_frame(data: bytes) -> bytes:
    """One TFRecord frame."""

    def checksum(content: bytes) -> bytes:
        crc = crc32c_short(content)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def write_form(folder: Path, form: str) -> Path:
    path = folder / f"data.{form}"
    raw = jsonl(ROWS)
    match form:
        case "jsonl":
            path.write_bytes(raw)
        case "jsonl.gz":
            path.write_bytes(gzip.compress(raw[:100]) + gzip.compress(raw[100:]))  # two members, as `cat` makes them
        case "jsonl.zst":
            pack = zstandard.ZstdCompressor().compress
            path.write_bytes(pack(raw[:100]) + pack(raw[100:]))
        case "jsonl.xz":
            path.write_bytes(lzma.compress(raw))
        case "json":
            path.write_text(json.dumps(ROWS), encoding="utf-8")
        case "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)
        case "tfrecord":
            path.write_bytes(b"".join(write_frame(example({k: v.encode() for k, v in row.items()})) for row in ROWS))
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "jsonl.xz", "json", "parquet", "tfrecord"])
def test_every_form_gives_the_same_documents(tmp_path: Path, form: str) -> None:
    path = write_form(tmp_path, form)
    assert texts(path) == TEXTS
    assert texts(f"{path}#8") == TEXTS[:8]


def test_lines_of_objects_under_the_name_json_are_read_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(jsonl(ROWS))
    assert texts(path) == TEXTS


def test_one_json_object_over_several_lines_is_no_source(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS[0], indent=1), encoding="utf-8")
    with pytest.raises(DataError, match="must be a list of objects"):
        texts(path)


def test_a_text_file_is_a_document_a_paragraph_or_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("一\n二\n \n\r\n三\r\n四\n".encode())
    assert texts(path) == ["一\n二\n \n\r\n三\r\n四\n"]
    assert texts(path, txt_document="paragraph") == ["一\n二", "三\r\n四"]
    assert texts(path, txt_document="line") == ["一", "二", "三", "四"]


def test_parts_of_a_large_file_lose_and_split_nothing(tmp_path: Path) -> None:
    from trireme.data.record import read_records
    from trireme.data.scan import scan_source
    from trireme.data.source import resolve_source

    lines = [f"行{i}" * (i % 90 + 1) for i in range(20000)]
    path = tmp_path / "a.txt"
    for joint, unit in (("\n", "line"), ("\n\n", "paragraph")):
        path.write_text(joint.join(lines), encoding="utf-8")
        source = SourceSection(path=str(path), txt_document=unit)
        parts = list(scan_source(resolve_source(str(path)), source=source, part_bytes=100_000))
        records = [record for part in parts for record in read_records(part)]
        assert len(parts) > 5
        assert [record.value["text"] for record in records] == lines
        assert int(records[-1].where.rpartition(":")[2]) == path.read_text(encoding="utf-8").count("\n") + 1


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + jsonl(ROWS))
    assert texts(path) == TEXTS
    path = tmp_path / "b.txt"
    path.write_bytes("明月".encode("utf-16"))
    assert texts(path, encoding="utf-16") == ["明月"]


POEM = "明月几时有？把酒问青天。不知天上宫阙，今夕是何年。我欲乘风归去，又恐琼楼玉宇。"


@pytest.mark.parametrize(
    ("encoding", "text"), [("gb18030", POEM), ("big5", "明月幾時有？把酒問青天。不知天上宮闕，今夕是何年。")]
)
def test_a_wrong_encoding_names_byte_and_the_encoding_that_works(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc" + text.encode(encoding))
    with pytest.raises(DataError, match=rf"a\.txt: byte 3 .*as {encoding} it reads `明月.*set encoding: {encoding}"):
        texts(path)
    assert texts(path, encoding=encoding) == ["abc" + text]


def test_utf16_without_saying_so_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("id 1: " + POEM).encode("utf-16"))
    with pytest.raises(DataError, match="set encoding: utf-16"):
        texts(path)


def test_utf8_said_to_be_gb18030_is_refused_rather_than_garbled(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("明月" * 6, encoding="utf-8")
    assert path.read_bytes().decode("gb18030") != "明月" * 6  # garbled, and no error would tell
    with pytest.raises(DataError, match="reads as utf-8"):
        texts(path, encoding="gb18030")


def test_one_damaged_byte_in_utf8_is_not_taken_for_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    raw = bytearray((POEM * 3).encode())
    raw[30] = 0xFF
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"byte 30 \(0xff\)"):
        texts(path)


def test_an_unknown_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="utf-88"):
        texts(path, encoding="utf-88")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(DataError, match="binary"):
        texts(path)


@pytest.mark.parametrize(
    ("line", "reason", "word"),
    [
        (b'{"text": "broken', "not_json", r"bad\.jsonl:4: no valid JSON"),
        (b'["no", "object"]', "not_object", "is a list"),
        (b'{"txt": "x", "id": 3}', "missing_field", r"no field 'text'; found: txt, id"),
        (b'{"text": 7}', "not_text", "holds int"),
        (b'{"text": null}', "not_text", "holds null"),
        (b'{"text": "\\ud800 half"}', "surrogate", r"U\+D800"),
        (b'{"text": "\xff\xfe"}', "bad_encoding", "no utf-8 text"),
        (b"[" * 100_000, "not_json", "recursion"),
    ],
)
def test_a_bad_line_stops_with_its_place_or_is_counted(tmp_path: Path, line: bytes, reason: str, word: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(jsonl(ROWS[:2]) + b"\n" + line + b"\n" + jsonl(ROWS[2:]))
    with pytest.raises(DataError, match=word):
        texts(path)
    counts = SourceCounts()
    assert texts(path, bad="skip", counts=counts) == TEXTS
    assert dict(counts.dropped) == {reason: 1}
    assert counts.first_dropped[reason].endswith("bad.jsonl:4")
    assert counts.records == len(ROWS) + 1


def test_an_empty_text_is_dropped_and_counted_under_any_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl([*ROWS, {"text": ""}, {"text": " \n"}]))
    counts = SourceCounts()
    assert texts(path, counts=counts) == TEXTS
    assert counts.dropped["empty"] == 2


@pytest.mark.parametrize("form", ["jsonl.gz", "jsonl.zst", "jsonl.xz"])
def test_a_cut_file_is_an_error_that_names_it(tmp_path: Path, form: str) -> None:
    path = write_form(tmp_path, form)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=f"{path.name} is cut off"):
        texts(path)
    path.write_bytes(b"plain text")
    with pytest.raises(DataError, match="is no valid"):
        texts(path)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = write_form(tmp_path, "parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"data\.parquet is no readable parquet"):
        texts(path)


def test_an_empty_record_as_tensorflow_writes_it_is_whole() -> None:
    (frame,) = read_frames(b"\0\0\0\0\0\0\0\0)\x03\x98\x07\xd8\xea\x82\xa2")
    assert frame.whole
    assert frame.data == b""


def test_a_damaged_tfrecord_is_named_and_may_be_skipped(tmp_path: Path) -> None:
    path = write_form(tmp_path, "tfrecord")
    raw = bytearray(path.read_bytes())
    raw[20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"data\.tfrecord #1: the record's checksum"):
        texts(path)
    counts = SourceCounts()
    assert texts(path, bad="skip", counts=counts, field="text") == TEXTS[1:]
    assert counts.dropped["bad_checksum"] == 1
    raw[0] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="record 1 at byte 0 is damaged"):
        texts(path)


def test_a_cut_tfrecord_is_named(tmp_path: Path) -> None:
    path = write_form(tmp_path, "tfrecord")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="record 50 at byte"):
        texts(path, field="text")


def test_features_of_every_type_are_read() -> None:
    floats = b"\x12\x0a\x0a\x08" + struct.pack("<2f", 0.5, -2)
    integers = b"\x1a\x0d\x0a\x0b\x05" + b"\xff" * 9 + b"\x01"
    entries = [
        b"\x0a" + bytes([len(x) + 5]) + b"\x0a\x01" + n + b"\x12" + bytes([len(x)]) + x
        for n, x in ((b"f", floats), (b"i", integers))
    ]
    data = b"\x0a" + bytes([sum(map(len, entries))]) + b"".join(entries)
    assert parse_example(data) == {"f": [0.5, -2.0], "i": [5, -1]}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=400), min_size=1, max_size=12))
def test_crc32c_of_many_spans_is_that_of_each(spans: list[bytes]) -> None:
    buffer = np.frombuffer(b"".join(spans) + b"\0", np.uint8)
    lengths = np.array([len(span) for span in spans])
    sums = crc32c_spans(buffer, starts=np.cumsum(lengths) - lengths, lengths=lengths)
    assert sums.tolist() == [crc32c_short(span) for span in spans]


def test_crc32c_has_the_published_check_value() -> None:
    assert crc32c_short(b"123456789") == 0xE3069283  # RFC 3720 and the CRC catalogue


def test_the_text_field_is_found_by_rule_or_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for row, found in (({"id": 1, "lyric": "明"}, "明"), ({"title": "t", "content": "月"}, "月")):
        path.write_bytes(jsonl([row]))
        assert texts(path) == [found]
    path.write_bytes(jsonl([{"question": "a", "answer": "b", "id": 1}]))
    with pytest.raises(DataError, match=r"question, answer \(fields: question, answer, id\)"):
        texts(path)
    assert texts(path, field="answer") == ["b"]
    assert texts(path, prompt_field="question") == ["b"]
    path.write_bytes(jsonl([{"id": 1}]))
    with pytest.raises(DataError, match="no field holds text"):
        texts(path)


def test_plain_text_and_records_may_lie_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("明月", encoding="utf-8")
    (tmp_path / "b.jsonl").write_bytes(jsonl([{"content": "青天", "id": 1}]))
    assert texts(tmp_path) == ["明月", "青天"]


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_maps.py").write_text(
        "def join(row):\n    return row['title'] + row['text']\n"
        "def keep(row):\n    return {'text': row['text'].upper()} if row['id'] % 2 else None\n"
        "def fail(row):\n    return row['nothing']\n"
        "def wrong(row):\n    return 7\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_maps"


def test_a_map_makes_texts_or_records_or_drops_them(tmp_path: Path, maps: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl([{"id": i, "title": "t", "text": f"x{i}"} for i in range(4)]))
    assert texts(path, map=f"{maps}:join") == ["tx0", "tx1", "tx2", "tx3"]
    counts = SourceCounts()
    assert texts(path, map=f"{maps}:keep", counts=counts) == ["X1", "X3"]
    assert counts.dropped["map_none"] == 2


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("my_maps:fail", r"a\.jsonl:1: map my_maps:fail raised KeyError: 'nothing' \(at .*my_maps\.py:6\)"),
        ("my_maps:wrong", "returned int"),
        ("my_maps:absent", "it has: join, keep, fail, wrong"),
        ("my_maps:number", "is a int, not a function"),
        ("no_such_module_here:f", "there is no module"),
        ("my_maps", "must be package.module:function"),
    ],
)
def test_a_map_that_fails_says_where_and_why(tmp_path: Path, maps: str, name: str, word: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(ROWS))
    with pytest.raises(DataError, match=word):
        texts(path, map=name)


def test_the_lyrics_are_titles_and_lines() -> None:
    found = texts("corpus:songci#3")
    assert found[0].startswith("导引\n气和玉烛，睿化著鸿明。\n")


@pytest.mark.parametrize("name", ["python-code", "python-prose#150"])
def test_the_python_corpora_are_read(name: str) -> None:
    found = texts(f"corpus:{name}")
    assert sum(map(len, found)) > 500_000


def test_a_record_whose_text_is_null_does_not_settle_which_field_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl([{"text": None, "title": "t"}, {"text": "a b", "title": "t"}]))
    assert texts(path, bad="skip") == ["a b"]
    path.write_bytes(jsonl([{"n": 1}, {"text": 3}, {"text": "a b"}]))
    assert texts(path, bad="skip") == ["a b"]
    with pytest.raises(DataError, match=r"a.jsonl:1: no field 'text'"):
        texts(path)


def test_a_time_that_python_has_no_value_for_harms_no_text(tmp_path: Path) -> None:
    times = pyarrow.array([2**62, 1], pyarrow.timestamp("ns"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a b", "c d"], "t": times}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["a b", "c d"]


def test_a_parquet_text_that_is_no_utf8_is_a_bad_record(tmp_path: Path) -> None:
    buffers = [None, pyarrow.py_buffer(struct.pack("<iii", 0, 3, 6)), pyarrow.py_buffer(b"ab\xffc d")]
    column = pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet #1: field 'text' holds bytes"):
        texts(tmp_path / "a.parquet")
    counts = SourceCounts()
    assert texts(tmp_path / "a.parquet", bad="skip", counts=counts) == ["c d"]
    assert counts.dropped == {"not_text": 1}


@pytest.mark.parametrize("end", ["\r", "\u2028", "\x0b"])
def test_a_broken_line_with_other_line_ends_is_shown_on_one_line(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a"}}{end}{{"text": "b"}}\n', encoding="utf-8", newline="")
    with pytest.raises(DataError) as caught:
        texts(tmp_path / "a.jsonl", field="text")
    assert len(str(caught.value).splitlines()) == 1


def test_an_encoding_with_a_nul_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    source = SourceSection.model_construct(path=str(tmp_path / "a.txt"), encoding="a\0b", map=None, field=None)
    with pytest.raises(DataError, match="no text encoding"):
        list(read_documents(source))


def test_a_cut_utf16_file_is_not_told_to_be_utf16(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("床前明月光".encode("utf-16")[:-1])
    with pytest.raises(DataError, match="no utf-16 text, and no other encoding"):
        texts(tmp_path / "a.txt", encoding="utf-16")


def test_a_map_that_leaves_the_program_is_a_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_map.py").write_text("def leave(record):\n    raise SystemExit(3)\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"text": "a b"}]))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=r"a.jsonl:1: map leaving_map:leave raised SystemExit: 3"):
        texts(tmp_path / "a.jsonl", map="leaving_map:leave")
