"""``trireme train`` on a text of a few kilobytes and a model of a few thousand weights; steps take milliseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trireme.cli import main

TEXT = "\n\n".join(
    f"第{number}首。明月几时有，把酒问青天。不知天上宫阙，今夕是何年。我欲乘风归去{number * 7 % 13}，又恐琼楼玉宇。"
    for number in range(120)
)
SETTINGS: dict[str, Any] = {
    "model": {
        "name": "llama-1m",
        "num_layers": 2,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ffn": 64,
    },
    "data": {
        "sources": [{"path": "text.txt", "txt_document": "paragraph"}],
        "seq_len": 32,
        "tokenizer_vocab_size": 300,
        "eval_fraction": 0.1,
        "build_workers": 1,
    },
    "train": {
        "max_steps": 6,
        "global_batch_seqs": 4,
        "lr": 1e-3,
        "eval_every_steps": 3,
        "eval_seqs": 4,
        "sample_tokens": 2,
        "num_threads": 1,
    },
    "checkpoint": {"every_steps": 2, "keep_last": 9},
    "precision": {"policy": "fp32"},
    "observe": {"plot": False, "peak_flops_per_s": 1e11},
}
EXACT = ("step", "loss", "grad_norm", "lr", "tokens", "real_tokens", "target_tokens", "skipped", "epoch")
"""Fields of a step that a resume must repeat bit for bit; the others are times and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said and how it ended."""

    exit_code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A folder with a text and a run file, and the command at hand."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    def train(self, *words: str) -> Answer:
        """Run ``trireme train run.yaml <words>``."""
        return self.type("train", "run.yaml", *words)

    def type(self, *words: str) -> Answer:
        """Run ``trireme <words>`` in this process."""
        self.capsys.readouterr()
        exit_code = main(words)
        output, errors = self.capsys.readouterr()
        return Answer(exit_code=exit_code, output=output, errors=errors)


def make_bench(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Put the text and the run file into ``path`` and go there."""
    lay_out(path)
    monkeypatch.chdir(path)
    return Bench(path=path, capsys=capsys)


def lay_out(path: Path) -> None:
    """Write the text and the run file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "text.txt").write_text(TEXT, encoding="utf-8")
    # JSON is YAML.
    (path / "run.yaml").write_text(json.dumps(SETTINGS, ensure_ascii=False), encoding="utf-8")


def steps_of(run: Path) -> list[tuple[Any, ...]]:
    """Return what must be equal of each step of a run."""
    return [tuple(fields[name] for name in EXACT) for fields in lines_of(run / "log.jsonl")]


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def texts_of(run: Path, *, level: str | None = None) -> str:
    """Return the sentences of the run's events."""
    events = lines_of(run / "events.jsonl")
    return "\n".join(event["text"] for event in events if level is None or event["level"] == level)


def fingerprint(folder: Path) -> dict[str, str]:
    """Return a hash of every file below ``folder``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def step_folders(run: Path) -> list[str]:
    """Return the names in the checkpoint folder, by step."""
    return sorted((path.name for path in (run / "checkpoints").iterdir()), key=lambda name: int(name.split("-")[1]))


def flip_byte(path: Path, *, offset: int = -3) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(bytes(data))


def damage(checkpoint: Path) -> None:
    """Damage the tensors of a checkpoint."""
    flip_byte(next(iter(sorted(checkpoint.glob("shard-*")))))


def joined(words: Sequence[str]) -> str:
    """Return words as one line."""
    return " ".join(words)
