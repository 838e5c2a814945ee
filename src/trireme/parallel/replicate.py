"""Whole copies on every data-parallel rank: gradients summed in buckets while backward goes on.

In the first step nothing is sent before its end: the reducer watches in which order gradients become ready, in
which stages a parameter is used and whether it gets several gradients in one backward. Ranks agree on that; from
the second step on a bucket is sent as soon as its last gradient is there and all buckets before it are under way,
the same order on every rank whatever each rank's own backward does.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel.bucket import (
    BUCKET_BYTES,
    Bucket,
    Exchange,
    all_reduce_bucket,
    build_bucket,
    divide_into_buckets,
)
from trireme.parallel.readiness import Readiness, agree_readiness
from trireme.parallel.traffic import Handle, Traffic, TrafficMeter
from trireme.parallel.wire import PlainSum, Summation, Wire


def replicate(
    module: nn.Module,
    parameters: Sequence[tuple[str, nn.Parameter]] | None = None,
    *,
    group: dist.ProcessGroup,
    bucket_bytes: int = BUCKET_BYTES,
    reduce_dtype: torch.dtype | None = None,
    exchange: Exchange = all_reduce_bucket,
    plain: Collection[str] = (),
) -> Reducer:
    """Sum the gradients of whole copies over a group; the module stays as it is.

    Args:
        module: Whose parameters are meant where none are named.
        parameters: Names and parameters, tied ones once. Default: all of the module that require a gradient.
        group: Ranks whose gradients add up.
        bucket_bytes: Least size of a bucket but the last.
        reduce_dtype: Format in which to sum; default: the gradient's own, which then lies in the bucket and needs
            no second copy.
        exchange: Sums one bucket; the place for compression.
        plain: Names of parameters that an exchange must sum as they are.
    """
    chosen = list(module.named_parameters()) if parameters is None else list(parameters)
    return Reducer(
        chosen, group=group, bucket_bytes=bucket_bytes, reduce_dtype=reduce_dtype, exchange=exchange, plain=plain
    )


class Reducer:
    """Sums gradients over a group, bucket by bucket. Satisfies ``GradientSync``."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        *,
        group: dist.ProcessGroup,
        bucket_bytes: int = BUCKET_BYTES,
        reduce_dtype: torch.dtype | None = None,
        exchange: Exchange = all_reduce_bucket,
        plain: Collection[str] = (),
    ) -> None:
        self.parameters = list(parameters)
        self._plain = frozenset(index for index, (name, _) in enumerate(self.parameters) if name in plain)
        self._planned: tuple[tuple[str, ...], ...] = ()
        self.group = group
        self.bucket_bytes = bucket_bytes
        self.reduce_dtype = reduce_dtype
        self.exchange = exchange
        # A code may have kept something of earlier gradients for a parameter that has none now.
        self._keeps_rest = isinstance(exchange, Wire) and not isinstance(exchange.summation, PlainSum)
        self._degree = dist.get_world_size(group)
        self._is_alone = self._degree == 1
        self._trained: tuple[int, ...] = ()
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._buckets: list[Bucket] | None = None
        self._place: dict[int, tuple[Bucket, Tensor]] = {}
        self._readiness = Readiness(len(self.parameters))
        self._held: dict[int, Tensor] = {}
        self._is_open = False
        self._handles: list[Handle] = []
        self._meter = TrafficMeter()
        self._last_traffic = Traffic()
        self._reset()
        self._watch_trained()

    def start_step(self, num_microbatches: int = 1) -> None:
        """Begin a step; gradients that are there already are complete sums and are added again at its end."""
        if self._is_open:
            self._drop_unfinished()
        self._is_open = True
        self._reset()
        self._watch_trained()
        for index in self._trained:
            parameter = self._parameter(index)
            if parameter.grad is not None:
                lies_in_bucket = index in self._place and parameter.grad is self._place[index][1]
                self._held[index] = parameter.grad.clone() if lies_in_bucket else parameter.grad
                parameter.grad = None

    def before_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Say that a backward of this stage begins."""
        self._readiness.begin(stage, is_last=is_last)

    def after_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Send what this stage's last backward completed, whether or not it gave every parameter a gradient."""
        ended = self._readiness.end(stage, is_last=is_last)
        if self._buckets is not None and not self._is_alone:
            self._complete(ended)

    def finish(self) -> None:
        """Send what is left, wait for all, and leave every gradient complete."""
        if not self._is_alone:
            self._meter.end_backward(device=self._device)
            self._learn()
            self._complete(self._trained)
            if isinstance(self.exchange, Wire):
                self._wait()  # its thread may still use the group
            has_anywhere = self._agree_which()
            self._wait()
            for index in self._trained:
                self._take_back(index, is_there=has_anywhere[index])
        self._add_held()
        if isinstance(self.exchange, Wire):
            self._meter.add_sent(*self.exchange.take())
        self._last_traffic = self._meter.read()
        self._reset()
        self._is_open = False

    def release(self) -> None:
        """Do nothing: copies are always whole."""

    @property
    def traffic(self) -> Traffic:
        """What the last step sent; ``overlapped_s`` is the time communication ran beside backward."""
        return self._last_traffic

    @property
    def bucket_names(self) -> tuple[tuple[str, ...], ...]:
        """Names in each bucket; empty before the first step has ended."""
        return tuple(bucket.names for bucket in self._buckets or ())

    def plan_buckets(self, names: Sequence[Sequence[str]]) -> None:
        """Divide as another run of the same layout did, whatever order this one would learn."""
        self._planned = tuple(tuple(each) for each in names)

    def close(self) -> None:
        """Stop watching the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _parameter(self, index: int) -> nn.Parameter:
        return self.parameters[index][1]

    @property
    def _device(self) -> torch.device:
        return self.parameters[0][1].device if self.parameters else torch.device("cpu")

    def _reset(self) -> None:
        self._handles = []
        self._meter = TrafficMeter()
        self._next = 0
        self._sent: set[int] = set()
        self._has_grad = set[int]()
        self._readiness.restart()
        for bucket in self._buckets or ():
            bucket.waiting_for = set(bucket.indices)

    def _wait(self) -> None:
        for handle in self._handles:
            handle.wait()

    def _drop_unfinished(self) -> None:
        """Forget a step that an error ended; what was complete before it stays."""
        self._wait()
        for index in self._trained:
            self._parameter(index).grad = self._held.pop(index, None)

    def _watch_trained(self) -> None:
        """Hook the parameters that require a gradient now; another set of them has other buckets."""
        trained = tuple(index for index in range(len(self.parameters)) if self._parameter(index).requires_grad)
        if trained == self._trained:
            return
        self.close()
        self._trained, self._buckets, self._place = trained, None, {}
        self._readiness = Readiness(len(self.parameters))
        if self._is_alone:
            return
        self._hooks = [
            self._parameter(index).register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(self._on_grad, index)
            )
            for index in trained
        ]

    def _on_grad(self, index: int, parameter: Tensor) -> None:
        """Hear from autograd that a parameter's gradient has just been added to."""
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise LayoutError("parallel.zero_sparse", name=self.parameters[index][0])
        if index in self._sent:
            raise LayoutError("parallel.zero_late", name=self.parameters[index][0])
        is_complete = self._readiness.note(index)
        if self._buckets is None:
            return
        if self.reduce_dtype is None:
            self._move_into_bucket(index)
        if is_complete:
            self._complete([index])

    def _complete(self, indices: Sequence[int]) -> None:
        """Note that these gradients won't change any more, and send the buckets whose turn it is."""
        assert self._buckets is not None
        for index in indices:
            if index in self._place:
                self._place[index][0].waiting_for.discard(index)
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting_for:
            self._send(self._buckets[self._next])
            self._next += 1

    @torch.no_grad()
    def _send(self, bucket: Bucket) -> None:
        for index in bucket.indices:
            self._move_into_bucket(index)
            self._sent.add(index)
        is_own = isinstance(self.exchange, Wire)  # which counts itself what it sends
        self._meter.count("all_reduce", bucket.num_bytes, degree=1 if is_own else self._degree)
        handle = self.exchange(bucket)
        self._meter.watch(handle, device=bucket.flat.device)
        self._handles.append(handle)

    @torch.no_grad()
    def _move_into_bucket(self, index: int) -> None:
        """Copy a gradient to its place, unless it lies there; one that is missing counts as zero."""
        parameter, (_, view) = self._parameter(index), self._place[index]
        if parameter.grad is None:
            view.zero_()
            return
        self._has_grad.add(index)
        if parameter.grad is view:
            return
        view.copy_(parameter.grad)
        if self.reduce_dtype is None:
            parameter.grad = view

    def _learn(self) -> None:
        """After the first step, agree on the order and build the buckets."""
        if self._buckets is not None:
            return
        self._readiness.note_silent([index for index in self._trained if self._parameter(index).grad is not None])
        order = agree_readiness(
            self._readiness, indices=self._trained, group=self.group, device=self._device, meter=self._meter
        )
        self._buckets = [self._build(number, members) for number, members in enumerate(self._divide(order))]
        for bucket in self._buckets:
            bucket.waiting_for = set(bucket.indices)
            self._place.update(
                {index: (bucket, view) for index, view in zip(bucket.indices, bucket.views, strict=True)}
            )

    def _divide(self, order: Sequence[int]) -> list[list[int]]:
        places = {name: index for index, (name, _) in enumerate(self.parameters)}
        planned = [[places[name] for name in names if name in places] for names in self._planned]
        if sorted(index for members in planned for index in members) == sorted(order):
            return planned
        parameters = [parameter for _, parameter in self.parameters]
        return divide_into_buckets(
            parameters, order=order, dtype=self.reduce_dtype, bucket_bytes=self.bucket_bytes, plain=self._plain
        )

    def _build(self, number: int, members: Sequence[int]) -> Bucket:
        is_plain = members[0] in self._plain
        way: Summation | None = None
        if isinstance(self.exchange, Wire):
            way = self.exchange.plain if is_plain else self.exchange.summation
        return build_bucket(
            number,
            members,
            parameters=self.parameters,
            dtype=self.reduce_dtype,
            group=self.group,
            is_plain=is_plain,
            block=1 if way is None else way.block,
            multiple=1 if way is None else way.multiple,
        )

    def _agree_which(self) -> list[bool]:
        """Give which parameters have a gradient on at least one rank; the only exchange that isn't gradients."""
        mask = torch.zeros(len(self.parameters), dtype=torch.uint8)
        mask[list(self._has_grad)] = 1
        mask = mask.to(self._device)
        self._meter.count("agree", mask.numel(), degree=self._degree)
        dist.all_reduce(mask, op=dist.ReduceOp.MAX, group=self.group)
        return [bool(each) for each in mask.tolist()]

    @torch.no_grad()
    def _take_back(self, index: int, *, is_there: bool) -> None:
        parameter, (_, view) = self._parameter(index), self._place[index]
        if not is_there and not (self._keeps_rest and bool(view.any())):
            parameter.grad = None
        elif self.reduce_dtype is None:
            parameter.grad = view
        elif parameter.grad is None:
            parameter.grad = view.to(parameter.dtype, copy=True)
        else:
            parameter.grad.copy_(view)

    @torch.no_grad()
    def _add_held(self) -> None:
        for index, held in self._held.items():
            parameter = self._parameter(index)
            if parameter.grad is None:
                parameter.grad = held
            else:
                parameter.grad.add_(held)
        self._held.clear()
