"""Write benchmarks/planner_accuracy.md: how right the planner is on runs that it was not fitted to.

python benchmarks/planner_page.py        (after benchmarks/fit_planner.py --write)
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trireme.cluster import parse_cluster
from trireme.graph import find_model
from trireme.plan import Layout, RunCheck, StepTime, Workload, check_runs, estimate_step, find_framework, score_checks
from trireme.plan.truth_check import framework_word
from trireme.plan.truth_score import ErrorScore, error_score

HERE = Path(__file__).parent
RUNS, LEFT_OUT, PAGE = (
    HERE / "data" / "published_runs.csv",
    HERE / "data" / "left_out.json",
    HERE / "planner_accuracy.md",
)


def main() -> None:
    checks = check_runs(RUNS.read_text(encoding="utf-8"), path=str(RUNS))
    left_out = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    PAGE.write_text(page(checks, left_out), encoding="utf-8")


def page(checks: Sequence[RunCheck], left_out: dict[str, dict[str, float]]) -> str:
    score = score_checks(checks)
    timed = [check for check in checks if check.row.id in left_out]
    errors = {check.row.id: left_out[check.row.id]["ratio"] - 1 for check in timed}
    inside = sum(left_out[check.row.id]["inside"] for check in timed) / len(timed)
    whole = error_score(list(errors.values()))
    assert whole is not None
    lines = [
        INTRO,
        "## Step time, every run predicted by rates fitted without its source and model",
        "",
        (
            f"- {whole.runs} runs: median error **{percent(whole.median)}**, p90 **{percent(whole.p90)}**, "
            f"bias {percent(whole.bias)}"
        ),
        f"- measured times inside the 80 % interval: **{percent(inside)}** (the interval, too, from other groups)",
        (
            f"- the same runs with the rates as shipped: median {percent(score.time.median if score.time else None)}, "
            f"p90 {percent(score.time.p90 if score.time else None)}, inside {percent(score.coverage)}"
        ),
        (
            f"- {score.rows} rows in the table, {score.predicted} predicted; {score.doubtful} of them are flagged "
            "by the table as doubtful and are in no figure here"
        ),
        "",
        *table("accelerator", by(timed, lambda check: check.row.text("gpu")[:36], errors)),
        *table("framework", by(timed, lambda check: framework_word(check.row), errors)),
        *table("layout", by(timed, lambda check: check.layout_class, errors)),
        *table("precision", by(timed, lambda check: check.row.text("precision")[:24], errors)),
        "## Where it is weak",
        "",
        *worst(timed, errors),
        WEAK,
        "## Memory",
        "",
        MEMORY,
        *table("how it was measured", score.memory_by_kind.items()),
        memory_line(score.memory),
        "",
        (
            f"- runs out of memory that are refused: {percent(score.oom_called)} of {score.oom_runs} "
            "(the other OOM rows of the table give no dimensions or no layout)"
        ),
        f"- good runs that are refused: {percent(score.good_refused)} of {score.good_runs}",
        "",
        "## Two published runs",
        "",
        *published(),
        "## Rows that are skipped",
        "",
        *(f"- {count}: {reason}" for reason, count in list(score.skipped.items())[:20]),
        "",
    ]
    return "\n".join(lines)


def memory_line(score: ErrorScore | None) -> str:
    if score is None:
        return "None of them could be predicted."
    return (
        f"All {score.runs} of them: median {percent(score.median)}, p90 {percent(score.p90)}, "
        f"bias {percent(score.bias)}."
    )


INTRO = """# How right the planner is

Made by `python benchmarks/fit_planner.py --write && python benchmarks/planner_page.py` from
`benchmarks/data/published_runs.csv` (runs that others measured and published; the file names each source). No
accelerator was used. `trireme plan check benchmarks/data/published_runs.csv` gives the figures with the shipped rates.

A run's group is its source and its model; errors below are of predictions made with the group left out of the fit.
The rates are in `src/trireme/plan/time_table.py`: seven for each generation of accelerators, ten for all of them.
The habits of frameworks (`framework_table.py`) and what is taken where a row is silent (`truth_layout.py`) were written
with the whole table in view, so a framework that nobody has seen will be foreseen less well than the figures say.
"""

WEAK = """
What these have in common, and what is not modelled:

- Small mixtures of experts launched kernel by kernel (no captured graphs): the host's time for sorting tokens decides,
  and differs by release and processor. Natural routing, which loads experts unevenly, is taken as even.
- Tables measured on a machine that is slower or faster than its sheet (power limits, shared networks): nothing in a
  row says so.
