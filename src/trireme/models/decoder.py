"""The reference decoder: a Llama in plain single-device code, to be read in one sitting.

Names are those of the released Llama weights (``layers.0.self_attn.q_proj.weight``), so patterns people
know for sharding and adapters apply. What is fused, packed or cached is decided by the functions called
here, never by this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.graph import DecoderShape
from trireme.models.attention import attend, attend_to_cache
from trireme.models.cache import KeyValueCache
from trireme.models.dropout import CountedDropout, DropoutClock
from trireme.models.initial import initial_std
from trireme.models.rms_norm import RMSNorm
from trireme.models.rotary import RotaryTable, rotate
from trireme.models.visibility import Visibility


class SelfAttention(nn.Module):
    """Grouped-query attention: H query heads share G key/value heads.

    Source:
        Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models", section 2.2.
    """

    def __init__(self, shape: DecoderShape, *, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_width = shape.head_width
        kv_width = shape.num_kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.k_proj = nn.Linear(shape.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def forward(
        self, x_BTD: Tensor, table: Tensor, visibility: Visibility, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Mix each token with those it may see."""
        q_BTHK = rotate(self._heads(self.q_proj(x_BTD)), table)
        k_BTGK = rotate(self._heads(self.k_proj(x_BTD)), table)
        v_BTGK = self._heads(self.v_proj(x_BTD))
        if cache is None:
            mixed_BTHK = attend(q_BTHK, k_BTGK, v_BTGK, visibility)
        else:
            mixed_BTHK = attend_to_cache(q_BTHK, *cache.extend(self.layer, k_BTGK, v_BTGK))
        mixed_BTD: Tensor = self.o_proj(mixed_BTHK.flatten(2))
        return mixed_BTD

    def _heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (-1, self.head_width))


class FeedForward(nn.Module):
    """SwiGLU.

    Source:
        Shazeer 2020, "GLU Variants Improve Transformer", equation 6.
    """

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.d_model, shape.d_ffn, bias=False)
        self.up_proj = nn.Linear(shape.d_model, shape.d_ffn, bias=False)
        self.down_proj = nn.Linear(shape.d_ffn, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each token alone."""
        gated_BTF = F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)
        out_BTD: Tensor = self.down_proj(gated_BTF)
        return out_BTD


class Layer(nn.Module):
    """Attention, then feed-forward, each read through a norm and added to the residual stream."""

    def __init__(self, shape: DecoderShape, *, layer: int, clock: DropoutClock) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.d_model, eps=shape.norm_eps)
        self.self_attn = SelfAttention(shape, layer=layer)
        self.post_attention_layernorm = RMSNorm(shape.d_model, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)
        self.attn_dropout = CountedDropout(shape.dropout, site=f"layers.{layer}.attn", clock=clock)
        self.mlp_dropout = CountedDropout(shape.dropout, site=f"layers.{layer}.mlp", clock=clock)

    def forward(
        self, x_BTD: Tensor, table: Tensor, visibility: Visibility, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Give the residual stream after this layer; its dtype is the embedding's."""
        mixed_BTD = self.self_attn(self.input_layernorm(x_BTD), table, visibility, cache)
        x_BTD = x_BTD + self.attn_dropout(mixed_BTD)
        out_BTD: Tensor = x_BTD + self.mlp_dropout(self.mlp(self.post_attention_layernorm(x_BTD)))
        return out_BTD


class Decoder(nn.Module):
    """Token ids to logits of the next token.

    A tied model has no head of its own: the embedding's weight is used twice, so no copy, save or
    materialisation can untie it.
    """

    def __init__(self, shape: DecoderShape, *, dropout_seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        clock = DropoutClock(seed=dropout_seed)
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape, layer=layer, clock=clock) for layer in range(shape.num_layers))
        self.norm = RMSNorm(shape.d_model, eps=shape.norm_eps)
        self.lm_head = None if shape.tie_embeddings else nn.Linear(shape.d_model, shape.vocab_size, bias=False)
        self.rotary = RotaryTable(head_width=shape.head_width, max_seq_len=shape.max_seq_len, theta=shape.rope_theta)

    def init_weights(self) -> None:
        """Fill every parameter with torch's generator; on meta it tells how, and numbers follow from seed and name."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=initial_std(name, num_layers=self.shape.num_layers))

    def forward(
        self,
        input_ids_BT: Tensor,
        position_ids_BT: Tensor | None = None,
        document_ids_BT: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Give logits ``[B, T, V]``.

        Args:
            input_ids_BT: Tokens.
            position_ids_BT: Place of each token in its document. Default: its place in the row.
            document_ids_BT: Document of each token, -1 on padding; documents are blind to each other.
                Default: each row is one document.
            cache: Tokens already read; the new ones come after them. Not with packed rows.

        Raises:
            ModelError: The row is longer than the model's context.
        """
        seen = 0 if cache is None else cache.num_tokens
        num_tokens = seen + input_ids_BT.shape[1]
        if num_tokens > self.shape.max_seq_len:
            raise ModelError("model.input_too_long", tokens=num_tokens, max_seq_len=self.shape.max_seq_len)
        if position_ids_BT is None:
            table = self.rotary.first(num_tokens, device=input_ids_BT.device)[:, seen:]
        else:
            table = self.rotary.at(position_ids_BT)
        x_BTD = self.embed_tokens(input_ids_BT)
        visibility = Visibility(document_ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, table, visibility, cache)
        if cache is not None:
            cache.advance(input_ids_BT.shape[1])
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits_BTV: Tensor = F.linear(self.norm(x_BTD), head.weight)
        return logits_BTV

    def new_cache(self, *, max_tokens: int | None = None) -> KeyValueCache:
        """Give an empty cache for this model."""
        return KeyValueCache(num_layers=self.shape.num_layers, max_tokens=max_tokens or self.shape.max_seq_len)


def meta_decoder(shape: DecoderShape) -> Decoder:
    """Give a decoder without storage, to count or to materialise later."""
    with torch.device("meta"):
        return Decoder(shape)
