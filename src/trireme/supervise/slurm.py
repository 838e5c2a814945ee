"""A batch file for Slurm that survives requeue: told before its time is over, saved, queued again, gone on with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What is asked of Slurm.

    Attributes:
        name: Of the job.
        nodes: How many.
        gpus_per_node: None: ask for no GPUs.
        time: As Slurm writes it (``4:00:00``, ``1-12``); None: the partition's.
        partition: None: the default one.
        warn_s: How long before its end the job is told, so that it can save.
        options: Further ``--key=value`` of sbatch.
    """

    name: str
    nodes: int = 1
    gpus_per_node: int | None = None
    time: str | None = None
    partition: str | None = None
    warn_s: int = 120
    options: Mapping[str, str] = field(default_factory=dict)


def format_batch(
    job: SlurmJob, words: Sequence[str], *, program: Sequence[str], log_dir: str, port: int = 29400
) -> str:
    """Return the batch file that runs ``trireme launch WORDS PROGRAM`` on every node of a job.

    One launcher a node; it and not the shell hears the warning, has its ranks save, and ends with 128 + 10 (USR1) or
    128 + 15 (TERM). The shell then puts the job back into the queue; the same command goes on with the same run folder.
    Any other exit code is final.

    Source: https://slurm.schedmd.com/sbatch.html (--signal, --requeue, --open-mode, output environment variables),
    https://slurm.schedmd.com/scontrol.html (requeue), 2026-11.
    """
    asked = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": None if job.gpus_per_node is None else str(job.gpus_per_node),
        "time": job.time,
        "partition": job.partition,
        "output": f"{log_dir}/slurm-%j.out",
        "open-mode": "append",
        "signal": f"B:USR1@{job.warn_s}",
        **job.options,
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{key}={value}" for key, value in asked.items() if value is not None)]
    lines += ["#SBATCH --requeue", "", _BODY.format(port=port, words=shlex.join(words), program=shlex.join(program))]
    return "\n".join(lines)


_BODY = """\
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
where=()
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  id="$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
  where=(--nnodes "$SLURM_JOB_NUM_NODES" --rdzv-endpoint "$head:{port}" --rdzv-id "$id")
fi

srun --kill-on-bad-exit=1 trireme launch {words} "${{where[@]}}" {program} &
step=$!
trap 'kill -USR1 $step' USR1
trap 'kill -TERM $step' TERM
# A trapped signal ends the wait, not the step: wait until the step itself is over.
while :; do
  wait $step
  code=$?
  kill -0 $step 2>/dev/null || break
done
case $code in
  138|143) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit $code
"""
