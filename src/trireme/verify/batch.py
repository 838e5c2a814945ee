"""Batches for a model whose author gave none, and a rank's part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.plan import Layout, coordinate

IGNORED = -100


def causal_batch(seed: int, seqs: int, seq_len: int, *, vocab_size: int) -> dict[str, Tensor]:
    """Give token ids and the ids that follow them, rows of unequal counts: each is ignored up to a place of its own.

    Shapes:
        ``input_ids``, ``labels``: ``[B, T]``.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab_size, (seqs, seq_len + 1), generator=generator)
    first = torch.randint(0, seq_len, (seqs, 1), generator=generator)
    labels = ids[:, 1:].masked_fill(torch.arange(seq_len) < first, IGNORED)
    return {"input_ids": ids[:, :-1].contiguous(), "labels": labels}


def next_token_loss(outputs: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Give the summed cross-entropy of the labels that aren't -100, and their number."""
    logits = logits_of(outputs)
    labels = batch["labels"]
    if logits.shape[: labels.ndim] != labels.shape:
        raise ModelError("verify.logits_shape", logits=list(logits.shape), labels=list(labels.shape))
    loss_sum = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )
    return loss_sum, (labels != IGNORED).sum()


def count_labels(batch: Mapping[str, Any]) -> int:
    """Return the labels that aren't -100."""
    return int((batch["labels"] != IGNORED).sum())


def logits_of(outputs: Any) -> Tensor:
    """Take the logits out of what a module returned.

    Raises:
        ModelError: There are none.
    """
    found = outputs
    if not isinstance(found, Tensor):
        found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, Sequence) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor) or found.ndim < 2:
        raise ModelError("verify.no_logits", returned=type(outputs).__name__)
    return found


def find_vocab_size(module: nn.Module, call: Callable[[nn.Module, Mapping[str, Any]], Any]) -> int:
    """Ask a language model for its vocabulary: the width of the logits it gives for token id 0.

    Raises:
        ModelError: It can't be called with token ids, or returns no logits.
    """
    training = module.training
    ids = torch.zeros(1, 4, dtype=torch.long)
    try:
        with torch.no_grad():
            outputs = call(module.eval(), {"input_ids": ids})
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError("verify.needs_batch", kind=type(module).__name__, reason=reason) from error
    finally:
        module.train(training)
    logits = logits_of(outputs)
    rows = [each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)]
    # Two classes are no vocabulary: ids must have a row in the first table too.
    return min([logits.shape[-1], *rows[:1]])


def part_of(batch: Mapping[str, Any], layout: Layout, *, rank: int) -> dict[str, Any]:
    """Give the rows of a global batch that are this rank's; the first ranks have one more where they don't divide."""
    place = coordinate(layout, rank)
    index = place.dp_replicate * layout.dp_shard + place.dp_shard
    first, last = _rows(num_rows(batch), parts=layout.dp, index=index)
    return {name: value[first:last] if _has_rows(value) else value for name, value in batch.items()}


def num_rows(batch: Mapping[str, Any]) -> int:
    """Return the samples of a batch, dim 0 of its tensors."""
    return int(next(value for value in batch.values() if _has_rows(value)).shape[0])


def _rows(count: int, *, parts: int, index: int) -> tuple[int, int]:
    each, extra = divmod(count, parts)
    first = index * each + min(index, extra)
    return first, first + each + (index < extra)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
