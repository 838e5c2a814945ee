"""State comes back equal, or is refused where it is given."""

import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from trireme.checkpoint import open_checkpoint, save_checkpoint
from trireme.checkpoint.state_json import decode_state, encode_state, hash_state
from trireme.errors import CheckpointError

_leaves = some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary(max_size=20)
_keys = some.text(max_size=8) | some.sampled_from(["$float", "$tuple", "$dict", "$bytes"])
_states = some.recursive(
    _leaves,
    lambda inner: (
        some.lists(inner, max_size=4)
        | some.lists(inner, max_size=4).map(tuple)
        | some.dictionaries(_keys, inner, max_size=4)
    ),
    max_leaves=20,
)


def _same(left, right):
    """Equal in value and in type, NaN equal to NaN, 0.0 apart from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    return left == right


@settings(max_examples=200, deadline=None)
@given(_states)
def test_any_state_survives_strict_json(state):
    text = json.dumps(encode_state(state), allow_nan=False)
    assert _same(decode_state(json.loads(text)), state)


def test_the_state_of_a_random_generator_goes_on_where_it_was(tmp_path):
    generator = random.Random(3)
    folder = save_checkpoint(tmp_path, step=1, tensors={}, state={"python": generator.getstate()})
    expected = [generator.random() for _ in range(5)]
    other = random.Random()
    other.setstate(open_checkpoint(folder).state["python"])
    assert [other.random() for _ in range(5)] == expected


def test_nan_and_infinity_are_spelled_out():
    assert encode_state(math.inf) == {"$float": "inf"}
    assert math.isnan(decode_state(encode_state(math.nan)))


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": [1, np.float32(2)]}}, r"state\.a\.b\[1\] is a float32"),
        ({"t": torch.ones(1)}, r"state\.t is a Tensor"),
        ({"s": {1, 2}}, r"state\.s is a set"),
        ({"d": {3: "x"}}, r"state\.d has the key 3 of type int"),
    ],
)
def test_what_json_cannot_give_back_is_refused_with_its_place(tmp_path, state, where):
    with pytest.raises(CheckpointError, match=where):
        save_checkpoint(tmp_path, step=1, tensors={}, state=state)
    assert list(tmp_path.iterdir()) == []


def test_equal_states_hash_equal_whatever_the_order_of_their_keys():
    assert hash_state({"a": 1, "b": 2}) == hash_state({"b": 2, "a": 1})
    assert hash_state({"a": 1}) != hash_state({"a": 2})
