"""What a Llama-style decoder costs, from its shape alone: parameters and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Every number that decides a reference decoder; two equal shapes are the same model."""

    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_ffn: int
    max_seq_len: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    dropout: float = 0.0

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.d_model // self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters by group; a tied head counts once, as embedding."""

    embedding: int
    attention: int
    feed_forward: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.attention + self.feed_forward + self.norms + self.head

    def by_group(self) -> dict[str, int]:
        """Return ``{group: parameters}`` in the order data flows."""
        return {
            "embedding": self.embedding,
            "attention": self.attention,
            "feed_forward": self.feed_forward,
            "norms": self.norms,
            "head": self.head,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """FLOPs of forward and backward, with the formula that gave them.

    Units: ``value_flops`` is per token; a multiply and an add are two FLOPs.
    """

    value_flops: float
    formula: str


def count_params(shape: DecoderShape) -> ParamCounts:
    """Count a decoder's parameters by group, exactly."""
    attention = 2 * shape.d_model * shape.head_width * (shape.num_heads + shape.num_kv_heads)
    return ParamCounts(
        embedding=shape.vocab_size * shape.d_model,
        attention=shape.num_layers * attention,
        feed_forward=shape.num_layers * 3 * shape.d_model * shape.d_ffn,
        norms=(2 * shape.num_layers + 1) * shape.d_model,
        head=0 if shape.tie_embeddings else shape.vocab_size * shape.d_model,
    )


def count_matmul_params(shape: DecoderShape) -> int:
    """Count the parameters every token is multiplied with: the head in (tied or not), the embedding lookup out."""
    counts = count_params(shape)
    return counts.attention + counts.feed_forward + shape.vocab_size * shape.d_model


def flops_per_token(shape: DecoderShape, *, seq_len: int, causal: bool = True) -> FlopCount:
    """Give the FLOPs a token costs in forward and backward, recomputation not counted.

    ``causal`` counts the half of the attention scores that a causal model needs; ``causal=False``
    is the older convention that counts all of them, for comparison with published figures.

    Source:
        Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", appendix
        (without its recomputation term); the causal half as in Megatron-LM since 2025.
    """
    per_pair = 6 if causal else 12
    matmul = 6 * count_matmul_params(shape)
    attention = per_pair * shape.num_layers * seq_len * shape.num_heads * shape.head_width
    return FlopCount(
        value_flops=float(matmul + attention),
        formula=f"6*[L*(2*D*H*K + 2*D*G*K + 3*D*F) + V*D] + {per_pair}*L*S*H*K ({'causal' if causal else 'full'})",
    )
