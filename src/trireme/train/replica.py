"""Whether ranks that should hold the same weights do: a sum over their bits, compared.

Hardware can flip a bit without a word; the copies of data parallelism then drift apart, and every checkpoint has
whichever copy was written. The sum is over the bits as integers, so it is exact, cheap and the same in any order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
import xxhash

from trireme.parallel import ParallelModel, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProblem:
    """A parameter whose copies differ, and the ranks that stand against the most; all holders where none do."""

    name: str
    ranks: tuple[int, ...]


def compare_replicas(model: ParallelModel) -> ReplicaProblem | None:
    """Return a parameter whose copies differ, the same on every rank; None if all agree.

    Every rank calls it. What crosses the network is two numbers a parameter, among ranks of data and context
    parallelism.
    """
    group, device = model.axes["dp_cp"].group, model.axes.device
    pieces = model.pieces()
    found = _differing(_gathered(_table(pieces, device=device), group=group), pieces, group=group)
    flag = torch.tensor([int(found is not None)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if not flag.item():
        return None
    everyone: list[ReplicaProblem | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return next(each for each in everyone if each is not None)


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over a tensor's bits taken as integers; it wraps around, which loses nothing."""
    flat = tensor.detach().contiguous().view(-1)
    num_bytes = flat.numel() * flat.element_size()
    if num_bytes and num_bytes % 8 == 0 and flat.data_ptr() % 8 == 0:
        return flat.view(torch.int64).sum()
    return flat.view(torch.uint8).sum(dtype=torch.int64)


def _table(pieces: Mapping[str, Piece], *, device: torch.device) -> torch.Tensor:
    """Give who a piece is and the sum over its bits. Shapes: [P, 2] int64."""
    keys = torch.tensor([_key(name, piece) for name, piece in pieces.items()], dtype=torch.int64, device=device)
    sums = [bit_sum(piece.tensor).to(device) for piece in pieces.values()]
    return torch.stack([keys, torch.stack(sums) if sums else keys], dim=1)


def _gathered(own: torch.Tensor, *, group: dist.ProcessGroup) -> list[list[tuple[int, int]]]:
    """Return every rank's table; ranks may hold different numbers of pieces."""
    size = torch.tensor([len(own)], device=own.device)
    dist.all_reduce(size, op=dist.ReduceOp.MAX, group=group)
    padded = torch.zeros(int(size.item()), 2, dtype=own.dtype, device=own.device)
    padded[: len(own)] = own
    tables = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tables, padded, group=group)
    return [[(int(key), int(total)) for key, total in table.tolist() if key] for table in tables]


def _differing(
    tables: list[list[tuple[int, int]]], pieces: Mapping[str, Piece], *, group: dist.ProcessGroup
) -> ReplicaProblem | None:
    holders: dict[int, dict[int, int]] = defaultdict(dict)
    for member, table in enumerate(tables):
        for key, total in table:
            holders[key][member] = total
    for name, piece in pieces.items():
        totals = holders[_key(name, piece)]
        counts = Counter(totals.values()).most_common()
        if len(counts) == 1:
            continue
        is_clear = counts[0][1] > counts[1][1]
        odd = [member for member, total in totals.items() if not is_clear or total != counts[0][0]]
        return ReplicaProblem(name=name, ranks=tuple(dist.get_global_rank(group, member) for member in odd))
    return None


def _key(name: str, piece: Piece) -> int:
    """Name a piece by what it is of the whole: equal keys must hold equal bits. Never zero, which is padding."""
    return (xxhash.xxh3_64_intdigest(f"{name}{piece.ranges}".encode()) >> 2) + 1
