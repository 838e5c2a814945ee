"""A workload says what is run where, and refuses what contradicts itself."""

import pytest

from trireme.cluster import parse_cluster
from trireme.errors import LayoutError
from trireme.graph import find_model
from trireme.plan import Layout, Workload, even_cuts


def _workload(**settings):
    given = {"model": find_model("gpt2"), "cluster": parse_cluster("h100:8"), "global_batch_seqs": 16, "seq_len": 128}
    return Workload(**{**given, **settings})


def test_a_microbatch_is_the_largest_part_of_the_largest_rank():
    workload = _workload(layout=Layout(dp_replicate=2, pp=4, microbatches_per_step=3))
    assert workload.microbatch_seqs == 3


def test_layers_are_cut_evenly_and_the_middle_takes_what_is_left():
    assert even_cuts(12, num_stages=4) == (3, 6, 9)
    assert even_cuts(10, num_stages=4) == (2, 5, 8)
    assert _workload(layout=Layout(pp=4)).cuts == (3, 6, 9)


def test_every_layer_is_in_one_stage():
    workload = _workload(layout=Layout(pp=4), cuts=(1, 5, 7))
    assert [layer for stage in range(4) for layer in workload.stage_layers(stage)] == list(range(12))


@pytest.mark.parametrize("cuts", [(1, 2), (3, 3, 9), (0, 3, 6), (3, 6, 12)])
def test_cuts_that_leave_a_stage_empty_are_refused(cuts):
    with pytest.raises(LayoutError, match="4 stages of 12 layers"):
        _workload(layout=Layout(pp=4), cuts=cuts)


def test_recompute_per_layer_goes_before_the_layouts():
    layout = Layout(recompute="full")
    assert _workload(layout=layout).recompute_of(3) == "full"
    assert _workload(layout=layout, recompute=("none",) * 11 + ("selective",)).recompute_of(11) == "selective"
    with pytest.raises(LayoutError, match="12 layers"):
        _workload(layout=layout, recompute=("none",))


def test_an_unknown_precision_is_refused_with_those_there_are():
    with pytest.raises(LayoutError, match="bf16_pure"):
        _workload(layout=Layout(), precision="int8")
