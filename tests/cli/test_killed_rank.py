"""A rank that is killed can't say so; who started it does."""

import subprocess
import sys

from trireme.cli import ranks


def test_a_killed_rank_is_named_and_the_others_end(monkeypatch, capsys):
    started = []

    def start(words, environ):
        kill = "import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(60)"
        started.append(subprocess.Popen([sys.executable, "-c", kill], env=environ))
        return started[-1]

    monkeypatch.setattr(ranks, "_start", start)
    assert ranks.run_ranks([], num_ranks=2) == 137
    assert all(each.poll() is not None for each in started)
    assert "rank 1 was ended by SIGKILL" in capsys.readouterr().err
