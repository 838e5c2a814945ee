"""ModelGraph: what a model is made of and costs, known without building it and without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from trireme.graph.block import Block
from trireme.graph.op import Op
from trireme.graph.tensor import Load

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch as the model receives it; ``source_len`` is the encoder's length, ``seq_len`` unless given."""

    seqs: int
    seq_len: int
    source_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Neighbouring equal layers: the first's number, how many, and the block that each is."""

    first: int
    count: int
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A run of layers that may be cut into pipeline stages, with what comes before and after it.

    ``path`` is the module path of the layer list; layer 3 is ``path.3``, unless ``names`` has the layers' own paths.
    Names in ``before`` and ``after`` are full module paths. ``width`` is how many numbers per token cross the border
    between two layers.
    """

    path: str
    width: int
    before: Block
    blocks: tuple[Block, ...]
    after: Block
    side: Side = "decoder"
    names: tuple[str, ...] = ()

    def layer_paths(self) -> tuple[str, ...]:
        """Module path of each layer."""
        return self.names or tuple(f"{self.path}.{index}" for index in range(len(self.blocks)))

    def runs(self) -> tuple[LayerRun, ...]:
        """Layers grouped into runs of equal neighbours."""
        runs: list[LayerRun] = []
        for block, group in groupby(self.blocks):
            first = runs[-1].first + runs[-1].count if runs else 0
            runs.append(LayerRun(first=first, count=len(list(group)), block=block))
        return tuple(runs)

    def cut_points(self) -> tuple[str, ...]:
        """Module paths before which the stack may be cut."""
        return self.layer_paths()[1:]

    def border_bytes(self, load: Load, *, dtype_bytes: int) -> int:
        """Bytes of the activation that leaves one layer for the next."""
        return load.seqs * load.seq_len * self.width * dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """``alias`` is a second name of the parameter ``owner``; it holds no memory of its own."""

    alias: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParam:
    """A parameter by its full name; ``group`` is what it is part of, ``op`` the operation that uses it."""

    name: str
    shape: tuple[int, ...]
    group: str
    op: Op


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A model as the planner sees it.

    ``family`` is the ``model_type`` of its config.json, ``architecture`` the class with its head. ``omitted``
    names parts of the model that the graph leaves out (a vision tower); their cost is in no figure.
    ``fixed_seq_len`` is set where the length follows from the model (image patches).
    """

    name: str
    family: str
    architecture: str
    vocab_size: int
    max_seq_len: int | None
    stacks: tuple[Stack, ...]
    head: Block
    loss: Block
    ties: tuple[Tie, ...] = ()
    omitted: tuple[str, ...] = ()
    fixed_seq_len: int | None = None

    @property
    def num_layers(self) -> int:
        """Layers of all stacks."""
        return sum(len(stack.blocks) for stack in self.stacks)

    @property
    def width(self) -> int:
        """Width of the last stack."""
        return self.stacks[-1].width

    def load(self, stack: Stack, batch: MicroBatch) -> Load:
        """The micro-batch as that stack sees it."""
        source_len = batch.source_len or batch.seq_len
        if stack.side == "encoder":
            return Load(seqs=batch.seqs, seq_len=self.fixed_seq_len or source_len)
        has_encoder = self.stacks[0].side == "encoder"
        return Load(seqs=batch.seqs, seq_len=batch.seq_len, memory_len=source_len if has_encoder else 0)

    def sections(self) -> Iterator[Section]:
        """Every block in the order of the forward pass, with the name of its part."""
        for stack in self.stacks:
            yield Section(group="embedding", path="", block=stack.before, stack=stack)
            for path, block in zip(stack.layer_paths(), stack.blocks, strict=True):
                yield Section(group="layers", path=path, block=block, stack=stack)
            yield Section(group="final", path="", block=stack.after, stack=stack)
        yield Section(group="head", path="", block=self.head, stack=self.stacks[-1])

    def params(self) -> Iterator[ModelParam]:
        """Every parameter once, by full name; ties appear under the owner's name only."""
        aliases = {tie.alias for tie in self.ties}
        for section in self.sections():
            for param in section.block.params():
                name = f"{section.path}.{param.name}" if section.path else param.name
                if name not in aliases:
                    yield ModelParam(name=name, shape=param.shape, group=section.group, op=param.op)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A block with its place: ``path`` is the layer's module path, empty where names are full already."""

    group: str
    path: str
    block: Block
    stack: Stack
