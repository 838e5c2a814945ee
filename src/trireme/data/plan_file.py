"""A packing plan on disk, beside the tokens it is for.

Planning is a pure function, so a plan is found by the hash of what it was made from and never goes stale.
Only plans that took long enough to be worth a file are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trireme.data.pack import WINDOW, PackCounts, PackPlan, PackRules, build_plan

_VERSION = 1
_WORTH_A_FILE_S = 1.0
_ARRAYS = ("row_offsets", "documents", "starts", "lengths")
_FACTS = "plan.json"


def find_plan(store: Any, *, documents: np.ndarray, rules: PackRules, source: str = "") -> PackPlan:
    """Return the plan for ``documents`` of ``store``, from its folder if it was kept there.

    Shapes:
        documents: [N] int64, numbers of the documents to pack.
    """
    folder = _plan_folder(store, documents=documents, rules=rules)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not there, or damaged: plan again
        if folder is not None:
            return load_plan(folder)
    begun_s = time.perf_counter()
    plan = build_plan(
        store.lengths, prompt_lengths=store.prompt_lengths, documents=documents, rules=rules, source=source
    )
    if folder is None or time.perf_counter() - begun_s < _WORTH_A_FILE_S:
        return plan
    with contextlib.suppress(OSError):  # a cache that can't be written costs the planning time, nothing else
        save_plan(plan, folder=folder)
        return load_plan(folder)
    return plan


def save_plan(plan: PackPlan, *, folder: Path) -> None:
    """Write a plan so that the folder is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".plan-", dir=folder.parent))
    try:
        digests = {}
        for name in _ARRAYS:
            np.save(draft / f"{name}.npy", getattr(plan, name))
            digests[name] = _digest(getattr(plan, name))
        facts = {"version": _VERSION, "rules": asdict(plan.rules), "counts": asdict(plan.counts), "xxh3": digests}
        (draft / _FACTS).write_text(json.dumps(facts))
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or we would have read it
        with contextlib.suppress(FileExistsError):  # another rank was first, with the same content
            os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load_plan(folder: Path) -> PackPlan:
    """Map a kept plan into memory.

    Raises:
        OSError, ValueError, KeyError: It is missing, damaged or of another version.
    """
    facts = json.loads((folder / _FACTS).read_text())
    if facts["version"] != _VERSION:
        raise ValueError(facts["version"])
    arrays: dict[str, Any] = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS}
    for name, array in arrays.items():
        if _digest(array) != facts["xxh3"][name]:
            raise ValueError(name)
    plan = PackPlan(rules=PackRules(**facts["rules"]), counts=PackCounts(**facts["counts"]), **arrays)
    return replace(plan, folder=folder)


def _plan_folder(store: Any, *, documents: np.ndarray, rules: PackRules) -> Path | None:
    """Return where this plan is kept; None for a store that has no folder."""
    if getattr(store, "folder", None) is None:
        return None
    digest = xxhash.xxh3_128(json.dumps([_VERSION, WINDOW, store.key, asdict(rules)]).encode())
    digest.update(np.ascontiguousarray(documents).data)
    return Path(store.folder) / "plans" / digest.hexdigest()


def _digest(array: np.ndarray) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).data)
