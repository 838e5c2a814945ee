"""Saving and loading beside ``torch.distributed.checkpoint``: stall, time until durable, load, other rank counts.

``python benchmarks/checkpoint.py [--mib 1024] [--repeat 3] [--places tmpfs disk]``: both write and read the same
fp32 tensors, row-sharded over two gloo ranks of this machine; the lowest of the repeats counts on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from trireme.checkpoint import (
    LeadOrder,
    RankSaver,
    StatePiece,
    WriteOrder,
    begin_save,
    blank_manifest,
    check_slices,
    deal_pieces,
    describe_pieces,
    open_checkpoint,
)
from trireme.mesh import run_on_ranks

COLUMNS = 4096
TENSORS = 16
STEP_S = 2.0
"""What a run does before its first save: at least one step."""

PLACES = {"tmpfs": "/dev/shm", "disk": tempfile.gettempdir()}


def local_rows(mib: int) -> int:
    """Return the rows of this rank's part of each tensor."""
    rows: int = mib * 2**20 // 4 // COLUMNS // TENSORS // dist.get_world_size()
    return rows


def make_tensors(mib: int) -> dict[str, torch.Tensor]:
    """Return this rank's rows of every tensor; row numbers are their values, so that a mix-up shows."""
    rows = local_rows(mib)
    first = dist.get_rank() * rows
    column = torch.arange(first, first + rows, dtype=torch.float32).view(rows, 1)
    return {f"model/w{index}": column.repeat(1, COLUMNS) + index for index in range(TENSORS)}


def as_pieces(tensors: dict[str, torch.Tensor]) -> dict[str, StatePiece]:
    """Say where this rank's rows lie."""
    world, rank = dist.get_world_size(), dist.get_rank()
    return {
        name: StatePiece(
            tensor=tensor,
            shape=(tensor.shape[0] * world, COLUMNS),
            ranges=(((rank * tensor.shape[0], tensor.shape[0]),), ((0, COLUMNS),)),
        )
        for name, tensor in tensors.items()
    }


def everyone(value: Any) -> list[Any]:
    """Return every rank's value."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def timed(act: Callable[[], Any]) -> float:
    """Return the seconds until the slowest rank is through."""
    dist.barrier()
    begun_s = time.perf_counter()
    act()
    dist.barrier()
    return time.perf_counter() - begun_s


def save_ours(root: str, mib: int, repeat: int) -> dict[str, list[float]]:
    """Save as a run does: writer and memory made ready before, then copy, go on, and hear of the end."""
    pieces = as_pieces(make_tensors(mib))
    saver = RankSaver()
    notes = describe_pieces(pieces)
    deal = deal_pieces(everyone(notes))
    rank = dist.get_rank()
    warm_s = timed(lambda: saver.warm(value_bytes=deal.part_bytes(rank), num_parts=64))
    time.sleep(STEP_S)
    stalls, durables = [], []
    for step in range(1, repeat + 2):
        dist.barrier()
        begun_s = time.perf_counter()
        same = everyone(notes == describe_pieces(pieces))
        assert all(same)
        opened = [None]
        if rank == 0:
            size = {"value_bytes": deal.total_bytes, "num_tensors": len(deal.tensors)}
            opened = [begin_save(Path(root), step=step, **size)]  # type: ignore[list-item]
        dist.broadcast_object_list(opened)
        save_id, folder = opened[0]  # type: ignore[misc]
        blank = blank_manifest(step=step, state={}, metrics={}, run_id="", layout="dp=2,zero3", finite=True)
        lead = LeadOrder(num_ranks=dist.get_world_size(), tensors=deal.tensors, manifest=blank) if rank == 0 else None
        order = WriteOrder(number=step, rank=rank, folder=folder, save_id=save_id, run_id="", parts=(), lead=lead)
        assert saver.take(pieces, deal.parts[rank], order=order) is None
        dist.barrier()
        stalls.append(time.perf_counter() - begun_s)
        while saver.busy:
            saver.hear(wait_s=0.1)
        dist.barrier()
        durables.append(time.perf_counter() - begun_s)
    saver.close()
    return {"warm": [warm_s], "stall": stalls, "durable": durables}


def save_dcp(root: str, mib: int, repeat: int, kind: str) -> dict[str, list[float]]:
    """Save with torch.distributed.checkpoint: ``sync``, or ``thread`` or ``process`` with a stager that is kept."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: DTensor.from_local(each, mesh, [Shard(0)]) for name, each in make_tensors(mib).items()}
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
    )
    stager = DefaultStager(options)
    group = dist.new_group()  # its collectives run in a thread, beside the barriers here
    kinds = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}
    stalls, durables = [], []
    for step in range(1, repeat + 2):
        path = f"{root}/dcp-{kind}-{step}"
        dist.barrier()
        begun_s = time.perf_counter()
        if kind == "sync":
            dcp.save(state, checkpoint_id=path)
            dist.barrier()
            stalls.append(time.perf_counter() - begun_s)
        else:
            found = dcp.async_save(
                state, checkpoint_id=path, process_group=group, async_stager=stager, async_checkpointer_type=kinds[kind]
            )
            dist.barrier()
            stalls.append(time.perf_counter() - begun_s)
            found.result()
            dist.barrier()
        durables.append(time.perf_counter() - begun_s)
        if dist.get_rank() == 0 and step <= repeat:
            shutil.rmtree(path)
    stager.close()
    return {"stall": stalls, "durable": durables}


