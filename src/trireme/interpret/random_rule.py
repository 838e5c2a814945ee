"""Which torch functions draw random numbers, and how they draw them by counting."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.counter import keep, normal, uniform
from trireme.interpret.module_attention import NAMES, attend_by_steps
from trireme.interpret.tensor_state import marks_of, with_marks
from trireme.interpret.torch_private import DisableTorchFunction

if TYPE_CHECKING:
    from trireme.interpret.randomness import CountedRandomness

RandomRule = Callable[["CountedRandomness", Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]

_SELU_FLOOR = -1.7580993408473766
"""What alpha dropout sets elements to: minus scale times alpha of SELU.

Source:
    Klambauer et al. 2017, "Self-Normalizing Neural Networks", section 3.
"""


def _drawn(
    randomness: CountedRandomness, like: Tensor, function: Callable[[Tensor, int], Tensor], dtype: torch.dtype
) -> Tensor:
    """Give a number for each element of ``like``, cut as it is."""
    key = randomness.next_key()
    with DisableTorchFunction(), torch.no_grad():
        values = randomness.layout_of(like).draw(lambda index: function(index, key), dtype=dtype)
    return with_marks(values, marks_of(like))


def _kept(randomness: CountedRandomness, like: Tensor, p: float) -> Tensor:
    return _drawn(randomness, like, lambda index, key: keep(index, key=key, p=p), torch.bool)


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool = True) -> tuple[Tensor, float, bool]:
    """Give input, probability and whether to work in place, or probability zero where nothing is dropped."""
    given = {**dict(zip(("input", "p", "training", "inplace"), args, strict=False)), **kwargs}
    # torch.dropout calls its last argument train.
    active = given.get("training", given.get("train", training))
    return given["input"], float(given.get("p", 0.5)) if active else 0.0, bool(given.get("inplace", False))


def _dropout(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    x, p, in_place = _asked(args, kwargs)
    if p in (0.0, 1.0):
        return NotImplemented
    kept = _kept(randomness, x, p)
    if in_place or function.__name__.endswith("_"):
        return x.mul_(kept).div_(1.0 - p)
    return (x * kept).div(1.0 - p)


def _feature_dropout(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Drop whole channels: dims 0 and 1 are drawn for, the others follow."""
    x, p, in_place = _asked(args, kwargs)
    if p in (0.0, 1.0) or x.ndim < 3:
        return NotImplemented
    channel = x.detach()
    for dim in range(2, x.ndim):
        channel = channel.narrow(dim, 0, 1)
    kept = _kept(randomness, with_marks(channel, {a: s for a, s in marks_of(x).items() if s.dim < 2}), p)
    return x.mul_(kept).div_(1.0 - p) if in_place else (x * kept).div(1.0 - p)


