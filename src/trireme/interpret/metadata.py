"""What user code asks about a tensor: sizes are global, everything else is as it is."""

from __future__ import annotations

import math
from typing import Any

from trireme.interpret.call import Call
from trireme.interpret.tensor_state import global_shape


def shape(call: Call) -> Any:
    """``x.shape``."""
    return global_shape(call.args[0])


def size(call: Call) -> Any:
    """``x.size()`` and ``x.size(dim)``."""
    dim = call.get(1, "dim")
    return global_shape(call.args[0]) if dim is None else global_shape(call.args[0])[dim]


def numel(call: Call) -> Any:
    """``x.numel()``."""
    return math.prod(global_shape(call.args[0]))


def length(call: Call) -> Any:
    """``len(x)``."""
    return global_shape(call.args[0])[0]


def as_it_is(call: Call) -> Any:
    """Answer from the local shard: dtype, device, number of dims, whether it has a gradient."""
    return call.run(*call.args)
