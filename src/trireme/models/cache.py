"""Keys and values of the tokens already read, so that generation reads each token once."""

from __future__ import annotations

from torch import Tensor


class KeyValueCache:
    """Room for ``max_tokens`` positions in every layer, filled from the left.

    All rows advance together: each forward pass appends the same number of tokens to each row.
    """

    def __init__(self, *, num_layers: int, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def extend(self, layer: int, k_BTGK: Tensor, v_BTGK: Tensor) -> tuple[Tensor, Tensor]:
        """Append to ``layer`` and return all its keys and values so far, ``[B, S, G, K]``.

        ``advance`` moves on once all layers have appended.
        """
        end = self.num_tokens + k_BTGK.shape[1]
        assert end <= self.max_tokens, "the caller keeps within the context"
        keys = self._appended(self._keys, layer, k_BTGK)
        values = self._appended(self._values, layer, v_BTGK)
        return keys[:, :end], values[:, :end]

    def advance(self, num_tokens: int) -> None:
        """Count the tokens that every layer has appended."""
        self.num_tokens += num_tokens

    def _appended(self, store: list[Tensor | None], layer: int, new_BTGK: Tensor) -> Tensor:
        held = store[layer]
        if held is None:
            B, _, G, K = new_BTGK.shape
            held = new_BTGK.new_zeros(B, self.max_tokens, G, K)
            store[layer] = held
        held[:, self.num_tokens : self.num_tokens + new_BTGK.shape[1]] = new_BTGK
        return held
