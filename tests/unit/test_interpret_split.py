"""How a dim is cut: every element once, shares in whole grains, views of it consistent."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.interpret import ParameterSplit, Split, split_evenly
from trireme.interpret.knowledge import _with_boundaries


@settings(max_examples=60, deadline=None)
@given(grains=st.lists(st.integers(1, 9), min_size=1, max_size=4), grain=st.integers(1, 4), degree=st.integers(1, 4))
def test_every_element_belongs_to_one_rank(grains, grain, degree):
    lengths = [count * grain for count in grains]
    split = split_evenly(lengths, degree=degree, grain=grain)
    assert (split is None) == any(count < degree for count in grains)
    if split is None:
        return
    owned = [
        place
        for rank in range(degree)
        for start, length in split.ranges(rank)
        for place in range(start, start + length)
    ]
    assert sorted(owned) == list(range(sum(lengths)))
    assert all(length % grain == 0 for rank in range(degree) for _, length in split.ranges(rank))
    assert split.segments == tuple(lengths)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(4, 9), min_size=1, max_size=3), degree=st.integers(1, 4))
def test_shares_assemble_to_the_whole(lengths, degree):
    split = split_evenly(lengths, degree=degree)
    assert split is not None
    whole = torch.arange(sum(lengths) * 2).view(2, -1)
    found = ParameterSplit(shape=tuple(whole.shape), dim=1, split=split, reason="")
    shares = [found.take(whole, rank=rank) for rank in range(degree)]
    assert [share.shape for share in shares] == [found.local_shape(rank=rank) for rank in range(degree)]
    assert torch.equal(found.assemble(shares), whole)


def test_a_split_scales_and_divides_only_in_whole_groups():
    split = Split(parts=((4, 2),))
    assert split.scaled(3).divided(3) == split
    assert split.divided(2) == Split(parts=((2, 1),))
    assert split.divided(4) is None


def test_repeated_segments_are_told_from_others():
    assert Split(parts=((2, 2), (2, 2))).one_of(2) == Split(parts=((2, 2),))
    assert Split(parts=((2, 2), (4, 4))).one_of(2) is None
    assert Split(parts=((2, 2), (2, 2))).one_of(4) is None


def test_boundaries_refine_the_segments_that_they_cover():
    ends = (Fraction(4), Fraction(8))
    assert _with_boundaries((8,), ends) == (4, 4)
    assert _with_boundaries((6, 2, 8), ends) == (4, 4, 4, 4)
    assert _with_boundaries((6, 8), ends) == (6, 4, 4)
    assert _with_boundaries((8,), (Fraction(1, 2), Fraction(8))) is None


def test_a_kept_segment_is_held_by_all_and_assembled_once():
    split = split_evenly((4, 2), degree=2, kept=frozenset({2}))
    assert split == Split(parts=((2, 2), (2,)))
    assert (split.total, split.length(0), split.keeps_some, split.keeps_all) == (6, 4, True, False)
    found = ParameterSplit(shape=(6,), dim=0, split=split, reason="")
    shares = [found.take(torch.arange(6), rank=rank) for rank in range(2)]
    assert [share.tolist() for share in shares] == [[0, 1, 4, 5], [2, 3, 4, 5]]
    assert torch.equal(found.assemble(shares), torch.arange(6))
