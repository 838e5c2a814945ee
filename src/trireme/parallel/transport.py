"""What passes between the ranks of a pipeline: several tensors a message, sent without waiting, received in order.

Shapes travel ahead once for each kind of batch; from then on both sides know them. A receive is posted a little
before it is needed, so memory is that of what is in use and of a short window, however many micro-batches there are.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.errors import LayoutError, TrainError
from trireme.parallel.value import notes_of
from trireme.plan import Message, Schedule, messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the receiver has to know of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiates: bool
    notes: Mapping[str, Any]


Contract = tuple[Spec | None, ...]
"""What a message holds; None is a tensor that isn't sent (a gradient that there is none of)."""

Expected = Callable[[Message, Mapping[Any, Contract]], Contract | None]
"""From a message that will come, and the contracts of what was sent, to what it will hold; None if not known yet."""

Parcel = Sequence[Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The ranks of one pipeline as this one sees them.

    Attributes:
        forth: Group for messages to higher ranks of the pipeline.
        back: Group for messages to lower ones. With NCCL it has to be another one: sends and receives of one pair
            in one group wait for each other.
        device: On which tensors travel.
    """

    forth: dist.ProcessGroup
    back: dist.ProcessGroup
    device: torch.device

    @property
    def rank(self) -> int:
        """Place in the pipeline."""
        return dist.get_rank(self.forth)

    @property
    def degree(self) -> int:
        """Ranks of the pipeline."""
        return dist.get_world_size(self.forth)

    def group(self, source: int, target: int) -> dist.ProcessGroup:
        """Give the group for messages from one rank to another."""
        return self.forth if source < target else self.back


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A message whose receives are posted."""

    contract: Contract
    buffers: list[Tensor | None]
    works: list[Any]


@dataclass(slots=True, kw_only=True)
class _Inbox:
    """Messages from one rank, in the order in which they come."""

    source: int
    order: tuple[Message, ...]
    next: int = 0
    pending: dict[Message, _Pending] = field(default_factory=dict)


class Transport:
    """Sends and receives on one lane; knows the contracts of every kind of batch seen so far.

    Args:
        lane: Where.
        window: Messages from one rank for which receives are posted ahead.
    """

    def __init__(self, lane: Lane, *, window: int = 2) -> None:
        self.lane = lane
        self.window = window
        self.sent_bytes = 0
        self._sent: dict[Any, Contract] = {}
        self._known: dict[Any, Contract] = {}
        self._expected: Expected | None = None

    def expect(self, expected: Expected) -> None:
        """Know contracts beforehand; headers that tell of them are then neither awaited nor read."""
        self._expected = expected

    def contract(self, message: Message, key: Any) -> Contract | None:
        """Give what a message holds, None if nothing is known of it yet."""
        if key not in self._known and self._expected is not None:
            expected = self._expected(message, self._sent)
            if expected is not None:
                self._known[key] = expected
        return self._known.get(key)

    def start(self, schedule: Schedule, kinds: Sequence[Any], *, only_forward: bool) -> Delivery:
        """Begin a step; ``kinds[m]`` says of what kind micro-batch m is."""
        return Delivery(self, schedule, kinds, only_forward=only_forward)


class Delivery:
    """The messages of one step."""

    def __init__(self, transport: Transport, schedule: Schedule, kinds: Sequence[Any], *, only_forward: bool) -> None:
        self.transport, self.lane = transport, transport.lane
        self.kinds = kinds
        self.schedule = schedule
        self._out: deque[tuple[list[Any], list[Tensor], Message]] = deque()
        self._inboxes: dict[int, _Inbox] = {}
        for (source, target), order in messages(schedule).items():
            if target == self.lane.rank:
                kept = tuple(message for message in order if message.kind == "F" or not only_forward)
                self._inboxes[source] = _Inbox(source=source, order=kept)
        for inbox in self._inboxes.values():
            self._look_ahead(inbox)

    def send(self, message: Message, parcel: Parcel) -> None:
        """Send a message and go on at once.

        Raises:
            LayoutError: It isn't like those before it for batches of the same kind.
        """
        key = self._key(message)
        known = self.transport._sent.get(key)
        target = self.schedule.rank_of(message.target)
        parcel = parcel if known is None else _filled(parcel, known)
        contract = contract_of(parcel)
        works: list[Any] = []
        tensors: list[Tensor] = []
        if known is None:
            self.transport._sent[key] = contract
            tensors += _header(contract, self.lane.device)
        elif known != contract:
            raise LayoutError("parallel.transport_changed", source=message.source, target=message.target)
        tensors += [tensor.detach().contiguous() for tensor in parcel if tensor is not None and tensor.numel()]
        group = self.lane.group(self.lane.rank, target)
        self.transport.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        with self._watched(message):
            works += [dist.isend(_wire(tensor), group=group, group_dst=target) for tensor in tensors]
        self._out.append((works, tensors, message))
        self._forget_sent()

    def receive(self, message: Message) -> list[tuple[Tensor, Spec] | None]:
        """Wait for a message.

        Raises:
            TrainError: The rank that should send it is gone.
        """
        inbox = self._inboxes[self.schedule.rank_of(message.source)]
        while message not in inbox.pending:
            self._post(inbox)
        pending = inbox.pending.pop(message)
        with self._watched(message):
            for work in pending.works:
                work.wait()
        self._look_ahead(inbox)
        return [
            None if spec is None or buffer is None else (_noted(buffer, spec), spec)
            for spec, buffer in zip(pending.contract, pending.buffers, strict=True)
        ]

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        while self._out:
            works, _, message = self._out.popleft()
            with self._watched(message):
                for work in works:
                    work.wait()

    def _look_ahead(self, inbox: _Inbox) -> None:
        """Post receives whose shapes are known, within the window."""
        while len(inbox.pending) < self.transport.window and inbox.next < len(inbox.order):
            message = inbox.order[inbox.next]
            if self.transport.contract(message, self._key(message)) is None:
                return
            self._post(inbox)

    def _post(self, inbox: _Inbox) -> None:
        message = inbox.order[inbox.next]
        inbox.next += 1
        key, known = self._key(message), self.transport._known
        group = self.lane.group(inbox.source, self.lane.rank)
        with self._watched(message):
            if self.transport.contract(message, key) is None:
                known[key] = _read_header(inbox.source, group, self.lane.device)
            buffers = [None if spec is None else _buffer(spec, self.lane.device) for spec in known[key]]
            works = [
                dist.irecv(_wire(buffer), group=group, group_src=inbox.source)
                for buffer in buffers
                if buffer is not None and buffer.numel()
            ]
        inbox.pending[message] = _Pending(contract=known[key], buffers=buffers, works=works)

    def _key(self, message: Message) -> Any:
        return (message.kind, message.source, self.kinds[message.microbatch])

    def _forget_sent(self) -> None:
        """Let go of what has left."""
        while self._out and all(work.is_completed() for work in self._out[0][0]):
            self._out.popleft()

    def _watched(self, message: Message) -> _Watched:
        return _Watched(self.schedule, message)


class _Watched:
    """Says what was waited for when a transfer fails."""

    def __init__(self, schedule: Schedule, message: Message) -> None:
        self._schedule, self._message = schedule, message

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (RuntimeError, ValueError)):
            message, rank_of = self._message, self._schedule.rank_of
            raise TrainError(
                "parallel.transport_lost",
                what="F" if message.kind == "F" else "B",
                microbatch=message.microbatch,
                source=f"{message.source} (pp rank {rank_of(message.source)})",
                target=f"{message.target} (pp rank {rank_of(message.target)})",
                why=str(error).strip().splitlines()[0],
            ) from error


