"""Matrix products in all their spellings, given to ``contract`` as labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.contraction import add_bias, contract
from trireme.interpret.pointwise import met
from trireme.interpret.tensor_state import global_shape, shard_of, with_shard


def linear(call: Call) -> Any:
    """``F.linear(x, weight, bias)``."""
    x, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    batch = [f"b{dim}" for dim in range(x.ndim - 1)]
    weight_labels = ["o", "i"][2 - weight.ndim :]
    result = contract(call, (x, weight), ([*batch, "i"], weight_labels), [*batch, *weight_labels[:-1]], F.linear)
    return result if result is NotImplemented else add_bias(call, result, bias)


def matmul(call: Call) -> Any:
    """``x @ y`` with broadcasting batch dims."""
    x, y = call.get(0, "input", "self"), call.get(1, "other", "mat2", "vec2")
    left, right, out = _matmul_labels(x, y)
    return contract(call, (x, y), (left, right), out, torch.matmul)


def reversed_matmul(call: Call) -> Any:
    """``y.__rmatmul__(x)``."""
    y, x = call.args
    left, right, out = _matmul_labels(x, y)
    return contract(call, (x, y), (left, right), out, torch.matmul)


def _matmul_labels(x: Tensor, y: Tensor) -> tuple[list[str], list[str], list[str]]:
    left, right = _batch_labels(x, "x"), _batch_labels(y, "y")
    longer = left if len(left) >= len(right) else right
    out = [_shared(left, right, len(longer) - place) for place in range(len(longer))]
    rows = ["m"] if x.ndim > 1 else []
    columns = ["n"] if y.ndim > 1 else []
    return [*left, *rows, "k"], [*right, "k", *columns], [*out, *rows, *columns]


def _batch_labels(tensor: Tensor, side: str) -> list[str]:
    """Name batch dims from the right; a dim of one broadcasts and so has a name of its own."""
    sizes = global_shape(tensor)[:-2]
    return [f"{side}one{place}" if size == 1 else f"b{len(sizes) - place}" for place, size in enumerate(sizes)]


def _shared(left: list[str], right: list[str], from_right: int) -> str:
    names = [labels[-from_right] for labels in (left, right) if len(labels) >= from_right]
    return next((name for name in names if "one" not in name), names[0])


def addmm(call: Call) -> Any:
    """``torch.addmm(bias, x, weight)``."""
    bias, x, weight = call.get(0, "input"), call.get(1, "mat1"), call.get(2, "mat2")
    if call.kwargs.get("beta", 1) != 1 or call.kwargs.get("alpha", 1) != 1 or bias.ndim != 1:
        raise call.refuse(bias, x, weight)
    result = contract(call, (x, weight), (["m", "k"], ["k", "n"]), ["m", "n"], torch.mm)
    return result if result is NotImplemented else add_bias(call, result, bias)


def baddbmm(call: Call) -> Any:
    """``torch.baddbmm(added, x, y, beta, alpha)``."""
    added, x, y = call.get(0, "input"), call.get(1, "batch1"), call.get(2, "batch2")
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    result = contract(call, (x, y), (["b", "m", "k"], ["b", "k", "n"]), ["b", "m", "n"], torch.bmm)
    if result is NotImplemented:
        return NotImplemented
    shard = shard_of(result)
    if shard is None:
        return beta * call.interpreter.gather(added) + alpha * call.interpreter.summed(result)
    if (other := shard_of(added)) is not None and (other.dim, other.split) != (shard.dim, shard.split):
        raise call.refuse(added)
    local = met(call, added, shard, shard.dim - result.ndim)
    return with_shard(beta * local + alpha * result, shard)


def grouped(call: Call) -> Any:
    """``F.grouped_mm``: runs of rows, each with a matrix of its own; the matrices are cut alike."""
    x, weight = call.get(0, "input", "mat_a"), call.get(1, "weight", "mat2", "mat_b")
    offsets = call.get(2, "offs")
    if x.ndim != 2 or weight.ndim != 3 or call.get(3, "bias") is not None:
        raise call.refuse(call.args, call.kwargs)
    labels = (["s", "k"], ["e", "k", "n"])

    def product(rows: Tensor, matrices: Tensor) -> Tensor:
        if call.interpreter.decider is not None:
            # The kernel for tensors without contents takes bf16 alone; any matrix gives the shape.
            return rows @ matrices[0]
        result: Tensor = call.function(rows, matrices, offs=offsets)
        return result

    result = contract(call, (x, weight), labels, ["s", "n"], product)
    return product(x, weight) if result is NotImplemented else result


def einsum(call: Call) -> Any:
    """``torch.einsum(equation, ...)`` with letters and ``...``."""
    equation = call.args[0]
    operands = call.args[1] if isinstance(call.args[1], (list, tuple)) else call.args[1:]
    if not isinstance(equation, str):
        raise call.refuse(call.args)
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    names = inputs.split(",")
    most = max(tensor.ndim - len(name.replace("...", "")) for tensor, name in zip(operands, names, strict=True))
    labels = [_letters(name, tensor.ndim) for name, tensor in zip(names, operands, strict=True)]
    if not arrow:
        output = ("..." if most else "") + "".join(sorted({c for c in inputs if c.isalpha() and inputs.count(c) == 1}))
    out = _letters(output, len(output.replace("...", "")) + (most if "..." in output else 0))
    if any(len(set(each)) < len(each) for each in labels):
        raise call.refuse(operands)
    return contract(call, operands, labels, out, lambda *local: torch.einsum(equation, *local))


def _letters(name: str, ndim: int) -> list[str]:
    """Give a label per dim; those of ``...`` are numbered from the right."""
    before, dots, after = name.partition("...")
    more = ndim - len(before) - len(after)
    return [*before, *(f"...{more - place}" for place in range(more if dots else 0)), *after]
