"""How long the operations of one layer take a rank, by what tensor, context and expert parallelism leave to it.

Tensor parallelism is read off the operations themselves: a product of whole tokens is cut by columns, a product of
what such a cut left is cut by rows, and where the two meet lies a collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trireme.cluster import (
    ceiling_of,
    estimate_all_gather,
    estimate_all_reduce,
    estimate_all_to_all,
    estimate_p2p,
)
from trireme.plan.time_place import Place
from trireme.plan.time_product import product_work
from trireme.plan.time_work import NO_WORK, Passes, Work

if TYPE_CHECKING:
    from trireme.graph import AttentionShape, Block, Op, Tensor

_REPLICATED = ("_a_proj", "kv_a", "q_a")
"""Parts of names of narrow projections that every rank repeats (the latents of multi-head latent attention)."""

_EAGER_SCORE_BYTES = 22
"""Bytes moved for each score by plain attention forward: scores out, scaled, masked, softmax, dropout, back in."""

_EXPERT_KERNELS = 200
"""Launches, and waits of the host for token counts, that sort tokens by expert and back; captured graphs have none."""

_RECURRENCE = 1.5
"""Traffic of an elementwise operation's backward over its forward: the gradient comes in beside what was kept."""


def block_passes(block: Block, place: Place, *, narrow: bool = True) -> Passes:
    """Give the work of one layer, or of what stands before or after the layers.

    ``narrow``: its products run in the 8-bit or 4-bit format, where one is asked for.
    """
    total = Passes()
    for part in _op_passes(block, place, narrow=narrow and place.narrow != place.wide):
        total = Passes(*(left.plus(right) for left, right in zip(total, part, strict=True)))
    return total


def _op_passes(block: Block, place: Place, *, narrow: bool) -> Iterator[Passes]:
    cut: set[str] = set()  # tensors of which each tensor-parallel rank has its own columns
    gathered: set[str] = set()
    for op in block.ops:
        is_cut = any(tensor.name in cut for tensor in op.inputs)
        match op.kind:
            case "linear" | "convolution":
                is_kept_whole = _is_kept_whole(op)
                yield from _linear(op, place, is_cut=is_cut, is_whole=is_kept_whole, gathered=gathered, narrow=narrow)
                is_cut = not is_cut and not is_kept_whole
            case "attention" if op.attention is not None:
                yield attention_passes(op.attention, place)
                is_cut = True
            case "experts":
                yield from _experts(op, place, narrow=narrow)
                is_cut = False
            case "router":
                yield from _router(op, place)
            case "loss":
                yield _loss(op, place)
            case "parameter":
                continue
            case _:
                yield _traffic(op, place, is_cut=is_cut)
        if is_cut and op.output is not None and place.tp > 1:
            cut.add(op.output.name)


def _is_kept_whole(op: Op) -> bool:
    """Whether every rank repeats the product: narrow latents, and gates of one number."""
    is_gate = op.output is not None and op.output.width < 2
    return is_gate or any(part in op.name for part in _REPLICATED)


