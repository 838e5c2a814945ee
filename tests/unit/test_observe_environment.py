"""What is written about the machine: enough to repeat a run, nothing that names a person."""

from __future__ import annotations

import getpass
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trireme.observe import environment
from trireme.observe.environment import without_home


def test_secrets_and_names_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    monkeypatch.setenv("MY_PASSWORD", "open sesame")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", [str(Path.home() / "bin" / "trireme"), "train", str(Path.home() / "run.yaml")])
    facts = environment()
    text = json.dumps(facts)
    assert "secret" not in text
    assert "sesame" not in text
    assert facts["variables"]["OMP_NUM_THREADS"] == "2"
    assert facts["command"] == ["trireme", "train", str(Path("~") / "run.yaml")]
    assert facts["cpu_cores"] >= 1
    assert facts["memory_bytes"] > 0
    assert "torch" in facts["packages"]


def test_the_home_folder_is_written_as_a_tilde() -> None:
    assert without_home(f"{Path.home()}/data/x.txt") == "~/data/x.txt"
    if getpass.getuser() != "root":
        assert getpass.getuser() not in without_home(str(Path.home() / "x"))


def test_a_look_at_the_machine_does_not_load_torch() -> None:
    script = (
        "import sys; from trireme.observe import environment; environment(); raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
