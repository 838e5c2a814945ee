"""Tokens give the text back exactly, one at a time or all at once, with the special tokens where they belong."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trireme.config import DataSection, SourceSection
from trireme.data import (
    Tokenizer,
    load_tokenizer,
    load_words,
    read_documents,
    resolve_tokenizer,
    train_tokenizer,
    train_tokenizer_on,
)
from trireme.data.tokenizer_train import _bounded
from trireme.errors import DataError

RARE = "𪚥 👩‍👩‍👧‍👦 é ö̲ ０１２３４５ \x01\x1b\x7f\x85\u200b\u3000①㈱ｶﾞ 한국어 ภาษา \r\n\t🏴󠁧󠁢󠁥󠁮󠁧󠁿"


@cache
def lyrics(count: int = 600) -> tuple[str, ...]:
    return tuple(d.text for d in read_documents(SourceSection(path=f"corpus:songci#{count}")))


@cache
def small() -> Tokenizer:
    return train_tokenizer(lyrics(), vocab_size=500)


@cache
def sentencepiece_like() -> Tokenizer:
    """A vocabulary of another make: Metaspace, unknown characters as <0xHH>, no byte-level alphabet."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, pre_tokenizers, trainers

    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    engine = Engine(models.BPE(byte_fallback=True, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<s>", "</s>", "<unk>", *pieces], limit_alphabet=300)
    engine.train_from_iterator([*lyrics(100), "the moon is bright"], trainer=trainer)
    content = json.loads(engine.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if not t["content"].startswith("<0x")]
    engine = Engine.from_str(json.dumps(content))
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(engine.to_str(), bos_id=0, eos_id=1, pad_id=0)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
@example(RARE)
@example("<|begin|>a<|end|><|pad|>")
@example("")
def test_tok_01_any_text_comes_back_exactly(text: str) -> None:
    tokenizer = small()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)
    assert not set(ids) & tokenizer.special_ids


def test_tok_01_no_byte_marks_and_no_normalising() -> None:
    tokenizer = small()
    assert tokenizer.vocab_size == 500
    back = tokenizer.decode(tokenizer.encode(RARE))
    assert back == RARE
    assert "<0x" not in back
    assert "normalizer" not in {k for k, v in json.loads(tokenizer.text).items() if v}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
@example("明月几时有？把酒问青天。不知天上宫阙，今夕是何年。我欲乘风归去。" + RARE)
def test_tok_02_a_stream_holds_back_half_characters_and_loses_nothing(text: str) -> None:
    for tokenizer in (small(), sentencepiece_like()):
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        decoder = tokenizer.stream_decoder()
        pieces = [decoder.push(token_id) for token_id in ids] + [decoder.finish()]
        assert "".join(pieces) == whole
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


def test_tok_02_a_cut_character_is_marked_only_at_the_end() -> None:
    tokenizer = small()
    ids = tokenizer.encode("𪚥")
    decoder = tokenizer.stream_decoder()
    assert [decoder.push(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert decoder.finish() == "\ufffd"


def test_half_a_character_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"U\+DC80"):
        small().encode("明月\udc80")


def test_tok_06_one_text_is_encoded_as_a_batch_of_one() -> None:
    for tokenizer in (small(), sentencepiece_like()):
        texts = list(lyrics()[:20])
        assert [tokenizer.encode(text) for text in texts] == [tokenizer.encode_batch([text])[0] for text in texts]
        assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_a_long_text_is_encoded_as_if_it_were_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from trireme.data import tokenizer as tokenizer_module

    text = "".join(lyrics()[:60]) + "\n".join(["def f(x):", "    if x:", "", "        y = 1", ""] * 500)
    for tokenizer in (small(), sentencepiece_like()):
        whole = tokenizer.encode(text)
        monkeypatch.setattr("trireme.data.tokenizer.LONG_TEXT_CHARACTERS", 2000)
        assert tokenizer.encode(text) == whole
        pieces = tokenizer_module._safe_pieces(tokenizer._engine, text)
        assert (len(pieces) > 5) == (tokenizer is small())  # Metaspace puts a mark before every text: no cut is safe
        monkeypatch.undo()


def test_dat_13_a_document_has_exactly_one_begin_token() -> None:
    tokenizer = small()
    options = {"add_bos": True, "add_eos": True}
    literal = "<|begin|>明月<|end|>"
    parsed = tokenizer.document_ids(literal, parse_special=True, **options).ids
    assert parsed == [tokenizer.bos_id, *tokenizer.encode("明月"), tokenizer.eos_id]
    plain = tokenizer.document_ids(literal, **options).ids
    assert plain.count(tokenizer.bos_id) == plain.count(tokenizer.eos_id) == 1
    assert tokenizer.decode(plain) == literal


def test_a_prompt_is_counted_with_the_begin_token_before_it() -> None:
    tokenizer = small()
    found = tokenizer.document_ids("青天", prompt="明月", add_bos=True, add_eos=True)
    assert tokenizer.decode(found.ids[: found.prompt_length]) == "明月"
    assert found.ids[: found.prompt_length][0] == tokenizer.bos_id
    assert tokenizer.decode(found.ids[found.prompt_length :]) == "青天"


def test_han_runs_stay_apart_from_other_scripts_and_marks() -> None:
    tokenizer = train_tokenizer(["明月，abc，明月abc123456 明月"] * 50, vocab_size=400)
    tokens = [tokenizer.token_text(i) for i in tokenizer.encode("明月，abc明月。123456")]
    assert tokens[:4] == ["明月", "，", "abc", "明月"]
    assert [len(token) for token in tokens if token.isdigit()] == [3, 3]


def test_training_twice_gives_the_same_tokenizer_and_words_change_its_fingerprint() -> None:
    assert train_tokenizer(lyrics(), vocab_size=500).fingerprint == small().fingerprint
    assert train_tokenizer(lyrics(), vocab_size=500, words=["春花秋月"]).fingerprint != small().fingerprint


def test_a_vocabulary_that_text_cannot_fill_says_its_true_size() -> None:
    tokenizer = train_tokenizer(["abc abc"], vocab_size=4000)
    assert 259 <= tokenizer.vocab_size < 270


def test_words_need_room() -> None:
    with pytest.raises(DataError, match="take at least 261"):
        train_tokenizer(["a"], vocab_size=260, words=["明月", "青天"])
    with pytest.raises(DataError, match="no text"):
        train_tokenizer([], vocab_size=300)


def test_a_saved_tokenizer_loads_here_and_in_transformers(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(lyrics(), vocab_size=500, words=["春花秋月", "café"])
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.bos_id, again.eos_id, again.pad_id) == (0, 1, 2)
    assert again.specials_from == "tokenizer_config.json"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = lyrics()[0] + "春花秋月"
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
    assert theirs.decode(tokenizer.encode(text)) == text
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 1, 2)


def test_special_tokens_are_found_in_config_or_by_usual_names(tmp_path: Path) -> None:
    small().save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).specials_from == "usual names"
    assert load_tokenizer(tmp_path / "tokenizer.json").eos_id == 1
    (tmp_path / "config.json").write_text('{"bos_token_id": 5, "eos_token_id": [7, 8]}')
    found = load_tokenizer(tmp_path)
    assert (found.bos_id, found.eos_id, found.specials_from) == (5, 7, "config.json")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|pad|>"}}')
    assert load_tokenizer(tmp_path).eos_id == 2


