"""Figures of a whole ModelGraph: parameters, FLOPs, bytes kept for backward, key/value cache."""

from __future__ import annotations

from dataclasses import dataclass

from trireme.graph.block import Block
from trireme.graph.model import MicroBatch, ModelGraph, Stack
from trireme.graph.op import AttentionCount
from trireme.graph.tensor import Kernels, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """Parameters by part; a tied parameter counts once, where its owner is.

    ``active`` is what works on one token: everything, embedding and head included, but the experts it isn't sent to.
    """

    total: int
    active: int
    embedding: int
    layers: int
    final: int
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOPs of one forward pass of a micro-batch by part, under the named convention.

    ``tokens`` are those that the model predicts from: the decoder's, or the encoder's where there is no decoder.
    ``input_products`` is the part of ``products`` that reads raw input (image patches).
    """

    count: AttentionCount
    tokens: int
    products: int
    attention: int
    input_products: int = 0

    @property
    def forward(self) -> int:
        """Matrix products and attention of the forward pass."""
        return self.products + self.attention

    @property
    def training(self) -> int:
        """Forward and backward without recomputation.

        Backward does every product twice, once for each factor; pixels need no gradient, so once there.
        """
        return 3 * self.forward - self.input_products

    @property
    def training_per_token(self) -> float:
        """The same for one token."""
        return self.training / self.tokens

    @property
    def formula(self) -> str:
        """The convention in words."""
        return f"3 * (2 * rows * inner * outer + 2 * pairs * H * (K_qk + K_v)), {self.count} pairs"


def count_model_params(graph: ModelGraph) -> ModelParams:
    """Count parameters exactly, by part."""
    groups = dict.fromkeys(("embedding", "layers", "final", "head"), 0)
    aliases = {tie.alias for tie in graph.ties}
    active = 0
    for stack in graph.stacks:
        for run in stack.runs():
            groups["layers"] += run.count * run.block.num_params
            active += run.count * run.block.num_active_params
        for group, block in (("embedding", stack.before), ("final", stack.after)):
            groups[group] += _own_params(block, aliases)
    groups["head"] = _own_params(graph.head, aliases)
    rest = groups["embedding"] + groups["final"] + groups["head"]
    return ModelParams(total=rest + groups["layers"], active=rest + active, **groups)


def _own_params(block: Block, aliases: set[str]) -> int:
    total = 0
    for param in block.params():
        if param.name not in aliases:
            size = 1
            for length in param.shape:
                size *= length
            total += size
    return total


def count_model_flops(graph: ModelGraph, batch: MicroBatch, *, count: AttentionCount = "causal") -> ModelFlops:
    """Count the FLOPs of a forward pass; see :meth:`AttentionShape.count_pairs` for the conventions."""
    products = attention = 0
    for stack in graph.stacks:
        load = graph.load(stack, batch)
        for times, block in _weighted(stack):
            products += times * _products(block, load)
            attention += times * (block.flops(load, count=count) - _products(block, load))
    last = graph.load(graph.stacks[-1], batch)
    return ModelFlops(
        count=count,
        tokens=last.seqs * last.seq_len,
        products=products + _products(graph.head, last),
        attention=attention,
        input_products=sum(_input_products(stack, graph.load(stack, batch)) for stack in graph.stacks),
    )


def _weighted(stack: Stack) -> list[tuple[int, Block]]:
    """Each distinct block of a stack with how often it runs."""
    return [(1, stack.before), *((run.count, run.block) for run in stack.runs()), (1, stack.after)]


def _products(block: Block, load: Load) -> int:
    return sum(matmul.flops(load) for op in block.ops for matmul in op.matmuls)


def _input_products(stack: Stack, load: Load) -> int:
    convolutions = (op for op in stack.before.ops if op.kind == "convolution")
    return sum(matmul.flops(load) for op in convolutions for matmul in op.matmuls)


def estimate_saved_bytes(graph: ModelGraph, batch: MicroBatch, kernels: Kernels, *, with_loss: bool = False) -> int:
    """Bytes kept for backward by the whole model, weights and their casts by autocast not included.

    ``with_loss`` adds what the loss keeps of the logits.
    """
    total, shared = 0, dict[str, int]()
    last = graph.load(graph.stacks[-1], batch)
    blocks = [(times, block, graph.load(stack, batch)) for stack in graph.stacks for times, block in _weighted(stack)]
    blocks.append((1, graph.head, last))
    if with_loss:
        blocks.append((1, graph.loss, last))
    for times, block, load in blocks:
        for item in block.saved_tensors(load, kernels):
            if item.shared:
                shared[item.tensor] = item.size_bytes
            else:
                total += times * item.size_bytes
    return total + sum(shared.values())


def estimate_cache_bytes(graph: ModelGraph, *, seqs: int, seq_len: int, dtype_bytes: int = 2) -> int:
    """Bytes of the key/value cache after ``seq_len`` tokens; windows bound it, latents are kept narrow."""
    width = 0
    for stack in graph.stacks:
        for run in stack.runs():
            for op in run.block.ops:
                if op.attention:
                    width += run.count * op.attention.cache_width * op.attention.cache_positions(seq_len)
    return seqs * width * dtype_bytes
