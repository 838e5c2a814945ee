"""Damage: whatever byte changes, whatever is cut, moved or forged, it is found."""

import json
import os
import random
import shutil
import warnings

import pytest
import torch
import xxhash

from trireme.checkpoint import newest_checkpoint, open_checkpoint, save_checkpoint
from trireme.errors import CheckpointError

_NUM_FLIPS = 240
_NUM_CUTS = 60


@pytest.fixture
def root(tmp_path):
    tensors = {
        "model/a": torch.randn(13, 7),
        "model/b": torch.randn(50).bfloat16(),
        "optim/a.moment": torch.randn(13, 7),
        "rng/cpu": torch.randint(0, 255, (333,), dtype=torch.uint8),
    }
    for step in (1, 2):
        save_checkpoint(tmp_path, step=step, tensors=tensors, state={"step": step, "nested": {"lr": 1e-3}})
    return tmp_path


def _newest(root):
    """Return the step that would be resumed from, and what was said about others."""
    notices: list[str] = []
    found = newest_checkpoint(root, notice=notices.append)
    return found.step if found else None, notices


def _places(root, count, seed):
    """Spread places over all bytes of the newest checkpoint, every file by turns."""
    random_place = random.Random(seed)
    files = sorted((root / "step-2").iterdir())
    return [(files[i % len(files)], random_place.randrange(files[i % len(files)].stat().st_size)) for i in range(count)]


def test_any_flipped_bit_is_noticed_and_never_loaded(root):
    for path, offset in _places(root, _NUM_FLIPS, seed=1):
        original = path.read_bytes()
        damaged = bytearray(original)
        damaged[offset] ^= 1 << (offset % 8)
        path.write_bytes(damaged)
        step, notices = _newest(root)
        assert notices, (path.name, offset)
        # Damage to one manifest is made good by the other; damage to data falls back to the checkpoint before.
        assert step == (2 if path.suffix == ".json" else 1), (path.name, offset)
        path.write_bytes(original)
    assert _newest(root) == (2, [])


def test_any_cut_is_noticed_and_never_loaded(root):
    for path, length in _places(root, _NUM_CUTS, seed=2):
        original = path.read_bytes()
        os.truncate(path, length)
        step, notices = _newest(root)
        assert notices, (path.name, length)
        assert step == (2 if path.suffix == ".json" else 1), (path.name, length)
        path.write_bytes(original)


@pytest.mark.parametrize("change", [lambda data: data + b"\0", lambda data: data[:100] + bytes(64) + data[164:]])
def test_added_bytes_and_holes_are_found(root, change):
    shard = root / "step-2" / "shard-00000.safetensors"
    shard.write_bytes(change(shard.read_bytes()))
    assert _newest(root)[0] == 1


@pytest.mark.parametrize("names", [("shard-00000.safetensors",), ("manifest.json", "manifest.copy.json")])
def test_a_missing_file_is_named(root, names):
    for name in names:
        (root / "step-2" / name).unlink()
    step, notices = _newest(root)
    assert step == 1
    assert names[0] in notices[0]


def test_a_lost_manifest_costs_nothing(root):
    (root / "step-2" / "manifest.json").unlink()
    step, notices = _newest(root)
    assert step == 2
    assert "manifest.copy.json" in notices[0]


def test_both_manifests_damaged_is_an_error_and_not_a_guess(root):
    for name in ("manifest.json", "manifest.copy.json"):
        os.truncate(root / "step-2" / name, 200)
    with pytest.raises(CheckpointError, match="doesn't match its own hash"):
        open_checkpoint(root / "step-2")


def test_ckp_22_a_shard_of_another_save_is_known_for_what_it_is(root):
    shutil.copy(root / "step-1" / "shard-00000.safetensors", root / "step-2" / "shard-00000.safetensors")
    with pytest.raises(CheckpointError, match="another save"):
        open_checkpoint(root / "step-2")


def test_without_verification_damage_is_found_when_the_tensor_is_read(root):
    shard = root / "step-2" / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    checkpoint = open_checkpoint(root / "step-2", verify=False)
    last = max(checkpoint.names, key=lambda name: checkpoint.manifest.tensors[name].slices[0].offset_bytes)
    with pytest.raises(CheckpointError, match=last):
        checkpoint.tensor(last)


def _forge(folder, change):
    """Rewrite both manifests with a change and a correct hash, as an attacker would."""
    for name in ("manifest.json", "manifest.copy.json"):
        payload = json.loads((folder / name).read_text())
        payload.pop("xxh3")
        change(payload)
        body = json.dumps(payload, indent=1).removesuffix("\n}").encode()
        tail = f',\n "xxh3": "{xxhash.xxh3_128_hexdigest(body)}"\n}}\n'
        (folder / name).write_bytes(body + tail.encode())


def _move_shard(to):
    def change(payload):
        payload["shards"] = {to: payload["shards"]["shard-00000.safetensors"]}
        for tensor in payload["tensors"].values():
            for piece in tensor["slices"]:
                piece["file"] = to

    return change


@pytest.mark.parametrize("name", ["../shard-00000.safetensors", "/etc/passwd", "a/b", "..", ".hidden", ""])
def test_a_manifest_that_points_out_of_its_folder_is_refused(root, name):
    _forge(root / "step-2", _move_shard(name))
    with pytest.raises(CheckpointError, match="contradicts itself"):
        open_checkpoint(root / "step-2")


def test_a_shard_that_is_a_link_is_refused(root):
    shard = root / "step-2" / "shard-00000.safetensors"
    shard.rename(root / "elsewhere")
    shard.symlink_to(root / "elsewhere")
    with pytest.raises(CheckpointError, match="is missing"):
        open_checkpoint(root / "step-2")


def _piece(payload):
    return payload["tensors"]["model/a"]["slices"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: _piece(payload).update(offset_bytes=10**12),
        lambda payload: _piece(payload).update(offset_bytes=0),
        lambda payload: _piece(payload).update(size_bytes=-4),
        lambda payload: _piece(payload).update(ranges=[[[0, 13]], [[0, 6]]]),
        lambda payload: _piece(payload).update(ranges=[[[1, 13]], [[0, 7]]]),
        lambda payload: payload["tensors"]["model/a"].update(shape=[14, 7]),
        lambda payload: payload["tensors"]["model/a"].update(shape=[True, 7]),
        lambda payload: payload["tensors"]["model/a"].update(dtype="object"),
        lambda payload: payload["tensors"]["model/a"]["slices"].append(_piece(payload)),
        lambda payload: payload["tensors"].update(tied={"same_as": "nowhere"}),
        lambda payload: payload["tensors"].update(tied={"same_as": "tied"}),
        lambda payload: payload["state"].update(step=99),
        lambda payload: payload.pop("step"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(root, change):
    _forge(root / "step-2", change)
    with pytest.raises(CheckpointError, match="contradicts itself"):
        open_checkpoint(root / "step-2")


def test_a_format_of_the_future_is_refused_with_its_version(root):
    _forge(root / "step-2", lambda payload: payload.update(format_version=3))
    with pytest.raises(CheckpointError, match=r"format version 3.*reads up to 2"):
        open_checkpoint(root / "step-2")


def test_a_good_checkpoint_opens_without_a_word(root):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_checkpoint(root / "step-2").step == 2