def _alpha_dropout(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    x, p, in_place = _asked(args, kwargs, training=False)
    if p in (0.0, 1.0):
        return NotImplemented
    kept = _kept(randomness, x, p)
    scale = ((1.0 - p) * (1.0 + p * _SELU_FLOOR**2)) ** -0.5
    result = (x * kept + _SELU_FLOOR * ~kept) * scale - scale * _SELU_FLOOR * p
    return x.copy_(result) if in_place else result


def _attention(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Attend step by step, for no fused kernel drops what is asked; said once."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("dropout_p"):
        return NotImplemented
    randomness.tell("interpret.random_attention")
    with randomness:
        return _by_steps(**given)


def _by_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The formula of scaled dot-product attention, as user code would write it."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ value


def _module_attention(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    given = {**dict(zip(NAMES, args, strict=False)), **kwargs}
    if not given.get("dropout_p") or not given.get("training", True):
        return NotImplemented
    if given.get("static_k") is not None or given.get("static_v") is not None:
        randomness.tell("interpret.random_unplaced")
        return NotImplemented
    randomness.tell("interpret.random_attention")
    with randomness:
        return attend_by_steps(given)


def _like(value: Any) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32) if value.dtype.is_floating_point else torch.float32


def _uniform_(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    given = {**dict(zip(("self", "low", "high"), args, strict=False)), **kwargs}
    x, low, high = args[0], given.get("low", given.get("from", 0.0)), given.get("high", given.get("to", 1.0))
    return x.copy_(_drawn(randomness, x, uniform, _like(x)) * (high - low) + low)


def _normal_(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    given = {**dict(zip(("self", "mean", "std"), args, strict=False)), **kwargs}
    x = args[0]
    return x.copy_(_drawn(randomness, x, normal, _like(x)) * given.get("std", 1.0) + given.get("mean", 0.0))


def _exponential_(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    rate = args[1] if len(args) > 1 else kwargs.get("lambd", 1.0)
    x = args[0]
    # Half a step away from zero, whose logarithm isn't finite.
    return x.copy_(-(_drawn(randomness, x, uniform, _like(x)) + 2.0**-25).log() / rate)


def _bernoulli(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    x, p = args[0], args[1] if len(args) > 1 else kwargs.get("p")
    in_place = function.__name__.endswith("_")
    p = (0.5 if in_place else x) if p is None else p
    drawn = (_drawn(randomness, x, uniform, torch.float32) < p).to(x.dtype)
    return x.copy_(drawn) if in_place else drawn


def _new(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Draw a new tensor: like another, or of a size that user code names."""
    is_normal, empty = "randn" in function.__name__, torch.empty_like if "like" in function.__name__ else torch.empty
    options = {name: value for name, value in kwargs.items() if name not in ("generator", "out")}
    requires_grad = options.pop("requires_grad", False)
    like = empty(*args, **options)
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        if like.numel() > 1:
            randomness.tell("interpret.random_unplaced")
        return NotImplemented
    drawn = _drawn(randomness, like, normal if is_normal else uniform, _like(like)).to(like.dtype)
    return drawn.requires_grad_() if requires_grad else drawn


def _seeded(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Draw what belongs to no row, such as an order or one number: alike wherever this place is reached."""
    if kwargs.get("generator") is not None:
        return NotImplemented
    key = randomness.next_key()
    device = args[0].device if args and isinstance(args[0], Tensor) else kwargs.get("device")
    generator = torch.Generator(device or torch.get_default_device()).manual_seed(key >> 1)
    drawn = function(*args, **kwargs, generator=generator)
    if drawn.numel() > 1 and function is not torch.randperm:
        randomness.tell("interpret.random_unplaced")
    return drawn


def _unplaced(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    randomness.tell("interpret.random_unplaced")
    return NotImplemented


def _gumbel_softmax(
    randomness: CountedRandomness, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    given = {**dict(zip(("logits", "tau", "hard", "eps", "dim"), args, strict=False)), **kwargs}
    with randomness:
        return _gumbel(given["logits"], given.get("tau", 1.0), hard=given.get("hard", False), dim=given.get("dim", -1))


def _gumbel(logits: Tensor, tau: float, *, hard: bool, dim: int) -> Tensor:
    noise = -torch.empty_like(logits).exponential_().log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(soft).scatter_(dim, soft.max(dim, keepdim=True)[1], 1.0)
    return chosen - soft.detach() + soft


RANDOM_RULES: dict[Callable[..., Any], RandomRule] = {
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_), _dropout),
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout), _feature_dropout),
    **dict.fromkeys((F.alpha_dropout, torch.alpha_dropout), _alpha_dropout),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _module_attention,
    F.gumbel_softmax: _gumbel_softmax,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
    Tensor.exponential_: _exponential_,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli, Tensor.bernoulli_), _bernoulli),
    **dict.fromkeys((torch.rand, torch.randn, torch.rand_like, torch.randn_like), _new),
    **dict.fromkeys((torch.randint, torch.randperm, torch.normal, torch.poisson, torch.binomial), _seeded),
    **dict.fromkeys((torch.multinomial, Tensor.multinomial, Tensor.random_, Tensor.geometric_), _seeded),
    **dict.fromkeys((Tensor.cauchy_, Tensor.log_normal_), _seeded),
    torch.randint_like: _unplaced,
}
"""Functions that draw; what isn't here draws from torch's own generator."""
