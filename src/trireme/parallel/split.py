"""Backward in two parts: to what was received, which another stage waits for, and to the weights, which can wait.

The graph of a stage has a trunk, the nodes from which backward reaches what was received; weights hang on it by
branches. The first part runs the trunk and keeps the gradients with which it came by each branch; the second runs
the branches. Nothing of the trunk runs twice, save for a node of which two branches share a weight with another.

Source:
    Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.1 (splitting B and W).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from trireme.parallel.tracing_private import call_node, input_shape


@dataclass(slots=True, kw_only=True)
class _Fork:
    """A node of the trunk with branches; ``gradients`` are those with which the trunk came by."""

    node: Node
    branches: list[GradientEdge]
    gradients: tuple[Tensor | None, ...] = ()


@dataclass(slots=True, kw_only=True)
class SplitBackward:
    """The backward of one stage on one micro-batch, in two parts.

    Attributes:
        roots: Outputs of the stage that have a gradient.
        gradients: Theirs.
        anchors: Leaves that stand for what was received.
        hooked: Nodes with hooks, which must see a gradient once; the engine would show it to them in both parts.
    """

    roots: Sequence[Tensor]
    gradients: Sequence[Tensor]
    anchors: Sequence[Tensor]
    hooked: Collection[Node] = ()
    _forks: list[_Fork] = field(default_factory=list)
    _shared: set[Node] = field(default_factory=set)
    _trunk: set[Node] = field(default_factory=set)

    def to_inputs(self) -> None:
        """Run the trunk and leave the anchors their gradients."""
        self._survey()
        ours = [pair for pair in self._pairs() if get_gradient_edge(pair[0]).node in self._trunk]
        if not ours:
            return
        handles = [fork.node.register_prehook(_keeper(fork)) for fork in self._forks]
        try:
            outputs, gradients = zip(*ours, strict=True)
            found = torch.autograd.grad(outputs, list(self.anchors), gradients, retain_graph=True, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        for anchor, gradient in zip(self.anchors, found, strict=True):
            anchor.grad = gradient

    def to_weights(self) -> None:
        """Run the branches, adding to the weights' gradients."""
        edges: list[GradientEdge] = []
        gradients: list[Tensor] = []
        for fork in self._forks:
            for edge, gradient in zip(fork.branches, self._at_branches(fork), strict=True):
                if gradient is not None:
                    edges.append(edge)
                    gradients.append(gradient)
        for root, gradient in self._pairs():
            edge = get_gradient_edge(root)
            if edge.node not in self._trunk:
                edges.append(edge)
                gradients.append(gradient)
        self._forks, self._shared, self._trunk = [], set(), set()
        if edges:
            torch.autograd.backward(edges, gradients)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.roots, self.gradients, strict=True))

    def _at_branches(self, fork: _Fork) -> Sequence[Tensor | None]:
        """Give the gradients with which the branches of a node begin."""
        if all(gradient is None for gradient in fork.gradients):
            return [None] * len(fork.branches)
        if fork.node in self.hooked or any(branch.node in self._shared for branch in fork.branches):
            return _by_hand(fork)
        given = [(place, gradient) for place, gradient in enumerate(fork.gradients) if gradient is not None]
        outputs = [GradientEdge(fork.node, place) for place, _ in given]
        return torch.autograd.grad(outputs, fork.branches, [gradient for _, gradient in given], allow_unused=True)

    def _survey(self) -> None:
        """Find trunk, forks and the branches that more than one node leads to."""
        goals = {get_gradient_edge(anchor).node for anchor in self.anchors}
        order = _ordered([get_gradient_edge(root).node for root in self.roots])
        parents: Counter[Node] = Counter()
        for node in order:
            children = {child for child, _ in node.next_functions if child is not None}
            parents.update(children)
            if node in goals or children & self._trunk:
                self._trunk.add(node)
        self._shared = {node for node, count in parents.items() if count > 1}
        for node in order:
            if node in self._trunk and node not in goals:
                self._add_fork(node)

    def _add_fork(self, node: Node) -> None:
        branches = {
            GradientEdge(child, place): None
            for child, place in node.next_functions
            if child is not None and child not in self._trunk
        }
        if branches:
            self._forks.append(_Fork(node=node, branches=list(branches)))


def _keeper(fork: _Fork) -> Any:
    def keep(gradients: tuple[Tensor | None, ...]) -> None:
        fork.gradients = gradients

    return keep


def _by_hand(fork: _Fork) -> list[Tensor | None]:
    """Call the node itself: the engine would follow the trunk behind it to the weight that it shares."""
    sums: dict[tuple[Node, int], Tensor] = {}
    for edge, gradient in zip(fork.node.next_functions, call_node(fork.node, fork.gradients), strict=True):
        child, place = edge
        if child is not None and gradient is not None:
            reduced = gradient.sum_to_size(input_shape(child, place))
            sums[child, place] = sums[child, place] + reduced if (child, place) in sums else reduced
    return [sums.get((branch.node, branch.output_nr)) for branch in fork.branches]


def _ordered(roots: Sequence[Node]) -> list[Node]:
    """Give all nodes below the roots, each after those it leads to."""
    done: dict[Node, None] = {}
    stack = [(root, False) for root in roots]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done[node] = None
        elif node not in done:
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None and child not in done]
    return list(done)
