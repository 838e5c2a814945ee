"""What is verified: a plain module, how it is called, its batches and its loss, as MODEL names them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.models import build_from_factory, find_factory
from trireme.train import Objective
from trireme.verify import hugging_face
from trireme.verify.batch import causal_batch, count_labels, find_vocab_size, next_token_loss, num_rows
from trireme.verify.stir import stir_constants

Batch = dict[str, Any]
BatchFn = Callable[[int, int, int], Mapping[str, Any]]

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module with everything that a training step needs of it.

    ``make_batch(seed, seqs, seq_len)`` gives a global batch. ``objective`` counts before any forward. ``seed``
    decides what dropout draws.
    ``notices`` say what was done to the module without being asked for.
    """

    module: nn.Module
    make_batch: BatchFn
    objective: Objective
    seed: int = 0
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How a subject is made; the same on every rank and in the process that compares.

    ``has_weights`` is False for a module of which only shapes count: no weights are read, looked at or
    converted.
    """

    model: str
    dtype: str = "fp32"
    seed: int = 0
    shrink: bool = False
    has_weights: bool = True

    def load(self) -> Subject:
        """Build the module in its number format, with its batches and its loss.

        Raises:
            ModelError: MODEL names nothing that can be built or called; the message says which and why.
        """
        if self.model.endswith(".json") or Path(self.model).is_dir():
            path = Path(self.model) if self.has_weights else _config_file(Path(self.model))
            module = hugging_face.build(path, seed=self.seed, shrink=self.shrink)
            beside: ModuleType | None = None
        else:
            if self.shrink:
                raise ModelError("verify.shrink_needs_config", model=self.model)
            beside = find_factory(self.model).module
            module = build_from_factory(self.model, {}, seed=self.seed)
        _check_trains(self.model, module)
        notices = hugging_face.make_comparable(module, dtype=self.dtype)
        if self.has_weights:
            module.to(DTYPES[self.dtype])
            stir_constants(module, seed=self.seed)
        subject = _with_loss(module, beside, dtype=DTYPES[self.dtype], notices=notices)
        return replace(subject, seed=self.seed)


def _config_file(path: Path) -> Path:
    """A folder's weights are read where the folder is named."""
    return path / "config.json" if path.is_dir() else path


def call(module: nn.Module, batch: Mapping[str, Any], *, kept_back: Collection[str] = ()) -> Any:
    """Give the module what its forward takes of the batch by name; one that takes none gets the token ids."""
    names = inspect.signature(module.forward).parameters
    taken = {name: batch[name] for name in names if name in batch and name not in kept_back}
    if "use_cache" in names and "use_cache" not in taken:
        taken["use_cache"] = False
    if not any(name in batch for name in taken):
        return module(batch["input_ids"], **taken)
    return module(**taken)


def summed_loss(objective: Objective) -> Callable[[Any, Mapping[str, Any]], tuple[Tensor, Any]]:
    """Give the whole objective as ``(outputs, batch) -> (sum, count)``: side terms are means, and weigh their count."""

    def summed(outputs: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        result = objective.loss_fn(outputs, batch)
        if objective.loss_reduction is not None:
            count: Any = objective.count(batch)
            loss_sum = result * count
        else:
            loss_sum, count = _pair(result)
        if objective.auxiliary is not None:
            loss_sum = loss_sum + objective.auxiliary(outputs, batch) * count
        return loss_sum, count

    return summed


def _check_trains(model: str, module: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError("verify.no_parameters", model=model, kind=type(module).__name__)


def _with_loss(module: nn.Module, beside: ModuleType | None, *, dtype: torch.dtype, notices: list[str]) -> Subject:
    """Take what the file defines; the rest is the default of a language model, or of what transformers knows."""
    defined = {name: getattr(beside, name, None) for name in ("batch", "loss", "count", "auxiliary")}
    for name, function in defined.items():
        if function is not None and not callable(function):
            raise ModelError("verify.not_callable", name=name, kind=type(function).__name__)
    make = defined["batch"] or hugging_face.batch_of(module) or _default_batch(module)
    # A module that is handed labels computes a loss of its own, which nobody asked for.
    called = call if defined["batch"] else partial(call, kept_back=("labels",))
    loss_fn = defined["loss"] or next_token_loss
    reduction = getattr(beside, "loss_reduction", None)
    objective = Objective(
        loss_fn=loss_fn,
        call=called,
        loss_reduction=reduction,
        count_fn=defined["count"] or _count_fn(defined, reduction, module, called),
        auxiliary=defined["auxiliary"],
    )
    return Subject(module=module, make_batch=_cast(make, dtype), objective=objective, notices=tuple(notices))


def _count_fn(
    defined: Mapping[str, Any], reduction: str | None, module: nn.Module, called: Callable[..., Any]
) -> Callable[[Mapping[str, Any]], int]:
    if reduction is not None:
        return num_rows
    return _counting(module, defined["loss"], called) if defined["loss"] else count_labels


def _default_batch(module: nn.Module) -> BatchFn:
    vocab_size = find_vocab_size(module, call)
    return lambda seed, seqs, seq_len: causal_batch(seed, seqs, seq_len, vocab_size=vocab_size)


def _counting(
    module: nn.Module, loss_fn: Callable[..., Any], called: Callable[..., Any]
) -> Callable[[Mapping[str, Any]], int]:
    """Ask the loss function itself: by contract its count depends on the batch alone, so any outputs will do.

    They come from a copy, for a module that is spread over ranks can't be called like this.
    """
    twin = copy.deepcopy(module).eval()

    def count(batch: Mapping[str, Any]) -> int:
        with torch.no_grad():
            return int(_pair(loss_fn(called(twin, batch), batch))[1])

    return count


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ModelError("verify.loss_form", returned=type(result).__name__)
    return result


def _cast(make: BatchFn, dtype: torch.dtype) -> BatchFn:
    """Bring floating inputs to the module's number format, and check that a batch is one."""

    def made(seed: int, seqs: int, seq_len: int) -> Batch:
        try:
            batch = make(seed, seqs, seq_len)
        except Exception as error:
            raise ModelError("verify.batch_failed", reason=f"{type(error).__name__}: {error}") from error
        if not isinstance(batch, Mapping) or not any(isinstance(value, Tensor) for value in batch.values()):
            raise ModelError("verify.batch_form", returned=type(batch).__name__)
        return {name: _as(value, dtype) for name, value in batch.items()}

    return made


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
