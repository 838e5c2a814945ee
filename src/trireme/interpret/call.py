"""One call of a torch function: its arguments by place or name, and what rules need beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trireme.interpret.split import CannotSplitError, Refinement, Shard, Split
from trireme.interpret.tensor_state import shard_of, sources_of, with_shard

if TYPE_CHECKING:
    from trireme.interpret.interpreter import Interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A torch function as user code called it."""

    interpreter: Interpreter
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        name: str = getattr(self.function, "__name__", str(self.function))
        # A property's getter is known by its property.
        return self.function.__self__.__name__ if name == "__get__" else name  # type: ignore[attr-defined]

    def get(self, place: int, *names: str, default: Any = None) -> Any:
        """Return an argument by place or by one of its names."""
        if place < len(self.args):
            return self.args[place]
        return next((self.kwargs[name] for name in names if name in self.kwargs), default)

    def listed(self, place: int, *names: str) -> list[Any]:
        """Return integers that may be given one by one or as one sequence."""
        first = self.get(place, *names)
        return list(first) if isinstance(first, (list, tuple)) else [first, *self.args[place + 1 :]]

    def refuse(
        self, *blamed: Any, boundaries: tuple[int, ...] = (), grain: int = 0, unit: Fraction = Fraction(1)
    ) -> CannotSplitError:
        """Make the error that blames the parameters behind ``blamed`` and says what would help."""
        refinement = None
        if boundaries or grain:
            ends = tuple(end * unit for end in boundaries)
            refinement = Refinement(boundaries=ends, grain=grain * unit if grain else None)
        return CannotSplitError("interpret.whole", sources=sources_of(*blamed), refinement=refinement, what=self.name)

    def refuse_to_cut(self, tensor: Tensor) -> CannotSplitError:
        """Blame the parameters behind a tensor, and say that keeping its segments whole would help."""
        shard = the_shard(tensor)
        kept = frozenset(length * shard.unit for length in shard.split.segments)
        return CannotSplitError(
            "interpret.whole", sources=shard.sources, refinement=Refinement(kept=kept), what=self.name
        )

    def run(self, *args: Any) -> Any:
        """Call the function on local tensors."""
        return self.function(*args, **self.kwargs)


Rule = Callable[[Call], Any]
"""Gives the result, or NotImplemented where nothing about the call is special."""


def sharded(
    tensor: Tensor, shard: Shard, *, dim: int, split: Split | None = None, unit: Fraction | None = None
) -> Tensor:
    """Mark a result as a shard that descends from ``shard``."""
    kept = shard.split if split is None else split
    return with_shard(
        tensor, Shard(dim=dim, split=kept, sources=shard.sources, unit=shard.unit if unit is None else unit)
    )


def the_shard(value: Any) -> Shard:
    """Return the shard of a tensor that is known to be one."""
    shard = shard_of(value)
    assert shard is not None
    return shard
