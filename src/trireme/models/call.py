"""Calling a module whose author we don't know: give what its forward takes, get logits back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.models.precision import module_device
from trireme.words import say

_OPTIONAL = ("position_ids", "document_ids", "attention_mask")
_LENGTHS = (13, 9)
"""Two documents of unequal, odd lengths: neither fills a block or mirrors the other."""

_LEAK_RATIO = 1e-3
_LEAK_RATIO_16_BIT = 3e-2
"""Largest change of logits, over their spread, that rounding explains (fp32 measured 1e-6, bf16 4e-3)."""


def call_model(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Give the module's logits ``[B, T, V]`` for ``batch["input_ids"]``.

    ``position_ids``, ``document_ids`` and ``attention_mask`` are passed on where the batch has them and
    ``forward`` takes them. A Hugging Face module is called without its cache: it keeps packed documents
    apart from restarting positions, but only without a cache and without an attention mask.

    Raises:
        ModelError: It returned something else than logits.
    """
    taken = forward_inputs(module)
    extra: dict[str, Any] = {taken[key]: batch[key] for key in _OPTIONAL if key in batch and key in taken}
    if "use_cache" in taken:
        extra["use_cache"] = False
    return logits_of(module, module(batch["input_ids"], **extra), rows=batch["input_ids"].shape)


def logits_of(module: nn.Module, outputs: object, *, rows: torch.Size) -> Tensor:
    """Take the logits out of what a module returned.

    Raises:
        ModelError: There are none.
    """
    found = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, tuple) and outputs:
        found = outputs[0]
    if isinstance(found, Tensor) and found.ndim == 3 and found.shape[:2] == rows:
        return found
    what = f"{list(found.shape)}" if isinstance(found, Tensor) else type(outputs).__name__
    raise ModelError("model.outputs_unlike_logits", kind=type(module).__name__, found=what)


def forward_inputs(module: nn.Module) -> Mapping[str, str]:
    """Map what a module's forward takes to its parameters' names; a shape suffix (``_BT``) doesn't count."""
    return _inputs_of(module.forward)


@lru_cache(maxsize=64)
def _inputs_of(forward: Callable[..., Any]) -> Mapping[str, str]:
    return {name.removesuffix("_BT"): name for name in inspect.signature(forward).parameters}


@torch.no_grad()
def check_isolation(module: nn.Module, *, vocab_size: int, tolerance_ratio: float | None = None) -> float:
    """Run two documents packed in a row and each alone, and return the largest difference of logits.

    What the module claims is not asked: a recurrent layer that takes ``document_ids`` and ignores them
    shows here. Parameters that are all zero (an output that starts silent) are set to ones for the trial,
    lest nothing could be seen to leak.

    Args:
        module: Any causal language model; its mode and weights are as before afterwards.
        vocab_size: Token ids tried are below this.
        tolerance_ratio: Largest difference over the spread of the logits. Default: by the module's format.

    Raises:
        ModelError: The difference is larger; the message names the module and what to set.
    """
    device = module_device(module)
    documents = _two_documents(vocab_size, device)
    training = module.training
    silent = [parameter for parameter in module.parameters() if parameter.numel() and not bool(parameter.any())]
    try:
        module.eval()
        for parameter in silent:
            parameter.fill_(1.0)
        packed = call_model(module, pack(documents)).float()
        alone = torch.cat([call_model(module, pack([document])) for document in documents], dim=1).float()
    finally:
        module.train(training)
        for parameter in silent:
            parameter.zero_()
    difference = float((packed - alone).abs().max())
    limit = tolerance_ratio or _default_ratio(module)
    if not difference <= limit * float(alone.std()):
        kind = type(module).__name__
        raise ModelError("model.no_isolation", kind=kind, difference=f"{difference:.3g}", takes=_takes(module))
    return difference


def pack(documents: list[Tensor]) -> dict[str, Tensor]:
    """Lay documents (each ``[T]``) end to end in one row, as the data stream does."""
    parts = [torch.arange(len(document), device=document.device) for document in documents]
    numbers = [torch.full_like(part, number) for number, part in enumerate(parts)]
    columns = {"input_ids": documents, "position_ids": parts, "document_ids": numbers}
    return {key: torch.cat(values)[None] for key, values in columns.items()}


def _two_documents(vocab_size: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (length,), generator=generator).to(device) for length in _LENGTHS]


def _default_ratio(module: nn.Module) -> float:
    sixteen_bit = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in module.parameters())
    return _LEAK_RATIO_16_BIT if sixteen_bit else _LEAK_RATIO


def _takes(module: nn.Module) -> str:
    names = [key for key in ("document_ids", "position_ids") if key in forward_inputs(module)]
    return say("model.takes_some", names=", ".join(names)) if names else say("model.takes_nothing")
