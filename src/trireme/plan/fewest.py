"""The fewest accelerators on which a model can be trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trireme.errors import Infeasible, LayoutError
from trireme.plan.problem import Problem
from trireme.plan.search import SearchResult, search

if TYPE_CHECKING:
    from trireme.cluster import Cluster

_MOST_RANKS = 65_536


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """The smallest cluster that will do, what runs on it, and what stood against the next smaller one."""

    cluster: Cluster
    result: SearchResult
    smaller: str


def fewest_gpus(problem: Problem) -> Fewest:
    """Give the smallest cluster of the problem's kind of node on which some layout fits.

    Sizes are 1, 2, 4 ... of a node, then 1, 2, 3 ... nodes up to eight and growing by an eighth from there.

    Raises:
        Infeasible: Not even a very large one will do.
    """
    against = ""
    for cluster in _sizes(problem.cluster):
        try:
            result = search(replace(problem, cluster=cluster), top=1)
        except Infeasible as error:
            against = str(error)
        except LayoutError as error:  # what is fixed asks for more ranks
            against = str(error)
        else:
            return Fewest(cluster=cluster, result=result, smaller=against)
    raise Infeasible("search.never_fits", ranks=_MOST_RANKS, reason=against)


def _sizes(cluster: Cluster) -> list[Cluster]:
    node = cluster.ranks_per_node
    parts = [part for part in range(1, node) if node % part == 0]
    sizes = [
        replace(cluster, ranks_per_node=part, num_nodes=1, cards_per_node=cluster.cards_per_node * part / node)
        for part in parts
    ]
    nodes = 1
    while nodes * node <= _MOST_RANKS:
        sizes.append(replace(cluster, num_nodes=nodes))
        nodes += max(1, nodes // 8)
    return sizes
