"""Which settings may differ between a run and its resume."""

import pytest

from trireme.config import RunConfig, parse_config
from trireme.errors import ConfigError
from trireme.job.changes import ACCEPTED, FREE, ROUNDING, SCHEDULE, check_changes, find_changes

_BASE = {"model": {"name": "llama-1m"}, "data": {"sources": ["corpus:songci"]}, "train": {"max_steps": 10}}


def _config(**sections):
    merged = {name: {**_BASE.get(name, {}), **sections.get(name, {})} for name in {*_BASE, *sections}}
    return parse_config(merged)


def _kinds(**sections):
    return {change.key: change.kind for change in find_changes(_config(), _config(**sections))}


def test_every_key_that_is_named_in_a_class_exists():
    known = {
        f"{section}.{key}" for section, field in RunConfig.model_fields.items() for key in field.annotation.model_fields
    } | set(RunConfig.model_fields)
    assert known >= (FREE | ROUNDING | SCHEDULE | ACCEPTED)


def test_no_key_is_in_two_classes():
    classes = [FREE, ROUNDING, SCHEDULE, ACCEPTED]
    assert sum(map(len, classes)) == len(frozenset().union(*classes))


def test_equal_settings_have_no_changes():
    assert find_changes(_config(), _config()) == []


def test_each_change_has_the_class_of_its_key():
    kinds = _kinds(
        train={"lr": 1e-3, "microbatch_seqs": 2, "weight_decay": 0.0, "global_batch_seqs": 4},
        data={"workers": 2, "seq_len": 64},
        checkpoint={"keep_last": 5},
    )
    assert kinds == {
        "train.lr": "schedule",
        "train.microbatch_seqs": "rounding",
        "train.weight_decay": "accepted",
        "train.global_batch_seqs": "fixed",
        "data.workers": "free",
        "data.seq_len": "fixed",
        "checkpoint.keep_last": "free",
    }


def test_a_fixed_key_is_refused_even_if_insisted_on():
    changes = find_changes(_config(), _config(data={"seq_len": 64}))
    with pytest.raises(ConfigError) as caught:
        check_changes(changes, accept=frozenset({"data.seq_len"}))
    assert caught.value.key == "job.changed"
    assert "data.seq_len 512 -> 64" in str(caught.value)
    assert "--accept" not in str(caught.value)


def test_a_key_that_changes_learning_is_refused_until_it_is_insisted_on():
    changes = find_changes(_config(), _config(train={"weight_decay": 0.0}))
    with pytest.raises(ConfigError, match=r"--accept train\.weight_decay"):
        check_changes(changes, accept=frozenset())
    check_changes(changes, accept=frozenset({"train.weight_decay"}))


def test_accepting_what_did_not_change_is_an_error():
    with pytest.raises(ConfigError) as caught:
        check_changes([], accept=frozenset({"train.lr"}))
    assert caught.value.key == "job.accept_idle"