def _linear(
    op: Op, place: Place, *, is_cut: bool, is_whole: bool, gathered: set[str], narrow: bool
) -> Iterator[Passes]:
    tp = 1 if is_whole else place.tp
    for matmul in op.matmuls:
        rows = _rows(op.inputs[0], place) * matmul.times
        inner, outer = (matmul.inner // tp, matmul.outer) if is_cut else (matmul.inner, matmul.outer // tp)
        yield product_work(rows, max(1, inner), max(1, outer), place, narrow=narrow)
    if tp == 1 or op.output is None:
        return
    if is_cut:
        yield _row_exchange(op.output.width, place)
    elif op.inputs[0].name not in gathered:
        gathered.add(op.inputs[0].name)
        yield _column_exchange(op.inputs[0].width, place)


def _rows(tensor: Tensor, place: Place) -> int:
    from trireme.graph import count_rows

    return max(1, count_rows(tensor.rows, place.load) // (place.cp if tensor.rows == "tokens" else 1))


def _column_exchange(width: int, place: Place) -> Passes:
    """Before a cut by columns: the gradient of the shared input is summed; with sp the input is gathered first."""
    whole_bytes = float(place.tokens * width * place.wide_bytes)
    if not place.sp:
        reduced = estimate_all_reduce(whole_bytes, span=place.tensor_span).time_s
        return Passes(input_grad=Work(tensor_s=reduced, kernels=1))
    gather = Work(tensor_s=estimate_all_gather(whole_bytes, span=place.tensor_span).time_s, kernels=1)
    # The gathered input isn't kept: it is gathered again for the weights' gradient.
    return Passes(forward=gather, input_grad=gather, weight_grad=gather)


def _row_exchange(width: int, place: Place) -> Passes:
    """After a cut by rows: partial results are summed; with sp the gradient is gathered on the way back."""
    whole_bytes = float(place.tokens * width * place.wide_bytes)
    if not place.sp:
        return Passes(forward=Work(tensor_s=estimate_all_reduce(whole_bytes, span=place.tensor_span).time_s, kernels=1))
    scatter = Work(tensor_s=estimate_all_gather(whole_bytes, span=place.tensor_span).time_s, kernels=1)
    return Passes(forward=scatter, input_grad=scatter)


def attention_passes(shape: AttentionShape, place: Place) -> Passes:
    """Scores, softmax and weighted sum, and what context parallelism sends for them."""
    heads = max(1, shape.heads // place.tp)
    exchange = _context_exchange(shape, place)
    if place.eager_attention:
        core = _eager_attention(shape, place, heads=heads)
    else:
        pairs = shape.count_pairs(place.load, count="causal") / place.cp
        flops = 2.0 * place.load.seqs * pairs * heads * (shape.qk_width + shape.v_width)
        peak = place.device.peak_flops_per_s[place.wide]
        seconds = flops / (peak * ceiling_of(place.device, dtype=place.wide)[0])
        # Backward computes the scores again: five products where forward has two.
        core = Passes(
            forward=Work(attention_s=seconds, kernels=1),
            input_grad=Work(attention_s=2.5 * seconds, kernels=2),
        )
    forward, back = core.forward.plus(exchange), core.input_grad.plus(exchange, times=2.0)
    return Passes(forward=forward, input_grad=back, weight_grad=core.weight_grad, repeated=core.forward)


def _eager_attention(shape: AttentionShape, place: Place, *, heads: int) -> Passes:
    """Two batched products and the passes over the scores between them."""
    keys = place.load.memory_len if shape.cross else place.load.seq_len
    queries = max(1, place.load.seq_len // place.cp)
    batch = place.load.seqs * heads
    scores = product_work(queries, shape.qk_width, keys, place, narrow=False, batch=batch, is_weight=False)
    mixed = product_work(queries, keys, shape.v_width, place, narrow=False, batch=batch, is_weight=False)
    moved = batch * queries * keys * _EAGER_SCORE_BYTES * place.wide_bytes / 2
    passes = Work(traffic_s=moved / place.device.memory_bytes_per_s, kernels=1 if place.fused else 5)
    forward = scores.forward.plus(mixed.forward).plus(passes)
    back = scores.input_grad.plus(scores.weight_grad).plus(mixed.input_grad).plus(mixed.weight_grad).plus(passes)
    return Passes(forward=forward, input_grad=back)


def _context_exchange(shape: AttentionShape, place: Place) -> Work:
    """Keys and values go round the ring or are gathered; under Ulysses queries and results change hands as well."""
    if place.cp == 1:
        return NO_WORK
    kv_width = max(1, shape.kv_heads // place.tp) * (shape.qk_width + shape.v_width)
    if place.ring:
        part = float(place.tokens * kv_width * place.wide_bytes)
        return Work(context_s=(place.cp - 1) * estimate_p2p(part, span=place.context_span).time_s, kernels=place.cp)
    heads_width = 2 * max(1, shape.heads // place.tp) * shape.qk_width
    moved = float(place.tokens * (heads_width + kv_width) * place.wide_bytes)
    return Work(context_s=estimate_all_to_all(moved, span=place.context_span).time_s, kernels=2)


def _experts(op: Op, place: Place, *, narrow: bool) -> Iterator[Passes]:
    assert op.experts is not None
    shape, width = op.experts, op.inputs[0].width
    is_split = place.tp > 1 and place.expert_tp == 1  # each tensor-parallel rank sends its own tokens
    sent = place.tokens / (place.tp if is_split else 1)
    local = max(1, shape.num_experts // place.ep)
    rows = max(1, round(sent * place.ep * shape.top_k / shape.num_experts))
    for matmul in op.matmuls:
        is_inner = matmul.inner != width
        cut = place.tp if not is_split else 1
        inner, outer = (matmul.inner // cut, matmul.outer) if is_inner else (matmul.inner, matmul.outer // cut)
        yield product_work(rows, max(1, inner), max(1, outer), place, narrow=narrow, batch=local)
    yield _expert_traffic(sent * shape.top_k, width, max(m.outer for m in op.matmuls), place)
    if place.ep > 1:
        share = place.tp if place.sp or is_split else 1  # with sp each rank sends only its own part
        moved = place.tokens / share * shape.top_k * width * place.wide_bytes
        exchange = estimate_all_to_all(moved, span=place.expert_span).time_s
        there_and_back = Work(expert_s=2 * exchange, kernels=6)
        yield Passes(forward=there_and_back, input_grad=there_and_back)
    if place.tp > 1 and not is_split:
        yield _column_exchange(width, place)
        yield _row_exchange(width, place)


def _expert_traffic(rows: float, width: int, hidden: int, place: Place) -> Passes:
    """Tokens put in order of experts and back, and the gate between the two products."""
    cut = place.tp if place.expert_tp > 1 else 1
    moved = rows * place.wide_bytes * (4 * width + 1.5 * hidden / cut)
    forward = Work(traffic_s=moved / place.device.memory_bytes_per_s, kernels=_EXPERT_KERNELS)
    return Passes(forward=forward, input_grad=Work(*(_RECURRENCE * part for part in forward)))


def _router(op: Op, place: Place) -> Iterator[Passes]:
    rows = max(1, place.tokens // (place.tp if place.sp else 1))
    for matmul in op.matmuls:
        yield product_work(rows, matmul.inner, matmul.outer, place, narrow=False)
        moved = rows * matmul.outer * 4.0 * 4
        yield Passes(
            forward=Work(traffic_s=moved / place.device.memory_bytes_per_s, kernels=8),
            input_grad=Work(traffic_s=moved / place.device.memory_bytes_per_s, kernels=4),
        )


def _loss(op: Op, place: Place) -> Passes:
    """Cross-entropy over logits: in fp32 step by step, or in one kernel that works in place."""
    logits = _rows(op.inputs[0], place) * op.inputs[0].width / place.tp
    bytes_each = 8 if place.fused else 30
    moved = logits * bytes_each / place.device.memory_bytes_per_s
    return Passes(forward=Work(traffic_s=moved, kernels=6), input_grad=Work(traffic_s=moved / 2, kernels=2))


def _traffic(op: Op, place: Place, *, is_cut: bool) -> Passes:
    """Norms, activations, residuals, rotary positions, lookups: bytes in and out."""
    if op.output is None:
        return Passes()
    numbers = op.output.width + sum(tensor.width for tensor in op.inputs if op.kind != "embedding")
    if op.kind == "embedding":
        numbers *= 2
    share = place.tp if is_cut or place.sp else 1
    moved = _rows(op.output, place) * numbers / share * place.wide_bytes
    kernels = 1 if place.fused else 4 if op.kind == "norm" else 2
    forward = Work(traffic_s=moved / place.device.memory_bytes_per_s, kernels=kernels)
    is_sum = op.kind == "elementwise" and op.name.endswith("residual")
    back = forward if is_sum else Work(*(_RECURRENCE * part for part in forward))
    return Passes(forward=forward, input_grad=back)