def test_settings_of_truncation_and_padding_in_the_file_are_not_obeyed(tmp_path: Path) -> None:
    content = json.loads(small().text)
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode(lyrics()[0])) == lyrics()[0]
    assert tokenizer.fingerprint == small().fingerprint


def test_a_missing_or_damaged_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="doesn't exist"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(DataError, match=r"tokenizer\.json doesn't exist"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds vocab\.json but no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(DataError, match="no valid tokenizer file"):
        load_tokenizer(tmp_path)


def test_tok_08_a_dictionary_is_loaded_with_a_count(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeff明月\n春花\tn\t500\n秋月 3 n\n\n东风 n 2\n小楼\t9\n明月\n", encoding="utf-8")
    words = load_words(path)
    assert words == ("明月", "春花", "秋月", "东风", "小楼")
    assert words.summary().endswith("words.txt: 5 words, 1 repeated, 1 blank lines.")


@pytest.mark.parametrize("line", ["明月/n", "明月,500", "明月 n v 5", "明月 5 6", "明月 名词"])
def test_tok_08_another_form_is_rejected_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(f"春花\n\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"words\.txt:3: .*Forms: `word`"):
        load_words(path)


def test_tok_08_a_gbk_dictionary_is_rejected_by_name_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("春花\n秋月\n明月\n东风\n小楼\n".encode("gbk"))
    with pytest.raises(DataError, match=r"words\.txt: byte 0 .*as gb18030 it reads `春花"):
        load_words(path)


def test_words_of_a_dictionary_are_whole_tokens_everywhere() -> None:
    words = ["春花秋月", "café", "雕栏", "New"]
    tokenizer = train_tokenizer(lyrics(), vocab_size=500, words=words)
    assert tokenizer.vocab_size == 500
    text = "问春花秋月何时了，雕栏玉砌café应犹在New "
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert set(words) <= {tokenizer.token_text(token_id) for token_id in ids}


def test_a_word_that_was_learned_anyway_keeps_its_id() -> None:
    tokenizer = train_tokenizer(["def f(self): return self"] * 9, vocab_size=300, words=["self", "明月", "def"])
    ids = [tokenizer.encode(word) for word in ("self", "明月", "def")]
    assert all(len(found) == 1 and found[0] < tokenizer.vocab_size for found in ids)
    assert tokenizer.decode(tokenizer.encode("def 明月self")) == "def 明月self"


def test_a_tokenizer_is_trained_once_and_again_when_the_text_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("明月几时有\n" * 50, encoding="utf-8")
    data = DataSection(sources=({"path": str(path)},), tokenizer_vocab_size=300)
    notices: list[str] = []
    first = resolve_tokenizer(data, cache_dir=tmp_path / "cache", notice=notices.append)
    assert "fewer than the 300" in notices[0]
    assert resolve_tokenizer(data, cache_dir=tmp_path / "cache").fingerprint == first.fingerprint
    (folder,) = [p for p in (tmp_path / "cache" / "tokenizers").iterdir() if p.is_dir()]
    damaged = folder / "tokenizer.json"
    damaged.write_text(damaged.read_text(encoding="utf-8").replace("明", "日")[:-5], encoding="utf-8")
    assert resolve_tokenizer(data, cache_dir=tmp_path / "cache").fingerprint == first.fingerprint
    path.write_text("把酒问青天\n" * 50, encoding="utf-8")
    assert resolve_tokenizer(data, cache_dir=tmp_path / "cache").fingerprint != first.fingerprint


def test_a_sample_takes_evenly_from_every_file(tmp_path: Path) -> None:
    from trireme.data.tokenizer_load import take_sample

    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name}{i:04}"}}\n' for i in range(1000)))
    data = DataSection(sources=({"path": str(tmp_path)},))
    taken = [d.text[0] for d in take_sample(data, limit_bytes=2000).documents()]
    assert taken.count("a") == taken.count("b") == 200
    assert len(list(take_sample(data).documents())) == 2000
    limited = DataSection(sources=({"path": f"{tmp_path}#1200"},))
    assert len(list(take_sample(limited).documents())) == 1200


def test_the_report_of_a_training_counts_what_a_token_stands_for() -> None:
    data = DataSection(sources=({"path": "corpus:songci#200"},))
    report = train_tokenizer_on(data, vocab_size=400, words=["明月"])
    assert report.documents == 200
    assert report.round_trip_ok
    assert report.tokenizer.vocab_size == 400
    assert report.characters_per_token == report.characters / report.tokens
    assert 0.3 < report.characters_per_token < 1.5


LONG_RUN_LIMIT_S = 20  # by the square of the run it took minutes; now a fraction of a second


def test_a_text_without_any_blank_or_stop_is_learned_in_time_and_comes_back() -> None:
    text = "明月几时有" * 40_000
    begun_s = time.monotonic()
    tokenizer = train_tokenizer([text, " " * 200_000, "=" * 200_000], vocab_size=300)
    assert time.monotonic() - begun_s < LONG_RUN_LIMIT_S
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_are_cut_and_other_texts_come_whole_to_the_trainer() -> None:
    text = "床前明月光，疑是地上霜。\n" * 200 + "x = [1, 2]\n" * 100
    assert list(_bounded(text)) == [text]
    pieces = list(_bounded("a b " + "c" * 1300 + " d"))
    assert "".join(pieces) == "a b " + "c" * 1300 + " d"
    assert max(map(len, pieces)) == 512


@pytest.mark.parametrize(("unknown", "loses"), [("[UNK]", "unknown"), (None, "vanish")])
def test_tok_01_a_tokenizer_that_loses_characters_is_told_so(tmp_path: Path, unknown: str | None, loses: str) -> None:
    from tokenizers import Tokenizer as Engine
    from tokenizers import models

    vocabulary = {"[UNK]": 0, "a": 1}
    Engine(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown)).save(str(tmp_path / "t.json"))
    notices: list[str] = []
    data = DataSection(tokenizer=str(tmp_path / "t.json"))
    assert resolve_tokenizer(data, cache_dir=tmp_path / "c", notice=notices.append).loses == loses
    assert len(notices) == 1
    assert "can't write every text" in notices[0]


def test_tok_01_a_tokenizer_that_is_learned_here_loses_nothing() -> None:
    assert train_tokenizer(["a b"], vocab_size=300).loses == ""


def test_a_vocabulary_without_a_token_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Engine
    from tokenizers import models

    Engine(models.BPE()).save(str(tmp_path / "t.json"))
    with pytest.raises(DataError, match="its vocabulary is empty"):
        load_tokenizer(tmp_path / "t.json")


def test_a_vocabulary_beyond_any_use_is_refused_before_the_trainer_takes_its_memory() -> None:
    with pytest.raises(DataError, match="99999999999 is beyond any use"):
        train_tokenizer(["a b"], vocab_size=99_999_999_999)


def test_tok_08_a_special_token_is_no_word_of_a_dictionary() -> None:
    with pytest.raises(DataError, match=r"holds <\|end\|>"):
        train_tokenizer(["a b"], vocab_size=300, words=["a", "<|end|>"])


def test_a_tokenizer_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="file"):
        train_tokenizer(["a b"], vocab_size=300).save(tmp_path / "file")
