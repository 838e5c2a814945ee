"""The cache of tokens: what is in it is what the source says, whoever builds it and whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from trireme.config import DataSection, SourceSection
from trireme.data import Tokenizer, TokenStore, build_store, read_documents, train_tokenizer
from trireme.data.shard import write_shard
from trireme.data.store import DamagedStore, open_store
from trireme.errors import DataError

LINES = [f"第{i}首：明月几时有，把酒问青天。{'春花秋月' * (i % 7)}" for i in range(3000)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES, vocab_size=400, words=["春花秋月"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in LINES), encoding="utf-8")
    return path


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shards, so that a small source has several."""
    monkeypatch.setattr(sys.modules["trireme.data.build"], "_MIN_BLOCK_BYTES", 20_000)
    monkeypatch.setattr("trireme.data.unpack._READ_BYTES", 7_000)


def build(
    path: Path | str, tokenizer: Tokenizer, cache: Path, notices: list[str] | None = None, **options: object
) -> TokenStore:
    names = set(SourceSection.model_fields)
    section = SourceSection(path=str(path), **{k: v for k, v in options.items() if k in names})
    data = DataSection(sources=(section,), **{k: v for k, v in options.items() if k not in names})
    listener = notices.append if notices is not None else None
    return build_store(section, data=data, tokenizer=tokenizer, cache_dir=cache, notice=listener)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts_of(store: TokenStore, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(store.document(i)) for i in range(store.num_documents)]


