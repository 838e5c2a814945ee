"""Logits that aren't computed until somebody looks: a loss that can do without them all at once never makes them.

While a model's own code runs, what its output layer gives is a tensor that knows its shape and how it would be made.
Casts, views of tokens, scalings and soft caps are remembered; a cross-entropy takes the tokens' vectors and the matrix
instead; anything else makes the logits as if nothing had been deferred.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trireme.interpret import HeadInput, Scoring, entered_again, head_input, head_loss, modes_entered, unseen
from trireme.models.cross_entropy import IGNORED, summed_cross_entropy

_ASKED = frozenset({
    Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__, Tensor.is_leaf.__get__, Tensor.layout.__get__, Tensor.is_meta.__get__,  # type: ignore[attr-defined]
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.__len__, Tensor.is_floating_point, Tensor.stride,
    Tensor.element_size, Tensor.is_complex, Tensor.is_contiguous, torch.is_floating_point, torch.is_tensor,
})  # fmt: skip
_CASTS = {Tensor.float: torch.float32, Tensor.double: torch.float64}
_SCALINGS = frozenset(
    {Tensor.mul, Tensor.div, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__, torch.mul, torch.div}
)
_CAPS = frozenset({Tensor.tanh, torch.tanh})
_VIEWS = frozenset({Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.unflatten})
_SAME = frozenset({Tensor.contiguous})


class DeferredLogits(Tensor):
    """What an output layer would give.

    Attributes:
        given: The tokens' vectors, ``[..., D]``, and how the vocabulary is cut.
        matrix: ``[V, D]``, this rank's rows.
        bias: ``[V]`` or None.
        changes: What the model has done to the logits since, element by element.
        made: The logits, once somebody looked.
    """

    given: HeadInput
    matrix: Tensor
    bias: Tensor | None
    changes: tuple[Callable[[Tensor], Tensor], ...]
    make: Callable[[], Tensor]
    modes: tuple[Any, ...]
    made: Tensor | None

    @staticmethod
    def __new__(
        cls,
        given: HeadInput,
        matrix: Tensor,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        make: Callable[[], Tensor],
        modes: tuple[Any, ...],
        changes: tuple[Callable[[Tensor], Tensor], ...] = (),
    ) -> DeferredLogits:
        total = matrix.shape[0] if given.shard is None else given.shard.split.total
        needs = torch.is_grad_enabled() and any(t.requires_grad for t in (given.hidden, matrix))
        shape = (*given.hidden.shape[:-1], total)
        made: DeferredLogits = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=matrix.device, requires_grad=needs
        )
        made.given, made.matrix, made.bias, made.changes = given, matrix, bias, changes
        made.make, made.modes, made.made = make, modes, None
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Tell what it is."""
        return f"DeferredLogits({tuple(self.given.hidden.shape[:-1])}, vocabulary {self.matrix.shape[0]})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Remember what can be remembered; else make the logits."""
        named = dict(kwargs or {})
        first = next((each for each in (*args, *named.values()) if isinstance(each, DeferredLogits)), None)
        if func in _ASKED or first is None:
            with unseen():
                return func(*args, **named)
        if first.made is None:
            result = first._followed(func, args, named)
            if result is not NotImplemented:
                return result
        with entered_again(first.modes):
            return func(*_whole(args), **_whole(named))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Make the logits for whoever asks below torch's functions; no gradient would pass there."""
        return func(*_whole(args), **_whole(dict(kwargs or {})))

    def whole(self) -> Tensor:
        """Give the logits, made once."""
        if self.made is None:
            with entered_again(self.modes):
                self.made = self.make()
        return self.made

    def _followed(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if func in _SAME:
            return self
        if func in _CASTS:
            return self._changed(func, (), {}, dtype=_CASTS[func])
        if func is Tensor.to and args[0] is self:
            return self._cast(args[1:], named)
        if func in _SCALINGS or func in _CAPS:
            return self._scaled(func, args, named)
        if func in _VIEWS and args[0] is self:
            return self._viewed(func, args[1:], named)
        if func is Tensor.__getitem__ and args[0] is self:
            return self._indexed(args[1])
        if func is F.cross_entropy:
            return self._scored(*args, **named)
        if func is summed_cross_entropy and args[0] is self and len(args) == 2:
            return self._loss(args[1], Scoring(ignored=IGNORED))
        return NotImplemented

    def _cast(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        dtype = (
            args[0] if len(args) == 1 and not named else named.get("dtype") if len(named) == 1 and not args else None
        )
        if dtype == self.dtype:
            return self
        if dtype not in (torch.float32, torch.float64):
            return NotImplemented  # rounding is not put off
        return self._changed(Tensor.to, (dtype,), {}, dtype=dtype)

    def _scaled(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        others = [each for each in args if each is not self]
        plain = all(isinstance(each, (int, float)) for each in others)
        if named or len(others) != len(args) - 1 or not plain or args[0] is not self:
            return NotImplemented
        return self._changed(func, tuple(others), {}, dtype=self.dtype)

    def _changed(
        self, func: Any, args: tuple[Any, ...], named: dict[str, Any], *, dtype: torch.dtype
    ) -> DeferredLogits:
        def change(tensor: Tensor) -> Tensor:
            result: Tensor = func(tensor, *args, **named)
            return result

        # A mere cast up changes nothing: scores are made in fp32 anyway.
        mere = func in _CASTS or func is Tensor.to
        more = () if mere and dtype == torch.float32 and not self.changes else (change,)
        return self._other(self.given.hidden, func, args, named, dtype=dtype, changes=(*self.changes, *more))

    def _viewed(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with unseen():
            shape = func(torch.empty(self.shape, device="meta"), *args, **named).shape
        if len(shape) < 2 or shape[-1] != self.shape[-1] or not self.numel():
            return NotImplemented
        hidden = self.given.hidden
        with unseen():
            rows = hidden.reshape(*shape[:-1], hidden.shape[-1])
        return self._other(rows, func, args, named)

    def _indexed(self, index: Any) -> Any:
        places = index if isinstance(index, tuple) else (index,)
        if any(not isinstance(each, (slice, type(Ellipsis))) for each in places):
            return NotImplemented
        if (Ellipsis in places or len(places) == self.ndim) and places[-1] != slice(None):
            return NotImplemented
        with unseen():
            rows = self.given.hidden[index]
        return self._other(rows, Tensor.__getitem__, (index,), {})

    def _other(
        self,
        hidden: Tensor,
        func: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
        *,
        dtype: torch.dtype | None = None,
        changes: Any = None,
    ) -> DeferredLogits:
        given = HeadInput(hidden=hidden, line=self.given.line, shard=self.given.shard)
        return DeferredLogits(
            given,
            self.matrix,
            self.bias,
            dtype=dtype or self.dtype,
            make=lambda: func(self.whole(), *args, **named),
            modes=self.modes,
            changes=self.changes if changes is None else changes,
        )

    def _scored(
        self,
        input: Any = None,  # noqa: A002 - torch's name
        target: Any = None,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        plain = weight is None and size_average is None and reduce is None and reduction in ("sum", "mean")
        if input is not self or self.ndim != 2 or not plain or not isinstance(target, Tensor) or target.ndim != 1:
            return NotImplemented
        if target.is_floating_point():
            return NotImplemented
        loss = self._loss(target, Scoring(ignored=ignore_index, smoothing=label_smoothing))
        if reduction == "sum":
            return loss
        with unseen():
            return loss / (target != ignore_index).sum()

    def _loss(self, target: Tensor, scoring: Scoring) -> Tensor:
        """Give the summed loss without ever having all logits."""
        return self.cross_entropy(target, ignored=scoring.ignored, smoothing=scoring.smoothing)

    def cross_entropy(
        self, target: Tensor, *, ignored: int = IGNORED, smoothing: float = 0.0, z_loss: float = 0.0
    ) -> Tensor:
        """Give the summed cross-entropy with one label for each token."""
        with unseen():
            hidden = self.given.hidden.reshape(-1, self.given.hidden.shape[-1])
            scoring = Scoring(ignored=ignored, smoothing=smoothing, z_loss=z_loss, changes=self.changes)
            given = HeadInput(hidden=hidden, line=self.given.line, shard=self.given.shard)
            return head_loss(given, self.matrix, self.bias, target.reshape(-1).long(), scoring)


def _whole(value: Any) -> Any:
    if isinstance(value, DeferredLogits):
        return value.whole()
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        changed = [_whole(each) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value


Place = tuple[nn.Module, str]


def output_matrices(module: nn.Module) -> tuple[Place, ...]:
    """Find the matrices that give logits: what the model says they are, else those with a row for each token."""
    ask = getattr(module, "get_output_embeddings", None)
    found = ask() if callable(ask) else None
    if isinstance(found, nn.Module) and isinstance(getattr(found, "weight", None), Tensor):
        return ((found, "weight"),)
    tables = [each for each in module.modules() if isinstance(each, nn.Embedding)]
    rows = max((each.num_embeddings for each in tables), default=0)
    layers = [each for each in module.modules() if isinstance(each, nn.Linear) and each.out_features == rows]
    return tuple((each, "weight") for each in (*layers, *(table for table in tables if table.num_embeddings == rows)))


def deferring(call: Callable[[nn.Module, Any], Any]) -> Callable[[nn.Module, Any], Any]:
    """Call models so that their logits, in training, are computed by whoever looks at them."""

    @functools.wraps(call)
    def called(module: nn.Module, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(module, batch)
        with HeadMode(output_matrices(module)):
            return call(module, batch)

    return called


class HeadMode(TorchFunctionMode):
    """Meets the products with a model's output matrix."""

    def __init__(self, places: tuple[Place, ...]) -> None:
        super().__init__()
        self.places = places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Put off what gives logits; ZeRO exchanges parameters, so a matrix is known by its place."""
        named = kwargs or {}
        if func is F.linear and len(args) >= 2 and self._is_output(args[1]):
            made = self._deferred(*args, **named)
            if made is not None:
                return made
        return func(*args, **named)

    def _is_output(self, weight: Any) -> bool:
        return any(owner._parameters.get(name) is weight for owner, name in self.places)

    def _deferred(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> DeferredLogits | None:
        if type(hidden) is not Tensor or hidden.is_meta or hidden.ndim < 2:
            return None
        given = head_input(hidden, weight)
        if given is None:
            return None
        low = torch.is_autocast_enabled(hidden.device.type)
        return DeferredLogits(
            given,
            weight,
            bias,
            dtype=torch.get_autocast_dtype(hidden.device.type) if low else hidden.dtype,
            make=lambda: F.linear(hidden, weight, bias),
            modes=modes_entered(),
        )