- Rows that leave micro-batch, virtual stages or recomputation open: what is taken for them is in the report's
  `assumed`. Where recomputation isn't given, as many layers are recomputed as it takes to fit.
- MegaScale's parallel block and sliding window, DeepSeek's DualPipe: predicted as plain layers.
"""

MEMORY = """The bytes follow from the layout (`trireme.plan.estimate_peak`); no run has a figure of its own. Two
constants, what the allocator keeps beside live tensors and what a communicator takes, were set on the device figures
below, and the table of frameworks' habits was written with all of these rows in view: this is no test on unseen runs.
Figures of allocators are compared with the predicted allocation, figures of devices with context and fragmentation.
Published "GB" is read as GiB, for that is what the tools print.
"""


def published() -> list[str]:
    """Predictions beside the figures of their sources."""
    llama = Workload(
        model=find_model("llama-3-405b"),
        cluster=parse_cluster("h100:8x2048"),
        layout=Layout(
            tp=8, pp=16, vp=7, dp_shard=128, zero=1, sp=True, schedule="interleaved", microbatches_per_step=16
        ),
        cuts=(),
        global_batch_seqs=2048,
        seq_len=8192,
        framework=find_framework("megatron-core") or find_framework("trireme"),  # type: ignore[arg-type]
    )
    gpt = Workload(
        model=find_model("gpt3-175b"),
        cluster=parse_cluster("a100-80gb:8x128"),
        layout=Layout(
            tp=8, pp=8, vp=3, dp_replicate=16, sp=False, schedule="interleaved", microbatches_per_step=96,
            recompute="full",
        ),
        global_batch_seqs=1536,
        seq_len=2048,
        precision="fp16",
        kernels="unflashed",
        framework=find_framework("megatron-lm 2021"),  # type: ignore[arg-type]
    )  # fmt: skip
    rows = (
        (
            (
                "llama-3-405b, 16,384 H100, tp8 pp16 dp128, 2,048 sequences of 8,192 (Grattafiori 2024, table 4; "
                "seven stages a rank taken)"
            ),
            llama,
            "400 TFLOP/s a GPU, 41 % MFU",
        ),
        (
            "gpt3-175b, 1,024 A100, 1,536 sequences of 2,048 (Narayanan et al. 2021, section 5; tp8 pp8 dp16 taken)",
            gpt,
            "140 TFLOP/s a GPU with recomputation (45 % of the peak)",
        ),
    )
    lines = ["| run | published | predicted | step (80 % interval) |", "|---|---|---|---|"]
    for name, workload, figure in rows:
        step = estimate_step(workload, effort="whole")
        lines.append(f"| {name} | {figure} | {predicted(workload, step)} | {seconds(step)} |")
    return [*lines, "", "MFU counts full attention; the formula is printed with every estimate.", ""]


def predicted(workload: Workload, step: StepTime) -> str:
    peak = max(workload.cluster.accelerator.peak_flops_per_s.get(name, 0.0) for name in ("bfloat16", "float16")) / 1e12
    hardware = f", {step.hfu * peak:.0f} with recomputation" if step.hfu > step.mfu * 1.001 else ""
    return (
        f"{step.mfu * peak:.0f} TFLOP/s a GPU{hardware}; MFU {percent(step.mfu)}, bubble {percent(step.bubble_ratio)}"
    )


def seconds(step: StepTime) -> str:
    return f"{step.step_s:.2f} s ({step.low_s:.2f} to {step.high_s:.2f})"


def by(
    checks: Iterable[RunCheck], name_of: Callable[[RunCheck], str], errors: dict[str, float]
) -> list[tuple[str, ErrorScore]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for check in checks:
        groups[name_of(check)].append(errors[check.row.id])
    scores = [(name, error_score(values)) for name, values in groups.items()]
    return sorted(((name, score) for name, score in scores if score), key=lambda item: -item[1].runs)


def table(title: str, scores: Iterable[tuple[str, ErrorScore]]) -> list[str]:
    lines = [f"| {title} | runs | median | p90 | bias |", "|---|---|---|---|---|"]
    for name, score in scores:
        lines.append(
            f"| {name} | {score.runs} | {percent(score.median)} | {percent(score.p90)} | {percent(score.bias)} |"
        )
    return [*lines, ""]


def worst(checks: Sequence[RunCheck], errors: dict[str, float]) -> list[str]:
    """The groups that are furthest off."""

    def name(check: RunCheck) -> str:
        return f"{check.row.text('source')[:60]} ({check.row.text('model')})"

    scores = sorted(by(checks, name, errors), key=lambda item: -item[1].median)[:12]
    return table("source and model", scores)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
