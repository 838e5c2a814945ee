"""Each axis has a slot of its own on a tensor, and interpreters stack."""

import torch

from trireme.interpret import Interpreter, Shard, Split, acting_for, marks_of, shard_of, with_marks
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.tensor_state import with_shard


class Outer(Interpreter):
    axis = "cp"


def _interpreter(kind):
    return kind(Line(rank=0, degree=2, group=None, count=CollectiveCount()), opaque={}, notice=lambda sentence: None)


def _shard(dim, *parts):
    return Shard(dim=dim, split=Split(parts=parts), sources=frozenset({"x"}))


def _cut_on_both():
    x = torch.randn(2, 3, 4)
    with_shard(x, _shard(2, (4, 4)))
    with acting_for("cp"):
        with_shard(x, _shard(1, (3, 5)))
    return x


def test_a_shard_of_one_axis_is_not_seen_by_another():
    x = _cut_on_both()
    assert shard_of(x).dim == 2
    with acting_for("cp"):
        assert shard_of(x).dim == 1
    assert shard_of(x).dim == 2


def test_marks_of_all_axes_travel_together():
    x = _cut_on_both()
    other = with_marks(torch.zeros(2, 3, 4), marks_of(x))
    assert marks_of(other) == marks_of(x) == {"tp": _shard(2, (4, 4)), "cp": _shard(1, (3, 5))}


def test_stacked_interpreters_show_sizes_that_are_global_on_both_axes():
    x = _cut_on_both()
    with _interpreter(Outer), _interpreter(Interpreter):
        assert x.shape == (2, 8, 8)
        y = x.transpose(0, 1).reshape(8, 2, 2, 4) * 2.0
        assert y.shape == (8, 2, 2, 4)
    assert y.shape == (3, 2, 1, 4)
    assert {axis: shard.dim for axis, shard in marks_of(y).items()} == {"tp": 2, "cp": 0}