def contract_of(parcel: Parcel) -> Contract:
    """Describe what a message holds."""
    return tuple(None if tensor is None else _spec(tensor) for tensor in parcel)


def _spec(tensor: Tensor) -> Spec:
    return Spec(
        shape=tuple(tensor.shape), dtype=tensor.dtype, differentiates=tensor.requires_grad, notes=notes_of(tensor)
    )


def _filled(parcel: Parcel, contract: Contract) -> Parcel:
    """A gradient that is missing this time is zero."""
    if len(parcel) != len(contract):
        return parcel
    return [
        torch.zeros(spec.shape, dtype=spec.dtype, device=_device(parcel)) if tensor is None and spec else tensor
        for tensor, spec in zip(parcel, contract, strict=True)
    ]


def _device(parcel: Parcel) -> torch.device | None:
    return next((tensor.device for tensor in parcel if tensor is not None), None)


def _noted(buffer: Tensor, spec: Spec) -> Tensor:
    vars(buffer).update(spec.notes)
    return buffer


def _buffer(spec: Spec, device: torch.device) -> Tensor:
    return torch.empty(spec.shape, dtype=spec.dtype, device=device)


def _wire(tensor: Tensor) -> Tensor:
    """Show a tensor as bytes where its dtype is none that all backends send."""
    plain = tensor.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32)
    return tensor if plain else tensor.reshape(-1).view(torch.uint8)


def _header(contract: Contract, device: torch.device) -> list[Tensor]:
    content = torch.frombuffer(bytearray(pickle.dumps(contract)), dtype=torch.uint8).to(device)
    return [torch.tensor([content.numel()], dtype=torch.int64, device=device), content]


def _read_header(source: int, group: dist.ProcessGroup, device: torch.device) -> Contract:
    length = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(length, group=group, group_src=source)
    content = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    dist.recv(content, group=group, group_src=source)
    contract: Contract = pickle.loads(content.cpu().numpy().tobytes())
    return contract
