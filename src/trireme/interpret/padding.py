"""``F.pad``: dims that aren't sharded get longer, the shard stays."""

from __future__ import annotations

from typing import Any

from trireme.interpret.call import Call, sharded, the_shard


def pad(call: Call) -> Any:
    """``F.pad(x, (last dim before, after, dim before that before, ...))``."""
    x, sizes = call.get(0, "input"), call.get(1, "pad")
    shard = the_shard(x)
    place = 2 * (x.ndim - 1 - shard.dim)
    constant = call.get(2, "mode", default="constant") == "constant"
    if any(sizes[place : place + 2]) or not (constant or place >= len(sizes)):
        raise call.refuse(x)
    return sharded(call.run(*call.args), shard, dim=shard.dim)
