"""Calls that belong together: a norm or a rotation written out is one operation, and so is a layer of experts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trireme.parallel.graph_record import Ran
from trireme.parallel.graph_tensor import PRODUCTS, is_attention


def grouped(calls: Sequence[Ran], *, read_later: Collection[int], apart: Collection[int]) -> Iterator[list[int]]:
    """Yield the numbers of calls, group by group, in the order in which each group ends.

    A group is what one module computes from the same tensors without a product, if a single result of it is read by
    others; all calls of a module that multiplies group by group (experts) are one as well.
    """
    for run in _stretches(calls, apart):
        if len(run) == 1 or any(calls[index].name == "_grouped_mm" for index in run):
            yield run
            continue
        for part in _connected(calls, run):
            if len(_escaping(calls, part, read_later)) <= 1:
                yield part
            else:
                yield from ([index] for index in part)


def _stretches(calls: Sequence[Ran], apart: Collection[int]) -> Iterator[list[int]]:
    """Neighbours of one module that are no products; a module with grouped products is one stretch."""
    of_experts = {ran.module for ran in calls if ran.name == "_grouped_mm"}
    run: list[int] = []
    owner = ""
    for index, ran in enumerate(calls):
        whole = next((path for path in of_experts if f"{ran.module}.".startswith(f"{path}.")), None)
        is_single = ran.name in PRODUCTS or is_attention(ran.name) or ran.name == "embedding" or index in apart
        is_single = is_single and whole is None
        if run and (is_single or (whole or ran.module) != owner):
            yield run
            run = []
        owner = whole or ran.module
        if is_single:
            yield [index]
        else:
            run.append(index)
    if run:
        yield run


def _connected(calls: Sequence[Ran], run: Sequence[int]) -> list[list[int]]:
    """Split a stretch into parts that share nothing that was made in it."""
    parts: list[tuple[set[int], list[int]]] = []
    for index in run:
        read = {seen.storage for seen in calls[index].inputs}
        mine = [part for part in parts if part[0] & read]
        made = {seen.storage for seen in calls[index].outputs}
        merged: tuple[set[int], list[int]] = (set(made), [index])
        for part in mine:
            merged = (merged[0] | part[0], sorted([*merged[1], *part[1]]))
        parts = [part for part in parts if part not in mine] + [merged]
    return sorted((part[1] for part in parts), key=lambda part: part[-1])


def _escaping(calls: Sequence[Ran], part: Sequence[int], read_later: Collection[int]) -> set[int]:
    """What a part makes and others read."""
    made = {seen.storage for index in part for seen in calls[index].outputs}
    inside = set(part)
    others = (ran for index, ran in enumerate(calls) if index > part[0] and index not in inside)
    read = {seen.storage for ran in others for seen in ran.inputs}
    return made & (read | set(read_later))
