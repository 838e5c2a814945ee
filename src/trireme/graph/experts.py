"""Mixture of experts on the tape: router, routed experts held as two stacked matrices, shared experts."""

from __future__ import annotations

from dataclasses import dataclass

from trireme.graph.op import ExpertShape, Matmul, Op, Param
from trireme.graph.tape import Tape
from trireme.graph.tensor import Kind, Saved, Tensor, compute_copy, float32_copy


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStyle:
    """What a family's router keeps.

    ``float32``: scores are computed in float32 from a cast input and weight. ``normalised``: chosen scores are
    divided by their sum. ``num_groups``/``groups_kept``: experts are first chosen by group (DeepSeek).
    ``scores``: a score per expert is kept (softmax or sigmoid over all); else only over the chosen ones.
    """

    name: str = "gate"
    bias: bool = False
    float32: bool = False
    normalised: bool = True
    scores: bool = True
    num_groups: int = 0
    groups_kept: int = 0
    float32_weights: bool = True
    extra: tuple[Param, ...] = ()


def route(tape: Tape, path: str, x: Tensor, shape: ExpertShape, *, style: RouterStyle) -> Tensor:
    """Score every expert for every token and choose ``top_k``; returns the chosen weights."""
    name = f"{path}.{style.name}"
    experts, top_k = shape.num_experts, shape.top_k
    weight = Tensor(name=f"{name}.weight", width=experts * x.width, rows="once")
    kept = [compute_copy(x, name=f"{name}.in")]
    if style.float32:
        # In 16 bits router input and weight are cast; in float32 the weight is the parameter itself.
        kept = [float32_copy(x)]
    if style.scores:
        kept.append(Tensor(name=f"{name}.scores", width=experts, kind="float32"))
    if style.num_groups:
        kept.append(Tensor(name=f"{name}.group_choice", width=2 * style.num_groups, kind="int64"))
        kept.append(Tensor(name=f"{name}.groups", width=style.groups_kept, kind="int64"))
        kept.append(Tensor(name=f"{name}.group_mask", width=experts, kind="bool"))
    kept.append(Tensor(name=f"{name}.choice", width=top_k, kind="int64"))
    weights = Tensor(name=f"{name}.weights", width=top_k, kind="float32" if style.float32_weights else "compute")
    if style.normalised:
        kept.append(Tensor(name=f"{name}.chosen", width=top_k + 1, kind="float32"))
    params = [Param(name="weight", shape=(experts, x.width))]
    if style.bias:
        params.append(Param(name="bias", shape=(experts,)))
    tape.add(
        Op(
            name=name,
            kind="router",
            params=(*params, *style.extra),
            matmuls=(Matmul(inner=x.width, outer=experts),),
            saves=tuple(Saved(tensor=tensor) for tensor in kept) + _cast_weight(weight, style),
            inputs=(x,),
            output=weights,
        )
    )
    return weights


def _cast_weight(weight: Tensor, style: RouterStyle) -> tuple[Saved, ...]:
    """The float32 copy of the router's weight; nothing where the weight is float32 already."""
    if not style.float32:
        return ()
    parameter = Tensor(name=weight.name, width=0, rows="once")
    copy = Tensor(name=f"{weight.name}@float32", width=weight.width, rows="once", kind="float32", cast_of=parameter)
    return (Saved(tensor=copy),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStyle:
    """How a family stacks its experts' matrices.

    ``transposed``: (experts, in, out). ``clamped``: GPT-OSS's gate (clamp, sigmoid times gate, up plus one).
    ``grouped``: one grouped product, which autocast leaves in the format of the weights, that is the stream's.
    """

    name: str = "experts"
    transposed: bool = False
    bias: bool = False
    clamped: bool = False
    grouped: bool = True


def run_experts(
    tape: Tape, path: str, x: Tensor, weights: Tensor, shape: ExpertShape, *, width: int, style: ExpertStyle
) -> Tensor:
    """Send every token to its experts through gated feed-forwards of ``width`` and sum what comes back.

    Counted is the grouped product: each token meets ``top_k`` experts, whatever the implementation does beside.
    """
    name = f"{path}.{style.name}"
    output = Tensor(name=f"{name}.out", width=x.width)
    matmuls = (
        Matmul(inner=x.width, outer=2 * width, times=shape.top_k),
        Matmul(inner=width, outer=x.width, times=shape.top_k),
    )
    tape.add(
        Op(
            name=name,
            kind="experts",
            params=_expert_params(x.width, width, shape, style),
            matmuls=matmuls,
            experts=shape,
            saves=_expert_saves(name, x.width, width, weights, shape, style),
            inputs=(x, weights),
            output=output,
        )
    )
    return output


def _expert_params(d_model: int, width: int, shape: ExpertShape, style: ExpertStyle) -> tuple[Param, ...]:
    up, down = (2 * width, d_model), (d_model, width)
    if style.transposed:
        up, down = up[::-1], down[::-1]
    count = shape.num_experts
    params = [Param(name="gate_up_proj", shape=(count, *up)), Param(name="down_proj", shape=(count, *down))]
    if style.bias:
        params.append(Param(name="gate_up_proj_bias", shape=(count, 2 * width)))
        params.append(Param(name="down_proj_bias", shape=(count, d_model)))
    return tuple(params)


def _expert_saves(
    name: str, d_model: int, width: int, weights: Tensor, shape: ExpertShape, style: ExpertStyle
) -> tuple[Saved, ...]:
    top_k = shape.top_k
    gated = ("clamped_gate", "sigmoid", "up_plus_one", "glu") if style.clamped else ("activated",)
    indices = 4 if style.bias else 3
    kind: Kind = "stream" if style.grouped else "compute"
    always = (
        Tensor(name=f"{name}.order", width=indices * top_k, kind="int64"),
        Tensor(name=f"{name}.sent", width=top_k * d_model, kind=kind),
        Tensor(name=f"{name}.gate_up", width=top_k * 2 * width, kind=kind),
        Tensor(name=f"{name}.product", width=top_k * width, kind=kind),
        Tensor(name=f"{name}.sent_weights", width=top_k, kind=weights.kind),
        Tensor(name=f"{name}.returned", width=top_k * d_model, kind=kind),
    )
    eager = (Tensor(name=f"{name}.{part}", width=top_k * width, kind=kind) for part in gated)
    return (
        *(Saved(tensor=tensor) for tensor in always),
        *(Saved(tensor=tensor, fused=False) for tensor in eager),
    )
