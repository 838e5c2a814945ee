"""What ``layout`` means for the ranks there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.config import LayoutSection
from trireme.errors import LayoutError
from trireme.job.layout import resolve_layout
from trireme.plan import LayerChoice, Layout, Plan, format_plan, parse_layout


def resolve(ranks: int = 1, **keys: object) -> tuple[str, list[str]]:
    heard: list[str] = []
    section = LayoutSection.model_validate(keys)
    return str(resolve_layout(section, ranks=ranks, notice=heard.append).layout), heard


def test_keys_and_text_mean_the_same_and_the_rest_of_the_ranks_is_data_parallel() -> None:
    by_key, heard = resolve(8, tp=2, pp=2, zero=3)
    by_text, _ = resolve(8, text="tp=2,pp=2,zero3")
    assert by_key == by_text
    assert any("2" in text for text in heard), "what was filled in is said"
    assert resolve()[0] == str(Layout())


def test_too_few_ranks_are_told_how_to_start_as_many() -> None:
    with pytest.raises(LayoutError, match="start 4, with --nproc-per-node 4"):
        resolve(1, tp=2, pp=2)


def test_degrees_that_do_not_divide_the_ranks_are_refused_with_what_would() -> None:
    with pytest.raises(LayoutError, match="does not come out even with 6 ranks"):
        resolve(6, tp=4)


def test_a_plan_gives_layout_cuts_and_what_single_layers_recompute(tmp_path: Path) -> None:
    def write(**changes: object) -> Path:
        plan = Plan(
            layout=parse_layout("pp=2", ranks=2).layout,
            cuts=("layers.2",),
            layers=(LayerChoice(path="layers.0", recompute="full", **changes),),
            precision="fp32",
            model="llama-1m",
            global_batch_seqs=8,
            seq_len=16,
            model_hash="m",
            cluster_hash="c",
            trireme_version="0",
        )
        (tmp_path / "plan.json").write_text(format_plan(plan))
        return tmp_path / "plan.json"

    section = LayoutSection(text=str(write()))
    found = resolve_layout(section, ranks=2, notice=lambda text: None)
    assert (found.layout.pp, found.cuts, dict(found.recompute)) == (2, ("layers.2",), {"layers.0": "full"})
    with pytest.raises(LayoutError, match=r"offloads layers\.0"):
        resolve_layout(LayoutSection(text=str(write(offload=True))), ranks=2, notice=lambda text: None)
    with pytest.raises(LayoutError, match="can't be read: No such file"):
        resolve_layout(LayoutSection(text="nowhere/plan.json"), ranks=2, notice=lambda text: None)


def test_auto_says_what_works_until_it_does() -> None:
    with pytest.raises(LayoutError, match="trireme plan finds a layout"):
        resolve(2, text="auto")
