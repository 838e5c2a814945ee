"""Counting the operations of a forward that only pretends to run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The matrix products of what runs inside, a multiply and an add counted as two."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in _MISSING:
            self.flops += int(_MISSING[packet](*args))
        elif packet in _FORMULAS:
            formula: Any = _FORMULAS[packet]
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _grouped(rows: Tensor, weights: Tensor, *_: Any) -> int:
    return int(2 * rows.numel() * weights.shape[-1])


_FORMULAS: Any = flop_registry
_MISSING: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._grouped_mm: _grouped,
}
"""What torch's own table lacks."""
