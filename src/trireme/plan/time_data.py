"""What data parallelism and ZeRO send, and how much of it shows: buckets leave while the backward still runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trireme.cluster import Span, axis_span, estimate_all_gather, estimate_all_reduce
from trireme.plan.time_layer import LocalParams
from trireme.plan.time_place import Place

if TYPE_CHECKING:
    from trireme.cluster import Cluster
    from trireme.plan.layout import Layout


def exposed_s(exchange_s: float, *, window_s: float, buckets: int) -> float:
    """Give what shows of an exchange in equal buckets that become ready evenly through ``window_s`` of compute.

    The last bucket is ready when the compute ends, so at least its time shows; where buckets are slower than the
    compute that makes them, they queue.
    """
    count = max(1, buckets)
    return max(exchange_s / count, exchange_s - window_s * (count - 1) / count)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpans:
    """Groups of data parallelism: ``shard`` shares out state, ``replicate`` holds copies of it.

    ``expert_shard`` and ``expert_replicate`` are the same for experts, of which there are fewer copies.
    """

    shard: Span
    replicate: Span
    expert_shard: Span
    expert_replicate: Span


def data_spans(layout: Layout, *, cluster: Cluster, expert_tp: int = 1) -> DataSpans:
    """Give the groups over which gradients of a layout are summed and its state is sharded.

    Ranks that share a sequence hold the same parameters, so cp belongs to them.
    """
    inner = layout.dp_shard * layout.cp if layout.zero else 1
    outer = layout.dp_replicate if layout.zero else layout.dp * layout.cp
    inside = layout.dp_shard * layout.cp * layout.tp  # ranks of a stage, replicas apart
    spread = layout.ep * expert_tp
    copies = max(1, inside // spread) if inside % spread == 0 else 1
    expert_inner = copies if layout.zero else 1
    expert_outer = layout.dp_replicate if layout.zero else layout.dp_replicate * copies
    return DataSpans(
        shard=axis_span(degree=inner, stride=layout.tp, cluster=cluster),
        replicate=axis_span(degree=outer, stride=layout.tp * inner, cluster=cluster),
        expert_shard=axis_span(degree=expert_inner, stride=spread, cluster=cluster),
        expert_replicate=axis_span(degree=expert_outer, stride=spread * expert_inner, cluster=cluster),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataExchange:
    """Seconds to reduce the gradients of some parameters, and to gather the parameters from their shards."""

    reduce_s: float
    gather_s: float


def data_exchange(params: LocalParams, *, spans: DataSpans, place: Place, parameter_bytes: int = 2) -> DataExchange:
    """Give both exchanges for the parameters that a rank works with."""
    dense = _exchange(params.dense, spans.shard, spans.replicate, place=place, parameter_bytes=parameter_bytes)
    if not params.experts:
        return dense
    experts = _exchange(
        params.experts, spans.expert_shard, spans.expert_replicate, place=place, parameter_bytes=parameter_bytes
    )
    return DataExchange(reduce_s=dense.reduce_s + experts.reduce_s, gather_s=dense.gather_s + experts.gather_s)


def _exchange(numbers: float, shard: Span, replicate: Span, *, place: Place, parameter_bytes: int) -> DataExchange:
    gradients = numbers * place.gradient_bytes
    reduce_s = estimate_all_gather(gradients, span=shard).time_s
    reduce_s += estimate_all_reduce(gradients / shard.size, span=replicate).time_s
    return DataExchange(reduce_s=reduce_s, gather_s=estimate_all_gather(numbers * parameter_bytes, span=shard).time_s)
