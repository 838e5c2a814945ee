"""``trireme launch --slurm``: write the batch file, and submit it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from trireme.cli.terminal import print_line
from trireme.errors import ConfigError
from trireme.supervise import SlurmJob, format_batch
from trireme.words import say


def submit(job: SlurmJob, words: list[str], *, program: list[str], folder: Path, dry_run: bool) -> int:
    """Write ``job.sbatch`` into ``folder`` and submit it, unless it is only to be shown; returns the exit code.

    Raises:
        ConfigError: There is no sbatch here, or it refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.sbatch"
    path.write_text(format_batch(job, words, program=program, log_dir=str(folder)), encoding="utf-8")
    print_line(say("launch.slurm_written", path=path))
    if dry_run:
        return 0
    found = shutil.which("sbatch")
    if found is None:
        raise ConfigError("launch.no_sbatch", path=path)
    # What a surrounding job or launcher says of itself must not reach the new job.
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run([found, str(path)], capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise ConfigError("launch.sbatch_refused", reason=(done.stderr or done.stdout).strip())
    print_line(done.stdout.strip())
    return 0
