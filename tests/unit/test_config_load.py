"""From file, overrides and Python values to one RunConfig; every mistake is a line that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.config import Loaded, load_config, parse_config
from trireme.errors import ConfigError

COMPLETE = "model: llama-19m\ndata: {sources: [a.txt]}\ntrain: {max_steps: 10}\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def load(path: Path, *overrides: str, **options: Any) -> Loaded:
    return load_config(path, overrides, **options)


def problems(path: Path | None, *overrides: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, **options)
    folder = "" if path is None else f"{path.parent}/"
    return str(caught.value).replace(folder, "").splitlines()


# -- what is accepted ----------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["2e-5", "2E-5", "'2e-5'", "2.0e-5", ".00002"])
def test_cfg_07_a_learning_rate_in_any_notation_is_a_number(write: Write, written: str) -> None:
    assert load(write(COMPLETE + f"learning_rate: {written}\n")).config.train.lr == 2e-5
    assert load(write(COMPLETE), f"train.lr={written}").config.train.lr == 2e-5


def test_cfg_07_what_is_no_number_names_its_key(write: Write) -> None:
    assert problems(write(COMPLETE.replace("10}", "10, lr: 2e-5x}"))) == [
        "run.yaml:3: train.lr takes a number, not '2e-5x'."
    ]
    assert problems(write(COMPLETE), "train.lr=2e-5x") == ["command line: train.lr takes a number, not '2e-5x'."]


def test_short_forms_stand_for_their_mapping(write: Write) -> None:
    text = "model: llama-19m\ntrain: {max_steps: 1}\nprecision: bf16\ndata:\n  sources: a.txt\n  eval_sources: [{path: b}, c]\n"
    config = load(write(text)).config
    assert config.model.name == "llama-19m"
    assert config.precision.policy == "bf16"
    assert [source.path for source in config.data.sources] == ["a.txt"]
    assert [source.path for source in config.data.eval_sources] == ["b", "c"]
    one = load(write(COMPLETE.replace("[a.txt]", "{path: z, weight: 2}"))).config
    assert one.data.sources[0].weight == 2


def test_off_is_a_choice_and_not_false(write: Write) -> None:
    config = load(write(COMPLETE + "observe: {progress: off}\n"), "train.compile=off").config
    assert (config.observe.progress, config.train.compile) == ("off", "off")


def test_overrides_reach_into_sections_and_lists(write: Write) -> None:
    path = write(COMPLETE.replace("[a.txt]", "[a.txt, {path: b.txt, weight: 1}]"))
    config = load(
        path, "train.max_steps=200", "data.sources.1.path=x", "data.sources.2=new.txt", "model.name=", "model.path=m"
    ).config
    assert config.train.max_steps == 200
    assert [(source.path, source.weight) for source in config.data.sources] == [
        ("a.txt", None),
        ("x", 1),
        ("new.txt", None),
    ]
    assert (config.model.name, config.model.path) == (None, "m")
    assert [s.path for s in load(path, "data.sources=[c, d, e]").config.data.sources] == ["c", "d", "e"]
    assert load(path, "train.sample_prompts=明月").config.train.sample_prompts == ("明月",)
    assert load(path, "precision=fp16", "precision.init_loss_scale=1024").config.precision.init_loss_scale == 1024


def test_a_shell_strips_quotes_so_text_keys_take_words_as_written(write: Write) -> None:
    config = load(write(COMPLETE), "run.dir=2024", "data.tokenizer=1e3", "train.sample_prompts=[007, true]").config
    assert (config.run.dir, config.data.tokenizer) == ("2024", "1e3")


def test_free_mappings_keep_their_values_and_are_replaced_whole(write: Write) -> None:
    path = write(
        "model: {factory: 'a.b:c', factory_args: {width: 4, sizes: [1, 2]}}\ndata: {sources: a}\ntrain: {max_steps: 1}\n"
    )
    assert load(path).config.model.factory_args == {"width": 4, "sizes": [1, 2]}
    assert load(path, "model.factory_args.width=8").config.model.factory_args == {"width": 8, "sizes": [1, 2]}
    assert load(path, "model.factory_args={x: 1}").config.model.factory_args == {"x": 1}


def test_layers_win_in_order_and_every_value_knows_its_origin(write: Write) -> None:
    path = write(COMPLETE + "run: {seed: 5}\n")
    base = {"run": {"seed": 1, "dir": "x"}, "train": {"lr": 0.5, "beta1": 0.8}}
    loaded = load(path, "train.lr=0.25", base=base)
    assert (loaded.config.run.seed, loaded.config.run.dir, loaded.config.train.lr) == (5, "x", 0.25)
    assert str(loaded.origins["run.seed"]) == f"{path}:4"
    assert str(loaded.origins["run.dir"]) == "Python"
    assert str(loaded.origins["train.lr"]) == "command line"
    assert str(loaded.origins["train.beta2"]) == "default"
    assert loaded.origins["data.sources.0.path"].line == 2


def test_settings_from_python_alone_are_checked_like_a_file() -> None:
    values = {"model": "llama-19m", "data": {"sources": ("a.txt", Path("b.txt"))}, "train": {"max_steps": 3}}
    assert [source.path for source in parse_config(values).data.sources] == ["a.txt", "b.txt"]
    with pytest.raises(ConfigError, match=r"^Python: train\.max_stpes is unknown"):
        parse_config({**values, "train": {"max_stpes": 3}})


def test_an_empty_file_lacks_only_what_a_run_needs(write: Write) -> None:
    found = problems(write(""))
    assert [line.split(":")[0] for line in found] == ["run.yaml"] * 3
    assert sum(word in " ".join(found) for word in ("data.sources", "train.max_steps", "model.name")) == 3
    assert load(write(""), purpose="show").config.train.global_batch_seqs == 32
    assert load(write("data: {sources: a}\ntrain:\n"), purpose="data").config.data.sources[0].path == "a"


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train: {max_stpes: 5}", "train.max_stpes is unknown. Did you mean train.max_steps?"),
        ("trian: {max_steps: 5}", "trian is unknown. Did you mean train?"),
        ("max_stps: 5", "max_stps is unknown. Did you mean train.max_steps?"),
        ("num_kv_heads: 2", "num_kv_heads is unknown. Did you mean model.num_kv_heads?"),
        ("data: {max_steps: 5}", "data.max_steps is unknown. Did you mean train.max_steps?"),
        ("learnig_rate: 5", "learnig_rate is unknown. Did you mean train.lr (learning_rate)?"),
        (
            "tensor_parallel_degre: 1",
            "tensor_parallel_degre is unknown. Did you mean layout.tp (tensor_parallel_degree)?",
        ),
        ("train: {mp_degree: 2}", "train.mp_degree is unknown. Did you mean layout.tp (mp_degree)?"),
        (
            "zzz: 1",
            "zzz is unknown. The sections are: run, model, data, train, precision, layout, recompute, communication, offload, checkpoint, observe.",
        ),
        ("run: {qqq: 1}", "run.qqq is unknown. run has: dir, seed."),
        ("precision: {fallback: true}", "precision.fallback is true; it must be one of: stop, fp32."),
        ("data: {seq_len: 1.5}", "data.seq_len takes a whole number and nothing is rounded; 1.5 is not one."),
        ("data: {seq_len: true}", "data.seq_len takes a whole number, not true."),
        ("data: {seq_len: 1}", "data.seq_len is 1; it must be >= 2."),
        ("data: {eval_fraction: 2}", "data.eval_fraction is 2; it must be >= 0, < 1."),
        ("data: {eval_fraction: true}", "data.eval_fraction takes a number, not true."),
        ("train: {lr: .inf}", "train.lr is inf; it must be a finite number."),
        ("train: {lr: .nan}", "train.lr is nan; it must be a finite number."),
        ("observe: {plot: 1}", "observe.plot takes true or false, not 1."),
        ("run: {dir: 5}", "run.dir takes a text; if 5 is meant as one, put it in quotes."),
        ("run: {dir: [a]}", "run.dir takes a text, not ['a']."),
        ("train: {sample_prompts: 5}", "train.sample_prompts takes a list of texts, not 5."),
        (
            "train: {sample_prompts: [5]}",
            "train.sample_prompts.0 takes a text; if 5 is meant as one, put it in quotes.",
        ),
        ("model: {factory_args: 5}", "model.factory_args takes a mapping of names to values, not 5."),
        ("train: 5", "train is a section and takes a mapping of keys, not 5."),
        ("train: [a]", "train is a section and takes a mapping of keys, not ['a']."),
        ("precision: 5", "precision takes a mapping of keys, or a text that stands for its policy, not 5."),
        ("data: {sources: 5}", "data.sources.0 takes a mapping of keys, or a text that stands for its path, not 5."),
        (
            "data: {sources: [null]}",
            "data.sources.0 takes a mapping of keys, or a text that stands for its path, not null.",
        ),
        ("data: {sources: [{weight: 1}]}", "data.sources.0.path is missing and has no default."),
        (
            "data: {sources: [{path: a, wieght: 1}]}",
            "data.sources.0.wieght is unknown. Did you mean data.sources.0.weight?",
        ),
    ],
)
def test_a_mistake_is_one_line_with_file_line_key_rule_and_help(write: Write, text: str, said: str) -> None:
    assert problems(write(f"# first line\n{text}\n"), purpose="show") == [f"run.yaml:2: {said}"]


def test_a_wrong_choice_names_the_choices_and_the_nearest(write: Write) -> None:
    assert problems(write("train: {schedule: cosin}"), purpose="show") == [
        "run.yaml:1: train.schedule is 'cosin'; it must be one of: constant, linear, cosine, wsd. Did you mean cosine?"
    ]


def test_all_problems_are_said_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write("train:\n  lr: fast\n  max_stpes: 5\ndata:\n  seq_len: -1\nmodle: x\n")
    found = problems(path, "trian.max_steps=5", purpose="show")
    places = ["run.yaml:2", "run.yaml:3", "run.yaml:5", "run.yaml:6", "command line"]
    assert [line.rsplit(": ", 1)[0] for line in found] == places


def test_overrides_that_lead_nowhere_are_refused(write: Write) -> None:
    path = write(COMPLETE)
    assert problems(path, "trian.max_steps=5") == [
        "command line: trian.max_steps is unknown. Did you mean train.max_steps?"
    ]
    assert problems(path, "train.max_steps") == [
        "command line: train.max_steps is not key=value, e.g. train.max_steps=200."
    ]
    assert "is beyond the list, which has 1 entries" in problems(path, "data.sources.5.path=x")[0]
    assert "train is a section" in problems(path, "train=")[0]
    assert problems(path, "train.lr=[1")[0].startswith("command line: [1 is not a YAML value")
    assert problems(path, "train..lr=1")[0].startswith("command line: train..lr is unknown")
    assert problems(path, "train.lr.x=1")[0].startswith("command line: train.lr.x is unknown")


@pytest.mark.parametrize("key", ["data.sources.x", "data.sources.-1", "data.sources.path"])
def test_an_item_of_a_list_without_its_number_is_said_to_need_one(write: Write, key: str) -> None:
    assert problems(write(COMPLETE), f"{key}=a") == [
        f"command line: {key} is unknown: data.sources is a list, and its items are numbered from zero: data.sources.0."
    ]


@pytest.mark.parametrize("key", ["a\nb", "", "\u2028"])
def test_an_unknown_key_that_no_line_can_show_is_quoted(write: Write, key: str) -> None:
    assert problems(None, base={key: 1}, purpose="show")[0].startswith(f"Python: {key!r} is unknown.")


@pytest.mark.parametrize(
    "text",
    ["*.txt", "#1", "a: b", "&a b", "!x", "|", "- a", "[x]", "{x}", "a, b", "@x", "C:\\x", "a'b", "2024", "true"],
)
def test_a_text_on_the_command_line_is_taken_as_written(write: Write, text: str) -> None:
    assert load(write(COMPLETE), f"run.dir={text}").config.run.dir == text


@pytest.mark.parametrize("text", ["*.txt", "web/*.txt", "# x", "a: b"])
def test_a_source_or_a_prompt_on_the_command_line_is_taken_as_written(write: Write, text: str) -> None:
    loaded = load(write(COMPLETE), f"data.sources={text}", f"train.sample_prompts={text}")
    assert [source.path for source in loaded.config.data.sources] == [text]
    assert loaded.config.train.sample_prompts == (text,)


def test_quotes_lists_and_null_on_the_command_line_are_yaml(write: Write) -> None:
    loaded = load(write(COMPLETE), "data.sources=[a, {path: b}]", "data.tokenizer='null'", "run.dir=null")
    assert [source.path for source in loaded.config.data.sources] == ["a", "b"]
    assert (loaded.config.data.tokenizer, loaded.config.run.dir) == ("null", None)


@pytest.mark.parametrize("written", ["9007199254740993", "'9007199254740993'", "'9_007_199_254_740_993'"])
def test_a_whole_number_is_read_digit_for_digit(write: Write, written: str) -> None:
    assert load(write(COMPLETE + f"run: {{seed: {written}}}\n")).config.run.seed == 9007199254740993


@pytest.mark.parametrize("written", ["1e300", "9223372036854775808", "'1e19'", "-9223372036854775809"])
def test_a_whole_number_beyond_64_bits_is_refused(write: Write, written: str) -> None:
    said = problems(write(COMPLETE.replace("10}", f"{written}}}")))[0]
    assert said.endswith("it must be >= 1, < 9223372036854775808.")


@pytest.mark.parametrize("text", ["''", "'  '", '"a\\0b"'])
@pytest.mark.parametrize("key", ["run.dir", "data.tokenizer", "data.sources.0.path", "data.sources.0.encoding"])
def test_a_text_that_names_nothing_is_refused(write: Write, key: str, text: str) -> None:
    assert problems(write(COMPLETE), f"{key}={text}")[0].startswith(f"command line: {key} is ")


def test_a_root_that_is_no_mapping_is_refused(write: Write) -> None:
    assert problems(write("- a\n- b\n"))[0].startswith("run.yaml:1: a run file is a mapping of sections")


def test_messages_are_chinese_when_asked(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "zh")
    assert problems(write(COMPLETE), "trian.max_steps=5") == [
        "命令行：没有 trian.max_steps 这个键。是不是想写 train.max_steps？"
    ]


def test_an_override_given_twice_is_said(write: Write) -> None:
    loaded = load(write(COMPLETE), "train.lr=1", "train.lr=2")
    assert loaded.config.train.lr == 2
    assert loaded.notices == ["command line: train.lr is given more than once; 2 counts, for it comes last."]


# -- writing settings out ------------------------------------------------------------------------


TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(
        TEXTS
        | st.sampled_from(
            [
                "off",
                "1e5",
                "true",
                "null",
                "~",
                "007",
                "2026-01-01",
                "- a",
                "a: b",
                "def f():\n\n    x\t",
                "\u2028\x85\ufeff\x00",
            ]
        )
    ),
    rate=st.floats(min_value=0, max_value=1e9),
    argument=st.recursive(
        st.none() | st.booleans() | st.integers() | TEXTS, lambda inner: st.lists(inner), max_leaves=5
    ),
)
def test_settings_written_out_load_to_the_same_settings(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str], rate: float, argument: Any
) -> None:
    values = {
        "model": {"factory": "a:b", "factory_args": {"x": argument}},
        "data": {"sources": ["a", {"path": "b", "weight": 3}]},
        "train": {"max_steps": 5, "lr": rate, "sample_prompts": prompts, "compile": "off"},
    }
    loaded = load_config(None, base=values)
    for with_origins in (False, True):
        path = tmp_path_factory.mktemp("round") / "run.yaml"
        path.write_text(loaded.to_yaml(with_origins=with_origins), encoding="utf-8")
        again = load_config(path)
        assert again.config == loaded.config
        assert again.notices == []


def test_show_says_where_each_value_came_from(write: Write) -> None:
    path = write(COMPLETE + "mp_degree: 1\n")
    lines = load(path, "train.lr=0.5").to_yaml(with_origins=True).splitlines()
    said = {line.split(":")[0].strip(): line.split("# ")[1] for line in lines if "# " in line}
    assert said["lr"] == "command line"
    assert said["beta1"] == "default"
    assert said["name"] == f"{path}:1"
    assert said["tp"] == f"{path}:4, as mp_degree"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["train", "data.sources", "data.sources.0", "model", "precision.policy", "x", "seed", "bf16", ""]
            ),
            st.sampled_from(["", ".", ".path", ".0", ".max_steps", ".x.y"]),
            st.sampled_from(["", "=", "=1", "=[a]", "={path: 1}", "={a: {b: 1}}", "=a.txt", "=[{}]", "=true", "=: :"]),
        ).map("".join),
        max_size=3,
    )
)
def test_any_overrides_are_obeyed_or_refused(overrides: list[str]) -> None:
    try:
        load_config(None, overrides, purpose="show")
    except ConfigError as error:
        assert str(error)
