"""Other tools' words: read where they mean the same and said, refused with help where they don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trireme.config import Loaded, load_config
from trireme.config.alias import ALIASES, JOINT, JOINT_MEANING, REFUSED
from trireme.config.keys import find_field
from trireme.errors import ConfigError
from trireme.words.config import TEXTS

COMPLETE: dict[str, Any] = {"model": "llama-19m", "data": {"sources": "a.txt"}, "train": {"max_steps": 100}}


def load(*overrides: str, purpose: Any = "show", **values: Any) -> Loaded:
    return load_config(None, overrides, base={**COMPLETE, **values}, purpose=purpose)


def refusal(*overrides: str, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, **values)
    return str(caught.value)


def value_of(loaded: Loaded, key: str) -> Any:
    found: Any = loaded.config
    for part in key.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("word", sorted(ALIASES))
def test_each_word_is_read_as_its_key_at_the_top_and_in_its_section_and_said(word: str) -> None:
    alias = ALIASES[word]
    given = _example(alias.key, word=word)
    top = load_config(None, base={word: given}, purpose="show")
    section = load_config(None, base={alias.section: {word: given}}, purpose="show")
    typed = load_config(None, [f"{word}={given}"], purpose="show")
    own_name = find_field((alias.section, word)) is not None
    for loaded in (top, typed) if own_name else (top, section, typed):
        assert any(f"{word} is read as {alias.key}" in notice for notice in loaded.notices)
    assert value_of(top, alias.key) == value_of(typed, alias.key) == value_of(section, alias.key)
    assert value_of(top, alias.key) != value_of(load_config(None, purpose="show"), alias.key)


def _example(key: str, *, word: str) -> Any:
    """A value that differs from the default of ``key``."""
    special = {"lr_scheduler_type": "linear", "lr_decay_style": "linear", "torch_compile": "on"}
    special |= {"recompute.mode": "full", "layout.zero": 2, "communication.compress": "bf16"}
    word = key if key in special else word
    if word in special:
        return special[word]
    field = find_field(tuple(key.split(".")))
    assert field is not None
    examples: dict[str, Any] = {"whole": 7, "number": 0.25, "boolean": "true", "text": "x", "sections": "a.txt"}
    if field.kind == "boolean":
        return key != "checkpoint.background"  # which is on already
    if key == "data.tokenizer_vocab_size":
        return 500
    return examples[field.kind]


def test_every_word_leads_to_a_key_that_exists_and_is_no_key_of_its_section() -> None:
    for word, key in {**{word: alias.key for word, alias in ALIASES.items()}, **JOINT_MEANING}.items():
        assert find_field(tuple(key.split("."))) is not None, word
    assert set(JOINT) == set(JOINT_MEANING)
    assert not (set(ALIASES) & set(JOINT)) | (set(ALIASES) & set(REFUSED)) | (set(JOINT) & set(REFUSED))


@pytest.mark.parametrize("word", sorted(REFUSED))
def test_a_word_that_means_something_else_is_refused_with_what_to_use(word: str) -> None:
    assert f"not_{REFUSED[word]}" in TEXTS
    assert word in refusal(**{word: 1})


# -- the batch: train.global_batch_seqs is the truth ------------------------------------------------


def test_a_batch_per_device_times_accumulation_becomes_the_global_batch() -> None:
    loaded = load(per_device_train_batch_size=4, gradient_accumulation_steps=8)
    assert (loaded.config.train.microbatch_seqs, loaded.config.train.global_batch_seqs) == (4, 32)
    assert len(loaded.notices) == 1
    assert "train.microbatch_seqs = 4 and train.global_batch_seqs = 32" in loaded.notices[0]


def test_data_parallel_ranks_multiply_the_batch() -> None:
    layout = {"dp_degree": 2, "sharding_degree": 3}
    config = load(per_device_train_batch_size=4, gradient_accumulation_steps=8, **layout).config
    assert (config.layout.dp_replicate, config.layout.dp_shard, config.train.global_batch_seqs) == (2, 3, 192)


@pytest.mark.parametrize(
    ("layout", "ranks", "total"),
    [({"tp": 2}, 8, 128), ({"hsdp": "2x2"}, 8, 128), ({"dp": 2}, None, 64), ({}, None, 32), ({}, 4, 128)],
)
def test_a_batch_per_device_counts_the_ranks_that_the_layout_leaves_to_data(layout, ranks, total) -> None:
    words = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "layout": layout}
    base = {"model": "llama-19m", "data": {"sources": "a"}, "train": {"max_steps": 1}, **words}
    assert load_config(None, base=base, ranks=ranks).config.train.global_batch_seqs == total


def test_paddles_dp_degree_is_copies_beside_a_sharding_degree_and_all_data_parallelism_without() -> None:
    assert load(dp_degree=2).config.layout.given == {"dp": 2}
    assert load(dp_degree=2, sharding_degree=2).config.layout.given == {"dp_replicate": 2, "dp_shard": 2, "zero": 1}
    assert load(sep_degree=2).config.layout.given == {"cp": 2, "cp_kind": "ulysses"}
    config = load(recompute=True, zero_stage=2).config
    assert (config.layout.given, config.recompute.mode) == ({"zero": 2}, "full")


def test_a_batch_per_device_beside_a_layout_in_one_line_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"depends on the data-parallel degree, which layout\.text only tells later"):
        load(per_device_train_batch_size=4, layout="tp=2")


def test_a_batch_per_device_alone_is_accumulated_once() -> None:
    assert load(per_device_train_batch_size=4).config.train.global_batch_seqs == 4
    own = load(per_device_train_batch_size=4, train={"max_steps": 1, "global_batch_seqs": 16})
    assert (own.config.train.microbatch_seqs, own.config.train.global_batch_seqs) == (4, 16)


def test_accumulation_divides_a_global_batch_that_is_given() -> None:
    train = {"max_steps": 1, "global_batch_seqs": 24}
    assert load(gradient_accumulation_steps=3, train=train).config.train.microbatch_seqs == 8
    assert "is not divisible by" in refusal(gradient_accumulation_steps=5, train=train)
    assert "alone doesn't say how large a batch is" in refusal(gradient_accumulation_steps=5)


def test_a_batch_said_twice_must_agree() -> None:
    train = {"max_steps": 1, "global_batch_seqs": 33}
    said = refusal(per_device_train_batch_size=4, gradient_accumulation_steps=8, train=train)
    assert "train.global_batch_seqs = 33" in said
    assert "gradient_accumulation_steps = 8" in said
    assert "micro_batch_size" in refusal(per_device_train_batch_size=4, micro_batch_size=5)
    train = {"max_steps": 1, "microbatch_seqs": 5}
    said = refusal(per_device_train_batch_size=4, gradient_accumulation_steps=8, train=train)
    assert said == (
        "Python: train.microbatch_seqs is given twice and differently: train.microbatch_seqs = 5 and "
        "per_device_train_batch_size = 4; keep one."
    )
    agreed = load(
        per_device_train_batch_size=4, gradient_accumulation_steps=8, train={"max_steps": 1, "global_batch_seqs": 32}
    )
    assert agreed.config.train.global_batch_seqs == 32


def test_the_command_line_wins_over_a_batch_of_the_file_and_says_so() -> None:
    words = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
    loaded = load("train.global_batch_seqs=64", **words)
    assert (loaded.config.train.microbatch_seqs, loaded.config.train.global_batch_seqs) == (4, 64)
    assert any("gives way to train.global_batch_seqs" in notice for notice in loaded.notices)
    loaded = load("train.microbatch_seqs=2", **words)
    assert (loaded.config.train.microbatch_seqs, loaded.config.train.global_batch_seqs) == (2, 32)
    loaded = load(
        "per_device_train_batch_size=2",
        "gradient_accumulation_steps=3",
        train={"max_steps": 1, "global_batch_seqs": 64},
    )
    assert loaded.config.train.global_batch_seqs == 6


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many", None, [1]])
def test_a_batch_that_is_no_count_is_refused_by_its_own_word(value: Any) -> None:
    assert "per_device_train_batch_size" in refusal(per_device_train_batch_size=value)


# -- number formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ({"bf16": True}, "bf16"),
        ({"fp16": True}, "fp16"),
        ({"bf16": True, "fp16": False}, "bf16"),
        ({"bf16": False, "fp16": False}, "fp32"),
        ({"bf16": False}, "fp32"),
        ({"fp16": True, "fp16_opt_level": "O1"}, "fp16"),
        ({"fp16_opt_level": "O2"}, "fp16_master"),
        ({"bf16": True, "fp16_opt_level": "O2"}, "bf16_master"),
        ({"bf16": True, "amp_level": "O2", "use_master_weight": True}, "bf16_master"),
        ({"bf16": True, "amp_level": "O2", "use_master_weight": False}, "bf16_pure"),
        ({"bf16": True, "amp_level": "O1", "master_weight": True}, "bf16"),
        ({"fp16": True, "fp16_opt_level": "O0"}, "fp32"),
        ({"bf16": {"enabled": True}}, "bf16"),
        ({"fp16": {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 500}}, "fp16"),
        ({"bf16": False, "precision": "fp16"}, "fp16"),
        ({"bf16": True, "precision": "bf16"}, "bf16"),
    ],
)
def test_words_for_number_formats_become_one_policy(words: dict[str, Any], policy: str) -> None:
    assert load(**words).config.precision.policy == policy


def test_loss_scales_of_other_tools_are_read() -> None:
    assert load(fp16=True, init_loss_scaling=1024).config.precision.init_loss_scale == 1024
    deep = load(fp16={"enabled": True, "initial_scale_power": 10, "loss_scale_window": 500}).config.precision
    assert (deep.init_loss_scale, deep.loss_scale_growth_steps) == (1024, 500)


def test_o2_says_what_it_becomes() -> None:
    assert any("fp32 master weights" in notice for notice in load(fp16=True, fp16_opt_level="O2").notices)


def test_formats_that_contradict_are_refused_by_both_names() -> None:
    assert "bf16 = true and fp16 = true" in refusal(bf16=True, fp16=True)
    said = refusal(bf16=True, precision="fp16")
    assert "precision.policy = 'fp16'" in said
    assert "bf16 = true" in said
    assert "O3" in refusal(fp16_opt_level="O3")
    assert "fp16" in refusal(fp16=True, amp_level="O2", use_master_weight=False)
    assert "true or false" in refusal(bf16=True, amp_level="O2", multi_precision="maybe")
    assert "{enabled: true}" in refusal(bf16="yes")
    assert "{enabled: true}" in refusal(fp16={"enabled": True, "auto_cast": True})


# -- learning rate ----------------------------------------------------------------------------------


def test_their_cosine_ends_at_zero_and_that_is_said() -> None:
    loaded = load(lr_scheduler_type="cosine")
    assert (loaded.config.train.schedule, loaded.config.train.min_lr_ratio) == ("cosine", 0.0)
    assert any("implies train.min_lr_ratio = 0.0" in notice for notice in loaded.notices)
    own = load(lr_scheduler_type="cosine", train={"max_steps": 1, "min_lr_ratio": 0.3})
    assert own.config.train.min_lr_ratio == 0.3


def test_their_constant_has_no_warm_up() -> None:
    assert load(lr_scheduler_type="constant").config.train.warmup_steps == 0
    assert load(lr_scheduler_type="constant_with_warmup").config.train.warmup_steps is None
    assert load(lr_scheduler_type="warmup_stable_decay").config.train.schedule == "wsd"
    assert "polynomial" in refusal(lr_scheduler_type="polynomial")


def test_a_warm_up_share_becomes_steps_where_the_steps_are_known() -> None:
    assert load(warmup_ratio=0.034).config.train.warmup_steps == 4  # 3.4 of 100, rounded up as Hugging Face does
    tokens = {"max_tokens": 100_000, "global_batch_seqs": 10}
    loaded = load(warmup_ratio=0.1, train=tokens, data={"sources": "a", "seq_len": 100})
    assert loaded.config.train.warmup_steps == 10
    assert "only the data decide" in refusal(warmup_ratio=0.1, train={"epochs": 2})
    assert "train.warmup_steps = 5" in refusal(warmup_ratio=0.1, train={"max_steps": 100, "warmup_steps": 5})
    assert "must be >= 0, <= 1" in refusal(warmup_ratio=5)


def test_a_lowest_rate_becomes_a_ratio() -> None:
    assert load(min_lr=3e-5, learning_rate=3e-4).config.train.min_lr_ratio == pytest.approx(0.1)
    assert "between 0 and train.lr" in refusal(min_lr=1.0)


def test_zero_means_no_clipping_and_minus_one_no_limit() -> None:
    assert load(max_grad_norm=0).config.train.clip_grad_norm is None
    assert load(max_grad_norm=0.5).config.train.clip_grad_norm == 0.5
    loaded = load_config(None, base={"max_steps": -1, "num_train_epochs": 3}, purpose="show")
    assert (loaded.config.train.max_steps, loaded.config.train.epochs) == (None, 3)


# -- an alias beside its key ------------------------------------------------------------------------


def test_an_alias_and_its_key_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("learning_rate: 1e-3\ntrain: {lr: 2e-3}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, purpose="show")
    assert str(caught.value).endswith(
        "run.yaml:2: train.lr is given twice and differently: learning_rate = 0.001 and train.lr = 0.002; keep one."
    )
    path.write_text("learning_rate: 2e-3\ntrain: {lr: 2e-3}\n", encoding="utf-8")
    assert load_config(path, purpose="show").config.train.lr == 2e-3
    assert "mp_degree = 2 and tensor_parallel_degree = 4" in refusal(mp_degree=2, tensor_parallel_degree=4)


def test_a_mistake_in_an_alias_value_is_said_of_the_key_at_the_place_of_the_alias(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("\nmp_degree: two\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: layout\.tp takes a whole number, not 'two'"):
        load_config(path, purpose="show")


def test_an_alias_and_its_key_may_write_one_number_in_two_ways() -> None:
    assert load(learning_rate=2e-3, train={"max_steps": 100, "lr": "2e-3"}).config.train.lr == 2e-3


@pytest.mark.parametrize("power", [1024, 10**9])
def test_a_loss_scale_beyond_any_number_is_refused(power: int) -> None:
    assert "precision.init_loss_scale is inf" in refusal(precision="fp16", initial_scale_power=power)
    assert "precision.init_loss_scale is inf" in refusal(fp16={"enabled": True, "initial_scale_power": power})


@pytest.mark.parametrize("word", ["warmup_ratio", "min_lr"])
def test_a_share_that_is_no_number_is_one_problem(word: str) -> None:
    assert refusal(**{word: float("nan")}).count("\n") == 0


def test_a_lowest_rate_of_zero_fits_a_rate_of_zero() -> None:
    assert load(min_lr=0, learning_rate=0).config.train.min_lr_ratio == 0
