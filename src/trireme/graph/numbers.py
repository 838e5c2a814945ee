"""A decoder that is known by a handful of numbers only, as published runs and articles give them."""

from __future__ import annotations

from dataclasses import dataclass

from trireme.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNumbers:
    """What decides a decoder's cost.

    ``gated``: feed-forward parts are ``down(act(gate) * up)`` with RMSNorm and no biases (Llama's form); without,
    they are ``down(act(up))`` with LayerNorm and biases (GPT's form). ``learned_positions``: rows of a position
    table; none means rotary positions. With ``num_experts`` every layer from ``num_dense_layers`` on routes each
    token to ``top_k`` experts of width ``d_expert``, beside a shared part of width ``d_shared``. ``window`` bounds
    the keys of every layer.
    """

    vocab_size: int
    num_layers: int
    d_model: int
    num_heads: int
    num_kv_heads: int | None = None
    head_width: int | None = None
    d_ffn: int | None = None
    gated: bool = False
    tied: bool = False
    learned_positions: int | None = None
    num_experts: int = 0
    num_dense_layers: int = 0
    top_k: int = 0
    d_expert: int = 0
    d_shared: int = 0
    window: int | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers against each other.

        Raises:
            ModelError: A count is below one, or heads don't divide.
        """
        for key in ("vocab_size", "num_layers", "d_model", "num_heads", "kv_heads", "ffn_width", "key_width"):
            if getattr(self, key) < 1:
                raise ModelError("graph.bad_count", model="decoder", key=key, value=getattr(self, key), least=1)
        if self.head_width is None and self.d_model % self.num_heads:
            self._refuse("num_heads", self.num_heads, "d_model", self.d_model)
        if self.num_heads % self.kv_heads:
            self._refuse("num_kv_heads", self.kv_heads, "num_heads", self.num_heads)
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise ModelError("graph.bad_top_k", top_k=self.top_k, num_experts=self.num_experts)

    @property
    def kv_heads(self) -> int:
        """Key/value heads: as many as query heads unless said."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def key_width(self) -> int:
        """Width of one head: its share of the model's unless said."""
        return self.d_model // self.num_heads if self.head_width is None else self.head_width

    @property
    def ffn_width(self) -> int:
        """Width of the dense feed-forward part: four times the model's unless said."""
        return 4 * self.d_model if self.d_ffn is None else self.d_ffn

    def _refuse(self, part_key: str, part: int, whole_key: str, whole: int) -> None:
        raise ModelError(
            "graph.not_divisible", model="decoder", part_key=part_key, part=part, whole_key=whole_key, whole=whole
        )
