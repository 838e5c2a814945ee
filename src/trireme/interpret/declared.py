"""Functions of ours that interpreters meet whole, as they meet torch's own, with what they need to know of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.overrides import handle_torch_function, has_torch_function

from trireme.interpret.tensor_state import tensors_in

_F = TypeVar("_F", bound=Callable[..., Any])

_DECLARATION = "_trireme_declaration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What holds of a function.

    Attributes:
        head_dim: It attends: its first arguments are q, k and v, this dim of each counts heads, query heads in
            order share key heads, and the result is shaped like q with values for keys.
        in_torch: The same computation of the same arguments, in torch's functions alone.
    """

    head_dim: int | None = None
    in_torch: Callable[..., Any] | None = None


def met_whole(*, head_dim: int | None = None, in_torch: Callable[..., Any] | None = None) -> Callable[[_F], _F]:
    """Declare a function whose inside no rule would understand; arguments by place.

    Outside of interpreters it runs as it is.
    """

    def declare(function: _F) -> _F:
        @functools.wraps(function)
        def met(*args: Any, **kwargs: Any) -> Any:
            tensors = tuple(tensors_in(args))
            if has_torch_function(tensors):
                return handle_torch_function(met, tensors, *args, **kwargs)
            return function(*args, **kwargs)

        setattr(met, _DECLARATION, Declaration(head_dim=head_dim, in_torch=in_torch))
        return met  # type: ignore[return-value]

    return declare


def declaration_of(function: Any) -> Declaration | None:
    """Return what is declared of a function, if anything."""
    return getattr(function, _DECLARATION, None)
