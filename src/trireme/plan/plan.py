"""Plan: everything decided about a run before it starts, as one reviewable JSON document (plan.json).

A plan names modules, not tensors: which parameter is split how is derived where the model is built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from trireme.errors import LayoutError
from trireme.plan.layout import Layout
from trireme.words import say

if TYPE_CHECKING:
    from trireme.cluster import Cluster
    from trireme.graph import ModelGraph

PLAN_FORMAT = 1
"""Version of the document; a reader for each older one stays."""

LayerRecompute = Literal["none", "selective", "full"]
LAYER_RECOMPUTES: tuple[LayerRecompute, ...] = get_args(LayerRecompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """What is done about the activations of one layer, named by its module path."""

    path: str
    recompute: LayerRecompute = "none"
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A figure that the run should show, with the interval it should fall in.

    Units: those of the name's suffix (``step_s``, ``peak_bytes.stage_0``).
    """

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What runs where and how.

    ``cuts`` are the module paths at which stages 1, 2 ... begin, in the order of the forward pass. ``layers`` holds
    the layers that recompute or offload. The layout's micro-batches are always a number here. The hashes and the
    version say for what the plan was made.
    """

    layout: Layout
    cuts: tuple[str, ...] = ()
    layers: tuple[LayerChoice, ...] = ()
    precision: str
    model: str
    global_batch_seqs: int
    seq_len: int
    predictions: tuple[Prediction, ...] = ()
    model_hash: str
    cluster_hash: str
    trireme_version: str

    def __post_init__(self) -> None:
        explicit = replace(self.layout, microbatches_per_step=self.layout.num_microbatches)
        object.__setattr__(self, "layout", explicit)
        if len(self.cuts) != self.layout.num_stages - 1:
            raise LayoutError("layout.plan_cuts", cuts=len(self.cuts), stages=self.layout.num_stages)
        _check_once("cuts", self.cuts)
        _check_once("layers", tuple(layer.path for layer in self.layers))
        _check_once("predictions", tuple(prediction.name for prediction in self.predictions))

    def predicted(self, name: str) -> Prediction | None:
        """The prediction of that name, if there is one."""
        return next((prediction for prediction in self.predictions if prediction.name == name), None)


def _check_once(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise LayoutError("layout.plan_twice", key=key, name=name)


def fingerprint(value: Any) -> str:
    """Give the hash of a description made of dataclasses, mappings, sequences, text and numbers.

    Equal descriptions have equal hashes in any process and on any machine; names of dataclasses and fields count.
    """
    return _digest(_plain(value, seen={}))


def hash_model(model: ModelGraph) -> str:
    """Give the hash of a model: what it is called, and how long its sequences may be, don't count."""
    return fingerprint(replace(model, name="", max_seq_len=None))


def hash_cluster(cluster: Cluster) -> str:
    """Give the hash of a cluster: which accelerator, how many to a node, how many nodes.

    What was measured of it, and what a processor is called behind "CPU", doesn't count: a machine that was probed
    twice, or that the catalogue describes, is the same machine.
    """
    name = cluster.accelerator.name.partition(" (")[0]
    return fingerprint([name, cluster.ranks_per_node, cluster.num_nodes])


def _digest(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any, *, seen: dict[int, str]) -> Any:
    """Give what JSON can say; a dataclass is its own hash, so that equal layers that are one object cost once."""
    if is_dataclass(value) and not isinstance(value, type):
        if id(value) not in seen:
            parts = [[field.name, _plain(getattr(value, field.name), seen=seen)] for field in fields(value)]
            seen[id(value)] = _digest([type(value).__name__, parts])
        return {"": seen[id(value)]}
    if isinstance(value, (frozenset, set)):
        return sorted((_plain(item, seen=seen) for item in value), key=str)
    if isinstance(value, (tuple, list)):
        return [_plain(item, seen=seen) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, seen=seen) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_plan_matches(plan: Plan, *, model_hash: str, cluster_hash: str, version: str) -> tuple[str, ...]:
    """Refuse a plan made for another model or version; return a warning for another cluster.

    Raises:
        LayoutError: Model or version is another one, named with both hashes or versions.
    """
    if plan.trireme_version != version:
        raise LayoutError("layout.plan_version", made=plan.trireme_version, running=version)
    if plan.model_hash != model_hash:
        raise LayoutError("layout.plan_model", model=plan.model, made=plan.model_hash, given=model_hash)
    if plan.cluster_hash != cluster_hash:
        return (say("layout.plan_cluster", made=plan.cluster_hash, here=cluster_hash),)
    return ()