@pytest.mark.usefixtures("blocks")
def test_a_store_holds_every_document_with_begin_and_end(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = build(source, tokenizer, tmp_path / "cache")
    assert len(store.shards) > 5
    assert texts_of(store, tokenizer) == LINES
    first = store.document(0)
    assert (first[0], first[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
    assert store.num_tokens == store.lengths.sum() == sum(shard.size for shard in store.shards)
    assert store.counts.characters == sum(map(len, LINES))
    assert store.counts.text_bytes == sum(len(line.encode()) for line in LINES)
    assert store.counts.tokens == store.num_tokens
    assert len(set(store.hashes.tolist())) == len(set(LINES))
    assert store.tokenizer_fingerprint == tokenizer.fingerprint
    assert store.text_field == "text"


@pytest.mark.usefixtures("blocks")
def test_gather_copies_spans_across_shards(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = build(source, tokenizer, tmp_path / "cache")
    chosen = np.array([2999, 0, 1500])
    out = np.empty(store.lengths[chosen].sum(), np.int32)
    store.gather(store.starts[chosen], store.lengths[chosen], out)
    assert out.tolist() == np.concatenate([store.document(i) for i in chosen]).tolist()


@pytest.mark.usefixtures("blocks")
def test_tok_07_a_dictionary_works_the_same_for_any_number_of_workers(
    source: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folders = [build(source, tokenizer, tmp_path / f"c{n}", build_workers=n).folder for n in (1, 2, 3)]
    contents = [content(folder) for folder in folders]
    assert contents[0] == contents[1] == contents[2]
    word = tokenizer.encode("春花秋月")
    assert len(word) == 1
    assert sum((shard == word[0]).sum() for shard in open_store(folders[0]).shards) == sum(i % 7 for i in range(3000))


def test_each_thing_that_matters_has_its_own_cache(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    keys = [
        build(source, tokenizer, cache).key,
        build(source, tokenizer, cache, add_eos=False).key,
        build(source, tokenizer, cache, parse_special=True).key,
        build(source, tokenizer, cache, on_bad_record="skip").key,
        build(f"{source}#10", tokenizer, cache).key,
        build(source, train_tokenizer(LINES, vocab_size=399), cache).key,
    ]
    assert len(set(keys)) == len(keys)
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes(source.read_bytes())
    assert build(copy, tokenizer, cache).key == keys[0]  # by content, not by name
    source.write_bytes(source.read_bytes() + b'{"text": "new"}\n')
    assert build(source, tokenizer, cache).key not in keys


def test_a_changed_map_function_never_meets_the_old_cache(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "changing_map.py"
    found = []
    for body in ("row['text'][:3]", "row['text'][:4]"):
        module.write_text(f"def f(row):\n    return {body}\n")
        sys.modules.pop("changing_map", None)
        os.utime(module, (time.time() + len(found) * 5,) * 2)  # else Python may reuse the compiled module
        found.append(texts_of(build(source, tokenizer, tmp_path / "c", map="changing_map:f"), tokenizer)[2999])
    assert found == ["第29", "第299"]


@pytest.mark.usefixtures("blocks")
def test_a_map_works_in_workers_and_its_printing_harms_nothing(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loud_map.py").write_text("def f(row):\n    print('loud')\n    return row['text'][:5]\n")
    store = build(source, tokenizer, tmp_path / "c", map="loud_map:f", build_workers=2)
    assert texts_of(store, tokenizer) == [line[:5] for line in LINES]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("blocks")
def test_the_first_bad_line_is_named_whatever_the_workers(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, workers: int
) -> None:
    lines = source.read_text(encoding="utf-8").splitlines()
    lines[777] = lines[2500] = "{"
    source.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.jsonl:778: no valid JSON"):
        build(source, tokenizer, tmp_path / "c", build_workers=workers)
    notices: list[str] = []
    store = build(source, tokenizer, tmp_path / "c", notices, build_workers=workers, on_bad_record="skip")
    assert store.num_documents == 2998
    assert any("2 of 3000 records left out: no valid JSON 2" in notice and "778" in notice for notice in notices)


def test_prompts_are_stored_with_their_length(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "明月", "a": "青天"}\n{"q": "", "a": "春"}\n', encoding="utf-8")
    store = build(path, tokenizer, tmp_path / "c", field="a", prompt_field="q")
    prompt = tokenizer.decode(store.document(0)[: store.prompt_lengths[0]])
    assert prompt == "明月"
    assert store.prompt_lengths.tolist()[1] == 0


def test_a_source_without_documents_says_why(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ""}\n{"text": " "}\n')
    with pytest.raises(DataError, match="gives no document: 2 records read, empty text 2"):
        build(path, tokenizer, tmp_path / "c")


def test_a_token_that_is_missing_cannot_be_asked_for(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    bare = Tokenizer(tokenizer.text, origin="bare.json", specials_from="usual names")
    with pytest.raises(DataError, match=r"data\.add_eos is true, but the tokenizer bare\.json has no end token"):
        build(source, bare, tmp_path / "c", add_eos=True)


@pytest.mark.usefixtures("blocks")
def test_a_damaged_shard_is_made_again_and_never_served(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = build(source, tokenizer, tmp_path / "c")
    before = content(store.folder)
    for name, damage in (
        ("shard-00002.tokens", lambda raw: raw[:99] + bytes([raw[99] ^ 1]) + raw[100:]),
        ("shard-00003.documents", lambda raw: raw[:-1]),
        ("index.json", lambda raw: raw[:50]),
    ):
        path = store.folder / name
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(DamagedStore, match=name):
            open_store(store.folder)
        notices: list[str] = []
        again = build(source, tokenizer, tmp_path / "c", notices)
        assert any(name in notice and "made again" in notice for notice in notices)
        assert content(again.folder) == before


def test_any_flipped_bit_of_the_index_is_noticed(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = build(source, tokenizer, tmp_path / "c").folder / "index.json"
    raw = path.read_bytes()
    for place in range(0, len(raw), 7):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :])
        try:
            open_store(path.parent)
        except DamagedStore:
            continue
        assert json.loads(path.read_bytes()) == json.loads(raw)  # a blank that became another


def test_a_file_name_that_is_no_text_is_kept_as_it_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff.jsonl")
    path.write_text('{"text": "a b c"}\n', encoding="utf-8")
    assert build(path, tokenizer, tmp_path / "c").description["files"] == [str(path)]


BUILDER = """
import sys, time
from pathlib import Path
from trireme.config import DataSection
from trireme.data import Tokenizer, build_store
from trireme.data import shard_build
build_module = sys.modules["trireme.data.build"]
build_module._MIN_BLOCK_BYTES = 20_000
slow = float(sys.argv[4])
original = shard_build.ShardBuilder.build
def build_slowly(self, block):
    time.sleep(slow)
    return original(self, block)
shard_build.ShardBuilder.build = build_slowly
tokenizer = Tokenizer(Path(sys.argv[2]).read_text(), bos_id=0, eos_id=1, pad_id=2)
data = DataSection(sources=({"path": sys.argv[1]},), build_workers=1)
store = build_store(data.sources[0], data=data, tokenizer=tokenizer, cache_dir=Path(sys.argv[3]), notice=print)
print(store.folder)
"""


def start_builder(source: Path, tokenizer: Tokenizer, cache: Path, *, slow: float) -> subprocess.Popen[str]:
    saved = source.with_name("tokenizer.json")
    saved.write_text(tokenizer.text, encoding="utf-8")
    arguments = [sys.executable, "-c", BUILDER, str(source), str(saved), str(cache), str(slow)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("blocks")
def test_a_killed_build_goes_on_from_its_finished_shards(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    unbroken = build(source, tokenizer, tmp_path / "unbroken")
    cache = tmp_path / "killed"
    builder = start_builder(source, tokenizer, cache, slow=0.05)
    while len(list(cache.glob("tokens/*.building/shard-*.json"))) < 4:
        assert builder.poll() is None
        time.sleep(0.01)
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert builder.stdout is not None
    builder.stdout.close()
    assert not list(cache.glob("tokens/*/index.json"))
    finished = {path: path.stat().st_ino for path in cache.glob("tokens/*.building/shard-*.json")}
    notices: list[str] = []
    store = build(source, tokenizer, cache, notices)
    assert content(store.folder) == content(unbroken.folder)
    assert any(f"{len(finished)} finished parts" in notice for notice in notices)
    for path, inode in finished.items():
        assert (store.folder / path.name).stat().st_ino == inode, "a finished shard was written again"


def test_two_builders_of_one_store_do_not_harm_each_other(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    builders = [start_builder(source, tokenizer, cache, slow=0.02) for _ in range(2)]
    outputs = [builder.communicate(timeout=120)[0] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    assert texts_of(open_store(Path(outputs[0].splitlines()[-1])), tokenizer) == LINES


@pytest.mark.usefixtures("blocks")
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_done(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail_after_two(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 12:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_after_two)
        with pytest.raises(DataError, match=r"The disk of .*\.building is full: the next part needs"):
            build(source, tokenizer, tmp_path / "c", build_workers=1)
    assert not list(tmp_path.glob("c/tokens/*/.shard*"))
    notices: list[str] = []
    store = build(source, tokenizer, tmp_path / "c", notices)
    assert texts_of(store, tokenizer) == LINES
    assert any("finished parts" in notice for notice in notices)


def test_a_cache_that_cannot_be_written_is_one_sentence(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("x")
    with pytest.raises(DataError, match=r"can't be written .*TRIREME_CACHE"):
        build(source, tokenizer, blocker / "cache")


@pytest.mark.usefixtures("blocks")
def test_a_dead_worker_is_one_sentence(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deadly_map.py").write_text(
        "import os, sys\ndef f(row):\n    if sys.argv[0] == '-c':\n        os._exit(7)\n    return row['text']\n"
    )
    with pytest.raises(DataError, match="ended with code 7"):
        build(source, tokenizer, tmp_path / "c", map="deadly_map:f", build_workers=2)


def test_progress_counts_the_bytes_of_the_source(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    seen: list[int] = []

    class Listener:
        def start(self, label: str, total: int | None) -> None:
            assert total == source.stat().st_size

        def advance(self, n: int) -> None:
            seen.append(n)

        def finish(self) -> None:
            seen.append(-1)

    data = DataSection(sources=({"path": str(source)},))
    build_store(data.sources[0], data=data, tokenizer=tokenizer, cache_dir=tmp_path / "c", progress=Listener())
    assert sum(seen[:-1]) == source.stat().st_size


def test_the_index_describes_the_store_by_itself(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = build(source, tokenizer, tmp_path / "c")
    index = json.loads((store.folder / "index.json").read_text(encoding="utf-8"))
    assert index["format_version"] == 2
    assert index["token_dtype"] == "<u2"
    assert index["tokenizer"]["fingerprint"] == tokenizer.fingerprint
    assert index["counts"]["documents"] == 3000
    assert index["source"]["path"] == str(source)
    sizes = {name: size for shard in index["shards"] for name, (size, _) in shard["files"].items()}
    assert sizes == {name: (store.folder / name).stat().st_size for name in sizes}


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    from trireme.data.document import SourceCounts
    from trireme.data.shard import DOCUMENT_DTYPE, token_dtype
    from trireme.data.store import write_index

    assert token_dtype(65536).itemsize == 2
    tokens = np.array([70000, 1], token_dtype(70001))
    table = np.array([(1, 2, 0)], DOCUMENT_DTYPE)
    note = write_shard(tmp_path, number=0, block="b", tokens=[tokens], documents=table, counts=SourceCounts())
    write_index(tmp_path, key="k", notes=[note], tokenizer={"vocab_size": 70001, "fingerprint": "f"}, description={})
    assert open_store(tmp_path).document(0).tolist() == [70000, 1]


def test_a_large_store_is_hashed_once_and_again_when_touched(
    source: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(source, tokenizer, tmp_path / "c")
    monkeypatch.setattr("trireme.data.store.ALWAYS_HASHED_BYTES", 0)
    hashed: list[Path] = []
    from trireme.data.shard import hash_file

    monkeypatch.setattr("trireme.data.store.hash_file", lambda path: hashed.append(path) or hash_file(path))
    for _ in range(2):
        open_store(store.folder)
    assert len(hashed) == 2
    path = store.folder / "shard-00000.tokens"
    facts, raw = path.stat(), bytearray(path.read_bytes())
    raw[50] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # a copy that keeps the time is noticed all the same
    with pytest.raises(DamagedStore):
        open_store(store.folder)


def test_reading_documents_and_building_agree(source: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = [document.text for document in read_documents(SourceSection(path=f"{source}#70"))]
    assert texts_of(build(f"{source}#70", tokenizer, tmp_path / "c"), tokenizer) == found == LINES[:70]