def load_ours(root: str, mib: int, repeat: int) -> list[float]:
    """Load the newest as a run does: all ranks hash their share, then each reads what it holds."""
    step = max(int(path.name.removeprefix("step-")) for path in Path(root).glob("step-*"))
    tensors = {name: torch.zeros_like(each) for name, each in make_tensors(mib).items()}
    pieces = as_pieces(tensors)

    def load() -> None:
        checkpoint = open_checkpoint(Path(root) / f"step-{step}", verify=False)
        check_slices(checkpoint, part=dist.get_rank(), num_parts=dist.get_world_size())
        dist.barrier()
        known = type(checkpoint)(path=checkpoint.path, manifest=checkpoint.manifest, verified=True)
        for name, piece in pieces.items():
            known.read_into(name, piece.tensor, ranges=piece.ranges)

    times = [timed(load) for _ in range(repeat)]
    assert all(torch.equal(tensors[name], each) for name, each in make_tensors(mib).items())
    return times


def load_dcp(path: str, mib: int, repeat: int) -> list[float]:
    """Load with torch.distributed.checkpoint, which hashes nothing."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = {name: torch.zeros_like(each) for name, each in make_tensors(mib).items()}
    state = {name: DTensor.from_local(each, mesh, [Shard(0)]) for name, each in tensors.items()}
    times = [timed(lambda: dcp.load(state, checkpoint_id=path)) for _ in range(repeat)]
    assert all(torch.equal(tensors[name], each) for name, each in make_tensors(mib).items())
    return times


def measure(place: str, *, mib: int, repeat: int) -> dict[str, Any]:
    """Return all figures of one place."""
    root = tempfile.mkdtemp(prefix="trireme-checkpoint-", dir=PLACES[place])
    try:
        found: dict[str, Any] = {}
        ours = run_on_ranks(save_ours, 2, timeout_s=900, root=root, mib=mib, repeat=repeat)[0]
        found["trireme"] = ours
        for kind in ("sync", "thread", "process"):
            found[f"dcp {kind}"] = run_on_ranks(
                save_dcp, 2, timeout_s=900, root=root, mib=mib, repeat=repeat, kind=kind
            )[0]
        dcp_path = f"{root}/dcp-sync-{repeat + 1}"
        for ranks in (2, 1, 4):
            found[f"load 2 -> {ranks}"] = {
                "trireme": run_on_ranks(load_ours, ranks, timeout_s=600, root=root, mib=mib, repeat=repeat)[0],
                "dcp": run_on_ranks(load_dcp, ranks, timeout_s=600, path=dcp_path, mib=mib, repeat=repeat)[0],
            }
        return found
    finally:
        shutil.rmtree(root)


def show(place: str, found: dict[str, Any], *, mib: int) -> None:
    """Print the tables."""
    gib = mib / 1024
    print(f"\n### {place}, {gib:g} GiB, 2 ranks\n")
    print("| | stall first s/GiB | stall later s/GiB | durable s | GiB/s |")
    print("|---|---|---|---|---|")
    for name in ("trireme", "dcp sync", "dcp thread", "dcp process"):
        stalls, durables = found[name]["stall"], found[name]["durable"]
        durable_s = min(durables)
        print(
            f"| {name} | {stalls[0] / gib:.2f} | {min(stalls[1:]) / gib:.2f} (median "
            f"{statistics.median(stalls[1:]) / gib:.2f}) | {durable_s:.2f} | {gib / durable_s:.2f} |"
        )
    print("\n| | trireme s | dcp s | ratio |")
    print("|---|---|---|---|")
    for ranks in (2, 1, 4):
        each = found[f"load 2 -> {ranks}"]
        ours, theirs = min(each["trireme"]), min(each["dcp"])
        print(f"| load 2 -> {ranks} ranks | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--places", nargs="+", default=list(PLACES), choices=list(PLACES))
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    everything = {}
    for place in arguments.places:
        everything[place] = measure(place, mib=arguments.mib, repeat=arguments.repeat)
        show(place, everything[place], mib=arguments.mib)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
