"""The manifest: what a checkpoint holds, where each piece lies and what it must hash to.

Its text ends in the hash of everything before, so no byte of it can change unnoticed. The format
has a version, and a reader for each version that was ever written.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import xxhash

from trireme.checkpoint.coverage import check_coverage
from trireme.checkpoint.record import Manifest, ShardRecord, SliceRecord, TensorRecord
from trireme.checkpoint.state_json import decode_state, encode_state, hash_state
from trireme.checkpoint.stored_type import STORED_TYPES
from trireme.errors import CheckpointError

FORMAT = "trireme-checkpoint"
FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
COPY_NAME = "manifest.copy.json"

_TAIL = re.compile(rb',\n "xxh3": "([0-9a-f]{32})"\n}\n')
_TAIL_BYTES = len(b',\n "xxh3": ""\n}\n') + 32


def format_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as the text of its file."""
    encoded = encode_state(manifest.state)
    payload = {
        "format": FORMAT,
        # The older version wherever it says all there is, so that an older Trireme reads it.
        "format_version": 2 if any(shard.save_id for shard in manifest.shards.values()) else 1,
        "save_id": manifest.save_id,
        "run_id": manifest.run_id,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "created_at_s": manifest.created_at_s,
        "layout": manifest.layout,
        "finite": manifest.finite,
        "save_retries": manifest.save_retries,
        "versions": dict(manifest.versions),
        "metrics": encode_state(dict(manifest.metrics), "metrics"),
        "state": encoded,
        "state_xxh3": hash_state(encoded),
        "shards": {name: _shard_json(shard) for name, shard in manifest.shards.items()},
        "tensors": {name: _tensor_json(tensor) for name, tensor in manifest.tensors.items()},
    }
    body = json.dumps(payload, indent=1, allow_nan=False).removesuffix("\n}").encode("ascii")
    return body + f',\n "xxh3": "{xxhash.xxh3_128_hexdigest(body)}"\n}}\n'.encode("ascii")


def parse_manifest(data: bytes, *, path: Path) -> Manifest:
    """Return the manifest that ``data`` holds.

    Raises:
        CheckpointError: It is damaged, of an unknown version, or names what can't be.
    """
    tail = _TAIL.fullmatch(data[-_TAIL_BYTES:])
    body = data[:-_TAIL_BYTES]
    if tail is None or xxhash.xxh3_128_hexdigest(body) != tail.group(1).decode("ascii"):
        raise CheckpointError("checkpoint.manifest_damaged", path=path)
    try:
        payload = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("checkpoint.manifest_damaged", path=path) from error
    version = payload.get("format_version")
    # A dict, not a chain of ifs: a reader stays here for every version that was ever written.
    reader = {1: _read_fields, 2: _read_fields}.get(version) if type(version) is int else None
    if payload.get("format") != FORMAT or reader is None:
        raise CheckpointError("checkpoint.version", path=path, found=version, known=FORMAT_VERSION)
    try:
        manifest = reader(payload)
        _check(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError("checkpoint.manifest_invalid", path=path, reason=error) from error
    return manifest


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _shard_json(shard: ShardRecord) -> dict[str, Any]:
    own = {"save_id": shard.save_id} if shard.save_id else {}
    sizes = {"size_bytes": shard.size_bytes, "header_bytes": shard.header_bytes}
    return {**sizes, "header_xxh3": shard.header_xxh3, **own}


def _tensor_json(tensor: TensorRecord) -> dict[str, Any]:
    if tensor.same_as is not None:
        return {"same_as": tensor.same_as}
    return {"shape": tensor.shape, "dtype": tensor.dtype, "slices": [_slice_json(piece) for piece in tensor.slices]}


def _slice_json(piece: SliceRecord) -> dict[str, Any]:
    return {
        "file": piece.file,
        "entry": piece.entry,
        "offset_bytes": piece.offset_bytes,
        "size_bytes": piece.size_bytes,
        "ranges": piece.ranges,
        "xxh3": piece.xxh3,
    }


def _read_fields(payload: dict[str, Any]) -> Manifest:
    if hash_state(payload["state"]) != payload["state_xxh3"]:
        raise ValueError("state_xxh3")
    tensors = {name: _read_tensor(name, entry) for name, entry in payload["tensors"].items() if "same_as" not in entry}
    for name, entry in payload["tensors"].items():
        if "same_as" in entry:
            origin = tensors[entry["same_as"]]
            if origin.same_as is not None:
                raise ValueError(f"same_as of {name!r}")
            tensors[name] = TensorRecord(
                name=name, shape=origin.shape, dtype=origin.dtype, slices=origin.slices, same_as=origin.name
            )
    return Manifest(
        save_id=_text(payload["save_id"]),
        run_id=_text(payload["run_id"]),
        step=_whole(payload["step"]),
        sequence=_whole(payload["sequence"]),
        created_at_s=float(payload["created_at_s"]),
        layout=_text(payload["layout"]),
        finite=payload["finite"] is True,
        save_retries=_whole(payload["save_retries"]),
        versions=dict(payload["versions"]),
        metrics=decode_state(payload["metrics"]),
        state=decode_state(payload["state"]),
        shards={name: _read_shard(name, entry) for name, entry in payload["shards"].items()},
        tensors={name: tensors[name] for name in payload["tensors"]},
    )


def _read_shard(name: str, entry: dict[str, Any]) -> ShardRecord:
    return ShardRecord(
        file=name,
        size_bytes=_whole(entry["size_bytes"]),
        header_bytes=_whole(entry["header_bytes"]),
        header_xxh3=_text(entry["header_xxh3"]),
        save_id=_text(entry["save_id"]) if "save_id" in entry else None,
    )


def _read_tensor(name: str, entry: dict[str, Any]) -> TensorRecord:
    return TensorRecord(
        name=name,
        shape=tuple(_whole(size) for size in entry["shape"]),
        dtype=_text(entry["dtype"]),
        slices=tuple(_read_slice(piece) for piece in entry["slices"]),
    )


def _read_slice(entry: dict[str, Any]) -> SliceRecord:
    return SliceRecord(
        file=_text(entry["file"]),
        entry=_text(entry["entry"]),
        offset_bytes=_whole(entry["offset_bytes"]),
        size_bytes=_whole(entry["size_bytes"]),
        ranges=tuple(tuple((_whole(start), _whole(length)) for start, length in dim) for dim in entry["ranges"]),
        xxh3=_text(entry["xxh3"]),
    )


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r}")
    return value


def _check(manifest: Manifest) -> None:
    """Raise ValueError unless every piece lies inside its file and the pieces make up their tensor."""
    for name in manifest.shards:
        # A plain name in the checkpoint's own folder: nothing else is ever opened.
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ValueError(f"file {name!r}")
    for tensor in manifest.tensors.values():
        item_bytes = STORED_TYPES[tensor.dtype].item_bytes
        for piece in tensor.slices:
            shard = manifest.shards[piece.file]
            inside = shard.header_bytes <= piece.offset_bytes <= shard.size_bytes - piece.size_bytes
            if not inside or piece.size_bytes != math.prod(piece.shape) * item_bytes:
                raise ValueError(f"slice of {tensor.name!r}")
        check_coverage(tensor)
