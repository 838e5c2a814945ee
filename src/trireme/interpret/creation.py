"""New tensors shaped after a sharded one: they take its shares, so that shards can be written into them."""

from __future__ import annotations

from typing import Any

from trireme.interpret.call import Call, sharded, the_shard


def made_new(call: Call) -> Any:
    """``x.new_zeros(shape)`` and its kin, in global sizes.

    With as many dims as the tensor and its length in the sharded one, a dim stands for the same thing;
    and constants are right however they are cut.
    """
    x = call.args[0]
    shard = the_shard(x)
    given = call.get(1, "size")
    shape = list(given) if isinstance(given, (list, tuple)) else [given, *call.args[2:]]
    more = () if call.name != "new_full" else (call.get(2, "fill_value"),)
    options = {name: value for name, value in call.kwargs.items() if name not in ("size", "fill_value")}
    alike = len(shape) == x.ndim and shape[shard.dim] == shard.split.total
    if not alike:
        return call.function(x, shape, *more, **options)
    shape[shard.dim] = x.shape[shard.dim]
    return sharded(call.function(x, shape, *more, **options), shard, dim=shard.dim)
