"""A command of a page with overrides that let it end in a moment; what it shows stays true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trireme.config import RunConfig, load_config

_SHAPE = ("num_layers=2", "d_model=32", "num_heads=4", "num_kv_heads=2", "d_ffn=64")
_FAST = (
    "data.seq_len=64",
    "data.build_workers=1",
    "train.global_batch_seqs=2",
    "train.eval_seqs=2",
    "train.sample_tokens=4",
    "train.num_threads=1",
    "observe.plot=false",
    "observe.peak_flops_per_s=1e11",
)
_CORPUS_RECORDS = 40
_STEPS, _MORE_STEPS, _STEP_TOKENS = 2, 4, 2 * 64


def shrink(words: Sequence[str]) -> list[str]:
    """Return the words after ``trireme``, made tiny where the verb reads data or writes text.

    The settings are loaded as they stand first, so a page's overrides must be right at full size.
    """
    words = list(words)
    if "--help" in words:
        return words
    match words[0]:
        case "train":
            return [*words, *_shrink_run(words[1:], purpose="train")]
        case "data" if "--source" not in words:
            return [*words, *_shrink_run(words[2:], purpose="data")]
        case "launch" if "--slurm" not in words:
            run_file = next(index for index, word in enumerate(words) if word.endswith(".yaml"))
            return [*words, *_shrink_run(words[run_file:], purpose="train")]
        case "generate" | "chat":
            return [*words, "--max-new-tokens", "4"]
    return words


def tiny_overrides(config: RunConfig, *, given: Sequence[str], longer: bool = False) -> list[str]:
    """Return the overrides that make a run tiny and leave what ``given`` is about."""
    return [*_FAST, *_length(config, longer=longer), *_data(config), *_rest(config, given=given)]


def shrink_settings(settings: str | Path | Mapping[str, Any], overrides: Sequence[str], **options: Any) -> list[str]:
    """Return the overrides for a call of ``trireme.run``."""
    if isinstance(settings, Mapping):
        config = load_config(None, overrides, base=settings).config
    else:
        config = load_config(settings, overrides).config
    return tiny_overrides(config, given=overrides, longer=options.get("extend") is not None)


def _shrink_run(words: Sequence[str], *, purpose: Any) -> list[str]:
    path = Path(words[0])
    path = path / "config.yaml" if path.is_dir() else path
    given = [word for word in words[1:] if "=" in word and not word.startswith("-")]
    config = load_config(path, given, purpose=purpose).config
    return tiny_overrides(config, given=given, longer="--extend" in words)


def _length(config: RunConfig, *, longer: bool) -> Iterator[str]:
    train, steps = config.train, _MORE_STEPS if longer else _STEPS
    if train.max_steps is not None:
        yield f"train.max_steps={steps}"
    if train.max_tokens is not None:
        yield f"train.max_tokens={steps * _STEP_TOKENS}"
    if train.epochs is not None:
        yield "train.epochs=0.01"
    if train.warmup_steps is not None:
        yield f"train.warmup_steps={min(train.warmup_steps, 1)}"
    if train.warmup_tokens is not None:
        yield f"train.warmup_tokens={_STEP_TOKENS}"
    if train.microbatch_seqs is not None:
        yield "train.microbatch_seqs=1"


def _data(config: RunConfig) -> Iterator[str]:
    for index, source in enumerate(config.data.sources):
        if source.path.startswith("corpus:") and "#" not in source.path:
            yield f"data.sources.{index}.path={source.path}#{_CORPUS_RECORDS}"
    if config.data.tokenizer is None:
        yield "data.tokenizer_vocab_size=400"


def _rest(config: RunConfig, *, given: Sequence[str]) -> Iterator[str]:
    if config.model.name is not None:
        yield "model.name=llama-1m"
        yield from (f"model.{key}" for key in _SHAPE)
    if config.precision.policy == "auto" and not any(word.startswith("precision") for word in given):
        yield "precision.policy=fp32"
    if config.train.compile != "off":
        yield "train.compile=off"
