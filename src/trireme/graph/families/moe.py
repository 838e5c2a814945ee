"""Feed-forward parts made of experts, and which layers have them."""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.experts import ExpertStyle, RouterStyle, route, run_experts
from trireme.graph.families.rope import Feed, gated_mlp
from trireme.graph.op import ExpertShape
from trireme.graph.tape import Tape
from trireme.graph.tensor import Tensor

__all__ = ["ExpertStyle", "RouterStyle", "dense_then_sparse", "moe_feed"]


def moe_feed(
    *,
    experts: int,
    top_k: int,
    width: int,
    router: RouterStyle,
    style: ExpertStyle | None = None,
    path: str = "mlp",
    shared_width: int = 0,
    shared_name: str = "shared_experts",
    shared_gate: bool = False,
    bias: bool = False,
) -> Feed:
    """Routed experts of ``width``, beside them a shared feed-forward of ``shared_width`` that sees every token."""
    shape = ExpertShape(num_experts=experts, top_k=top_k)

    def feed(tape: Tape, x: Tensor) -> Tensor:
        weights = route(tape, path, x, shape, style=router)
        routed = run_experts(tape, path, x, weights, shape, width=width, style=style or ExpertStyle())
        if not shared_width:
            return routed
        shared = gated_mlp(tape, x, shared_width, path=f"{path}.{shared_name}", bias=bias)
        if shared_gate:
            gate = tape.linear(f"{path}.{shared_name}_gate", x, 1)
            shared = tape.scaled(f"{path}.{shared_name}", shared, gate)
        return tape.add_residual(f"{path}.sum", routed, shared)

    return feed


def dense_then_sparse(*, first: int, num_layers: int, dense: Block, sparse: Block) -> list[Block]:
    """``first`` dense layers, experts in the rest."""
    return [dense if index < first else sparse for index in range(num_layers)]
