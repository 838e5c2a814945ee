"""Tokens on their way to the experts of other ranks: one operation to every interpreter, and what it sends.

What experts do to a token depends on that token alone. So an interpreter needn't look inside: tokens may be cut in
any way, as long as a token's choice of experts is cut with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from trireme.interpret.call import Call, sharded
from trireme.interpret.collective import Line, gather, take
from trireme.interpret.split import Split
from trireme.interpret.tensor_state import marks_of, shard_of, with_marks
from trireme.interpret.torch_private import (
    DataDependentOutputException,
    DisableTorchFunction,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    apply_function,
)

DATA_DEPENDENT: tuple[type[Exception], ...] = (DataDependentOutputException, DynamicOutputShapeException)
"""What code raises on tensors without numbers where it asks for one."""


def has_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has contents, which those of planning and tracing have not."""
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


@contextmanager
def tracing() -> Iterator[None]:
    """Compute without numbers, and without being met by interpreters: shapes and number formats come out."""
    with DisableTorchFunction(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


class TokenFunction(Protocol):
    """What is done to tokens; ``tokens_cut`` says that tensor-parallel ranks hold different ones."""

    def __call__(self, hidden: Tensor, *choice: Tensor, tokens_cut: bool) -> Tensor:
        """Give one row for each row of ``hidden``."""
        ...

    def traced(self, hidden: Tensor) -> Tensor:
        """Give a result of the right shape and kind for a tensor that has no numbers."""
        ...


def run_experts(experts: TokenFunction, hidden: Tensor, *choice: Tensor, tokens_cut: bool = False) -> Tensor:
    """Run ``experts`` on tokens as one operation of torch, which interpreters meet by a rule of its own.

    Args:
        experts: What is done.
        hidden: Tokens in all dims but the last.
        choice: What belongs to the tokens, such as the experts chosen and their weights.
        tokens_cut: Whether the ranks of the tensor-parallel axis hold different tokens.
    """
    tensors = (hidden, *choice)
    if has_torch_function(tensors):
        result: Tensor = handle_torch_function(run_experts, tensors, experts, *tensors, tokens_cut=tokens_cut)
        return result
    if not has_numbers(hidden):
        return experts.traced(hidden)
    return experts(hidden, *choice, tokens_cut=tokens_cut)


def experts(call: Call) -> Any:
    """Keep tokens cut as they are, if their choice of experts is cut alike."""
    tensors = call.args[1:]
    shards = [shard_of(tensor) for tensor in tensors]
    first = shards[0]
    alike = all(shard is not None and first is not None and shard.split == first.split for shard in shards)
    if first is None or not alike or first.split.keeps_some or any(s.dim for s in shards if s):
        raise call.refuse(*tensors)
    # Ranks of the other axes hold different tokens anyway; those of this one hold the same unless they are cut.
    cut = {"tokens_cut": True} if call.interpreter.axis == "tp" else {}
    result = call.function(*call.args, **{**call.kwargs, **cut})
    return sharded(result, first, dim=0)


def any_tokens(tensor: Tensor) -> tuple[Tensor, Callable[[Any], Any]]:
    """Forget that a sequence is cut, for code to which a token is a token, and give what remembers it of a result.

    Code inside sees as many positions as this rank has. Shards of other axes stay what they are.
    """
    marks = marks_of(tensor)
    shard = marks.pop("cp", None)
    if shard is None or shard.dim == tensor.ndim - 1:
        return tensor, lambda result: result
    with DisableTorchFunction():
        tokens = with_marks(tensor.view_as(tensor), marks)

    def remembered(result: Any) -> Any:
        return with_marks(result, {"cp": shard}) if isinstance(result, Tensor) else result

    return tokens, remembered


def exchange_rows(rows: Tensor, line: Line, *, send: Sequence[int], receive: Sequence[int]) -> Tensor:
    """Send ``send[i]`` rows to rank i and give those that come in, by rank; backward sends gradients home."""
    received: Tensor = apply_function(_Exchange, rows, line, tuple(send), tuple(receive))
    return received


def exchange_counts(counts: Tensor, line: Line) -> Tensor:
    """Give what every rank says to this one; ``counts[i]`` is said to rank i."""
    if line.group is None or line.degree == 1:
        return counts
    line.count.add("all_to_all counts", counts[1:])
    heard = torch.empty_like(counts)
    dist.all_to_all_single(heard, counts.contiguous(), group=line.group)
    return heard


def take_tokens(tensor: Tensor, split: Split, line: Line) -> Tensor:
    """Take this rank's tokens of those that all ranks hold; backward gathers the gradients of all."""
    taken: Tensor = apply_function(_TakeTokens, tensor, split, line)
    return taken


def gather_tokens(tensor: Tensor, split: Split, line: Line) -> Tensor:
    """Make tokens whole on every rank; backward keeps this rank's share."""
    return gather(tensor, 0, split, line)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, line: Line, send: tuple[int, ...], receive: tuple[int, ...]) -> Tensor:
        ctx.place = line, send, receive
        return _exchanged(rows, line, send, receive, where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        line, send, receive = ctx.place
        return _exchanged(grads[0], line, receive, send, where="backward"), None, None, None


def _exchanged(rows: Tensor, line: Line, send: tuple[int, ...], receive: tuple[int, ...], *, where: str) -> Tensor:
    if line.group is None or line.degree == 1:
        return rows.clone()
    # Rows that stay here don't count as sent.
    line.count.add(f"all_to_all {where}", rows[send[line.rank] :])
    received = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send), group=line.group)
    return received


class _TakeTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: Split, line: Line) -> Tensor:
        ctx.place = split, line
        return take(tensor, 0, split, line.rank).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        split, line = ctx.place
        return line.all_gather(grads[0], 0, split, where="backward"), None, None
