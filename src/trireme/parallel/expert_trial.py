"""Whether a module's experts may be dealt out is tried out, on a small copy with made-up numbers.

The whole module, and its experts in two halves, each given only the rows of its own: if the results and their
gradients agree, nothing in the module's code ties experts or tokens together.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trireme.parallel.expert_stacked import as_local

_ERROR = 1e-9
"""Largest difference over the largest number that the order of fp64 sums explains."""

_MOST_ELEMENTS = 1 << 24
"""A parameter larger than this shows one row of numbers again and again, which needs no memory."""

_MOST_ALTOGETHER = 1 << 30
"""A layer larger than this isn't tried out as a whole, which would take minutes."""

Kind = Literal["chosen", "chosen_weighted", "blocks"]
"""Results are weighted by the caller, or in a way of their own; or rows come sorted, equally many for each expert."""


def try_stacked(module: nn.Module, num_experts: int, *, takes: int) -> Kind | None:
    """Say how the experts of a module may be dealt out; None if they may not."""
    kinds: tuple[Kind, ...] = ("blocks",) if takes == 1 else ("chosen", "chosen_weighted")
    for kind in kinds:
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.manual_seed(0)
                if _agrees(_Trial(_small_copy(module), num_experts), kind):
                    return kind
        except Exception:
            # Whatever a stranger's code does with made-up numbers: it is not known to work.
            continue
    return None


