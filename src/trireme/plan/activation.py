"""What a decoder keeps for its backward pass, tensor by tensor, without building it.

Counted from the forward code of the reference decoder (``models.decoder``): each product keeps its input,
each norm its input, attention its queries, keys, values and result, SwiGLU four tensors of the feed-forward
width. Nothing here is fitted to a measurement; a test compares it with what autograd really keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trireme.graph import DecoderShape

Kernels = Literal["host", "device"]
"""``host``: the hand-written passes that a CPU takes. ``device``: the library's fused attention."""

_STATISTICS_BYTES = 4
_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes a token of the micro-batch.

    ``layer``: one layer. ``ends``: embedding indices, last norm, labels. ``logits``: the logits; while the
    loss is differentiated their gradient is alive beside them, in the same format.
    """

    layer: int
    ends: int
    logits: int

    def per_token(self, num_layers: int) -> int:
        """All layers and the ends, without logits."""
        return num_layers * self.layer + self.ends


def activation_bytes(
    shape: DecoderShape, *, compute_bytes: int, stream_bytes: int, kernels: Kernels = "host"
) -> ActivationBytes:
    """Count what training keeps per token.

    Args:
        shape: The decoder.
        compute_bytes: Of one number in matrix products: 4 in fp32, 2 in bf16 and fp16.
        stream_bytes: Of one number in the residual stream: the embedding's format.
        kernels: Which code runs.

    Source:
        The method is that of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
        Models", section 4.1; the counts are this decoder's own.
    """
    D, F = shape.d_model, shape.d_ffn
    queries, keys = shape.num_heads * shape.head_width, shape.num_kv_heads * shape.head_width
    norm = _norm_bytes(D, stream_bytes=stream_bytes, compute_bytes=compute_bytes, kernels=kernels)
    attention = (queries + 2 * keys + queries) * compute_bytes
    if kernels == "device":
        attention += shape.num_heads * _STATISTICS_BYTES  # log-sum-exp of each query
    feed_forward = 4 * F * compute_bytes
    dropout = 2 * D * compute_bytes if shape.dropout else 0
    return ActivationBytes(
        layer=2 * norm + attention + feed_forward + dropout,
        ends=norm + 2 * _INDEX_BYTES,
        logits=shape.vocab_size * compute_bytes,
    )


def _norm_bytes(width: int, *, stream_bytes: int, compute_bytes: int, kernels: Kernels) -> int:
    """A norm's input (the residual stream), its statistics, and its result, which the next product keeps."""
    kept = width * stream_bytes + _STATISTICS_BYTES + width * compute_bytes
    if kernels == "device":  # the plain formula keeps the scaled vector in fp32, and a cast of a 16-bit input
        kept += width * _STATISTICS_BYTES + (width * _STATISTICS_BYTES if stream_bytes == 2 else 0)
    return kept
