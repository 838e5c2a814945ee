"""When a parameter's gradient is complete: learnt in the first step, agreed by all ranks, used in later ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist

from trireme.parallel.traffic import TrafficMeter


class Readiness:
    """Follows the backwards of a step and tells which parameters can't get any more gradient.

    A parameter is complete when every stage that uses it has had its last backward; one that gets several gradients
    in a single backward only when that backward has ended.
    """

    def __init__(self, num_parameters: int) -> None:
        self.num_parameters = num_parameters
        self.is_agreed = False
        self.stages_of: dict[int, set[int]] = defaultdict(set)
        self.repeated: set[int] = set()
        self.last_heard: dict[int, int] = {}
        self.stages: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self._clock = 0
        self._stage, self._is_last = 0, False
        self._heard: set[int] = set()
        self._missing = {index: set(stages) for index, stages in self.stages_of.items() if stages}

    def begin(self, stage: int, *, is_last: bool) -> None:
        """Begin a backward."""
        self.stages.add(stage)
        self._stage, self._is_last = stage, is_last
        self._heard.clear()

    def note(self, index: int) -> bool:
        """Note a gradient; returns whether it is the parameter's last of the step."""
        if not self.is_agreed:
            self._learn(index)
            return False
        if index in self.repeated or not self._is_last:
            return False
        missing = self._missing.get(index)
        if missing is None:  # no rank used it in the first step, so nobody knows which stages may
            return False
        missing.discard(self._stage)
        return not missing

    def _learn(self, index: int) -> None:
        self._clock += 1
        self.last_heard[index] = self._clock
        self.stages_of[index].add(self._stage)
        if index in self._heard:
            self.repeated.add(index)
        self._heard.add(index)

    def end(self, stage: int, *, is_last: bool) -> list[int]:
        """End a backward; returns the parameters that are complete by it."""
        self._is_last = False
        if not is_last or not self.is_agreed:
            return []
        ended = []
        for index, missing in self._missing.items():
            if stage in self.stages_of[index]:
                missing.discard(stage)
                if not missing:
                    ended.append(index)
        return ended

    def note_silent(self, indices: Sequence[int]) -> None:
        """Take parameters that got a gradient unheard (weights computed apart from inputs) as used in every stage."""
        for index in indices:
            if index not in self.last_heard:
                self.stages_of[index] |= self.stages


def agree_readiness(
    readiness: Readiness,
    *,
    indices: Sequence[int],
    group: dist.ProcessGroup,
    device: torch.device,
    meter: TrafficMeter,
) -> list[int]:
    """Let ranks agree on what each has learnt; returns the order in which gradients become ready.

    The order is that of the group's first rank; which stages use a parameter and whether it gets several gradients
    in one backward is whatever any rank has seen.
    """
    count, stages = readiness.num_parameters, sorted(readiness.stages)
    never = 2**31
    heard = torch.tensor([readiness.last_heard.get(index, never) for index in range(count)], device=device)
    seen = torch.zeros(len(stages) + 1, count, dtype=torch.uint8)
    for row, stage in enumerate(stages):
        seen[row, [index for index in range(count) if stage in readiness.stages_of.get(index, ())]] = 1
    seen[-1, list(readiness.repeated)] = 1
    seen = seen.to(device)
    degree = dist.get_world_size(group)
    meter.count("agree", heard.numel() * heard.element_size(), degree=degree)
    dist.broadcast(heard, group=group, group_src=0)
    meter.count("agree", seen.numel(), degree=degree)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX, group=group)
    for row, stage in enumerate(stages):
        for index in seen[row].nonzero().flatten().tolist():
            readiness.stages_of[index].add(stage)
    readiness.repeated = set(seen[-1].nonzero().flatten().tolist())
    readiness.is_agreed = True
    first_heard: list[int] = heard.tolist()
    # Unheard ones last, the module's later parameters first: what backward tends to do.
    return sorted(indices, key=lambda index: (first_heard[index], -index))