def try_rows(module: nn.Module, width: int) -> bool:
    """Say whether a module does the same to a row whatever rows stand beside it."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            twin = _copy_with(module, lambda shape: shape).eval()
            rows = torch.randn(5, width, dtype=torch.float64)
            apart = torch.cat([twin(rows[:2]), twin(rows[2:])])
            return _close(twin(rows), apart) and twin(rows[:0]).shape[0] == 0 and not _batch_statistics(twin)
    except Exception:
        return False


def try_tokens(module: nn.Module, width: int) -> bool:
    """Say whether a module does the same to a token whatever tokens stand beside it in the sequence."""
    if sum(each.numel() for each in module.parameters()) > _MOST_ALTOGETHER:
        return False
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            twin = _copy_with(module, lambda shape: shape).eval()
            tokens = torch.randn(2, 6, width, dtype=torch.float64)
            whole, apart = twin(tokens), torch.cat([twin(tokens[:, :2]), twin(tokens[:, 2:])], 1)
            return whole.shape == tokens.shape and _close(whole, apart)
    except Exception:
        return False


def _batch_statistics(module: nn.Module) -> bool:
    # Rows meet in it while training only.
    return any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules())


class _Trial:
    """A small copy, and rows for it."""

    def __init__(self, twin: nn.Module, num_experts: int) -> None:
        self.twin, self.num_experts = twin, num_experts
        self.forward: Callable[..., Tensor] = _own_forward(twin)
        self.whole = {name: each for name, each in twin._parameters.items() if each is not None}

    def run(self, *inputs: Tensor) -> Tensor:
        """Run all experts."""
        return self.forward(self.twin, *inputs)

    def run_some(self, start: int, stop: int, *inputs: Tensor) -> Tensor:
        """Run experts ``start`` to ``stop`` as a rank that owns them would."""
        try:
            for name, parameter in self.whole.items():
                self.twin._parameters[name] = parameter[start:stop]  # type: ignore[assignment]
            with as_local(self.twin, self.num_experts, stop - start):
                return self.forward(self.twin, *inputs)
        finally:
            self.twin._parameters.update(self.whole)


def _own_forward(module: nn.Module) -> Callable[..., Tensor]:
    # What a decorator put before the class's own code chooses a faster way, which isn't on trial.
    forward = type(module).forward
    return getattr(forward, "__wrapped__", forward)


def _agrees(trial: _Trial, kind: Kind) -> bool:
    width = _width(trial)
    if width is None:
        return False
    if kind == "blocks":
        return _blocks_agree(trial, width)
    return _chosen_agree(trial, width, weighted=kind == "chosen_weighted") and _ignores_beyond(trial, width)


def _width(trial: _Trial) -> int | None:
    """Find what width of tokens the module takes, by asking it."""
    sizes = {size for parameter in trial.whole.values() for size in parameter.shape[1:]}
    for size in sorted(sizes):
        rows = torch.zeros(trial.num_experts, size, dtype=torch.float64)
        index = torch.arange(trial.num_experts)[:, None]
        for inputs in ((rows, index, torch.ones_like(rows[:, :1])), (rows,)):
            try:
                if trial.run(*inputs).shape[0] == rows.shape[0]:
                    return size
            except Exception:
                continue
    return None


def _chosen_agree(trial: _Trial, width: int, *, weighted: bool) -> bool:
    tokens, experts = 3 * trial.num_experts, trial.num_experts
    hidden = torch.randn(tokens, width, dtype=torch.float64, requires_grad=True)
    index = torch.rand(tokens, experts).argsort(1)[:, :2]
    weights = torch.rand(tokens, 2, dtype=torch.float64, requires_grad=True)
    whole = trial.run(hidden, index, weights)
    parts = torch.zeros_like(whole)
    for start, stop in ((0, experts // 2), (experts // 2, experts)):
        token, choice = torch.where((index >= start) & (index < stop))
        own = weights[token, choice, None]
        results = trial.run_some(
            start, stop, hidden[token], index[token, choice, None] - start, own if weighted else torch.ones_like(own)
        )
        parts = parts.index_add(0, token, results if weighted else results * own)
    return whole.shape == hidden.shape and _alike(whole, parts, [hidden, weights, *trial.whole.values()])


def _ignores_beyond(trial: _Trial, width: int) -> bool:
    """Check that the number past the last expert, if it may be chosen at all, means none."""
    hidden = torch.randn(2, width, dtype=torch.float64)
    weights = torch.ones(2, 1, dtype=torch.float64)
    try:
        result = trial.run(hidden, torch.full((2, 1), trial.num_experts), weights)
    except Exception:
        return True
    return not bool(result.any())


def _blocks_agree(trial: _Trial, width: int) -> bool:
    experts = trial.num_experts
    hidden = torch.randn(3 * experts, width, dtype=torch.float64, requires_grad=True)
    whole = trial.run(hidden)
    half = experts // 2
    parts = [trial.run_some(0, half, hidden[: 3 * half]), trial.run_some(half, experts, hidden[3 * half :])]
    return whole.shape[0] == hidden.shape[0] and _alike(whole, torch.cat(parts), [hidden, *trial.whole.values()])


def _alike(whole: Tensor, parts: Tensor, leaves: Sequence[Tensor]) -> bool:
    if not _close(whole, parts) or not bool(whole.any()):
        return False
    seed = torch.randn_like(whole)
    expected = torch.autograd.grad(whole, leaves, seed, allow_unused=True)
    found = torch.autograd.grad(parts, leaves, seed, allow_unused=True)
    pairs = zip(expected, found, strict=True)
    return all((a is None and b is None) or (a is not None and b is not None and _close(a, b)) for a, b in pairs)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= _ERROR * (1.0 + a.abs().max()))


def _small_copy(module: nn.Module) -> nn.Module:
    """Copy a module with all widths divided by what they have in common."""
    shapes = [parameter.shape[1:] for parameter in module.parameters()]
    common = math.gcd(*(size for shape in shapes for size in shape))
    # Widths of one would hide what widths do.
    factor = next(common // keep for keep in (4, 3, 2, 1) if common % keep == 0)
    twin = _copy_with(module, lambda shape: (shape[0], *(size // factor for size in shape[1:])))
    sizes = {size for shape in shapes for size in shape}
    for name, value in list(twin.__dict__.items()):
        if type(value) is int and value in sizes and "expert" not in name.lower():
            twin.__dict__[name] = value // factor
    return twin


def _copy_with(module: nn.Module, shape_of: Callable[[tuple[int, ...]], tuple[int, ...]]) -> nn.Module:
    memo: dict[int, Any] = {
        id(each): nn.Parameter(_made_up(shape_of(tuple(each.shape)))) for each in module.parameters()
    }
    memo |= {id(value): value for name, value in module.__dict__.items() if name == "config"}
    return copy.deepcopy(module, memo)


def _made_up(shape: tuple[int, ...]) -> Tensor:
    drawn = shape if math.prod(shape) <= _MOST_ELEMENTS else (shape[-1],)
    return (torch.randn(drawn, dtype=torch.float64) / math.sqrt(shape[-1])).expand(shape)
