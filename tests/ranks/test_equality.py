"""A covering part of docs/equality.md: every layout of the table, every kind of model, against one device in fp64."""

from pathlib import Path

import pytest

from trireme.verify import COLUMNS, Memory, Request, Source, verify

ZOO = Path(__file__).parents[2] / "recipes" / "zoo"
_LIMIT_S = 120
_MEMORY = Memory()
_COLUMNS = {column.title: column for column in COLUMNS}

CELLS = (
    ("padded", "dp2"),
    ("looped_experts", "zero1"),
    ("recurrent", "zero2"),
    ("shared_depth", "zero3"),
    ("gpt2_tied", "hsdp"),
    ("large_lm", "tp2"),
    ("bert", "tp2"),
    ("gpt2_tied", "tp4"),
    ("llama_by_hand", "tp4"),
    ("mixtral", "tp2"),
    ("t5", "tp2"),
    ("qwen3", "zero3 tp2"),
    ("side_terms", "dp2"),
    ("contrastive", "tp2"),
    ("bert", "pp2"),
    ("t5", "pp2"),
    ("long_skips", "pp2 interleaved"),
    ("several_stacks", "pp4"),
    ("llama_by_hand", "zero-bubble"),
    ("gpt2_tied", "zbv"),
    ("padded", "cp2"),
    ("llama", "cp2 ring"),
    ("qwen3_moe", "ep2"),
    ("gpt2_tied", "tp2 pp2"),
    ("dropout", "dp2 tp2 pp2"),
    ("qwen3", "zero3 tp2 pp2 recompute"),
    ("shared_depth", "zero3 tp2 pp2 recompute"),
)
"""Each row of layouts once, each kind of model once, where the two are likeliest to fall out."""


@pytest.mark.parametrize(("model", "column"), CELLS, ids=lambda value: value.replace(" ", "-"))
def test_a_layout_equals_one_device(model, column):
    layout = _COLUMNS[column]
    source = Source(model=f"{ZOO / model}.py:build", dtype="fp64")
    request = Request(source=source, layout=layout.layout, ranks=layout.ranks, timeout_s=_LIMIT_S)
    report = verify(request, memory=_MEMORY)
    assert report.ok, "\n".join(report.lines())


@pytest.mark.parametrize(("layout", "ranks"), [("pp=2,micro=2", 2), ("pp=2,schedule=zbv,micro=2", 2), ("tp=2,pp=2", 4)])
def test_a_stage_draws_what_one_device_draws_there(layout, ranks):
    source = Source(model=f"{Path(__file__).with_name('scattered_draws.py')}:build", dtype="fp64")
    report = verify(Request(source=source, layout=layout, ranks=ranks, seqs=8, timeout_s=_LIMIT_S), memory=_MEMORY)
    assert report.ok, "\n".join(report.lines())


@pytest.mark.parametrize("layout", ["dp=2", "tp=2", "zero1", "zero3"])
def test_a_model_without_layers_and_with_an_empty_parameter_trains(layout):
    source = Source(model=f"{Path(__file__).with_name('odd_parameters.py')}:build", dtype="fp64")
    report = verify(Request(source=source, layout=layout, ranks=2, timeout_s=_LIMIT_S), memory=_MEMORY)
    assert report.ok, "\n".join(report.lines())
