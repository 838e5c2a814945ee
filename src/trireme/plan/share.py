"""How tensor parallelism cuts a block: which parameters and which tensors, known from its operations alone.

The walk is the one that the interpreter makes on fake tensors: a product of a whole tensor is cut by columns, a product
of a cut one by rows and summed; whatever can't stay cut (a norm over all of a row, a router, the residual stream)
gives up the products responsible. A test compares both for every family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trireme.graph import Block, Op, Param, Tensor

_WHOLE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a cut dim; shares are whole grains, and all ranks keep it where there are too few of them."""

    length: int
    grain: int = 1

    def share(self, rank: int, *, degree: int) -> int:
        """Length of one rank's share; what doesn't divide goes to the first ranks."""
        grains = self.length // self.grain
        if grains < degree:
            return self.length
        each, extra = divmod(grains, degree)
        return (each + (rank < extra)) * self.grain


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCut:
    """The dim of a parameter that is cut, and its segments."""

    dim: int
    segments: tuple[Segment, ...]

    def length(self, rank: int, *, degree: int) -> int:
        """Length of the dim on one rank."""
        return sum(segment.share(rank, degree=degree) for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShare:
    """What a rank has of a block.

    Attributes:
        degree: Ranks of the axis.
        params: Cut parameters by their name below the block; all others are whole.
        widths: Share of its width that the first rank holds, by tensor name; all others are whole.
        rows: Operations that sum over ranks behind them, in order.
        columns: Operations that read a whole tensor and give a cut one, in order.
    """

    degree: int
    params: Mapping[str, ParamCut]
    widths: Mapping[str, Fraction]
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def local_shape(self, name: str, shape: tuple[int, ...], *, rank: int) -> tuple[int, ...]:
        """Shape of a parameter on one rank."""
        cut = self.params.get(name)
        if cut is None:
            return shape
        return tuple(cut.length(rank, degree=self.degree) if dim == cut.dim else size for dim, size in enumerate(shape))

    def width_of(self, tensor: Tensor) -> Fraction:
        """Share of a tensor's width on the first rank."""
        return self.widths.get(tensor.name, _WHOLE)


def share_block(
    block: Block, *, tp: int, vocab_size: int, cuts_experts: bool = True, ends_cut: bool = False
) -> BlockShare:
    """Walk through a block and say how ``tp`` ranks share it.

    Args:
        block: Operations in order.
        tp: Degree of tensor parallelism.
        vocab_size: Rows of the tables that are cut by rows.
        cuts_experts: Experts are cut like other products (no expert parallelism).
        ends_cut: What the block gives may be cut (the head, whose loss takes it so).
    """
    if tp == 1:
        return BlockShare(degree=1, params={}, widths={}, rows=(), columns=())
    denied: set[str] = set()
    while True:
        walk = _Walk(block.ops, tp=tp, vocab_size=vocab_size, cuts_experts=cuts_experts, denied=denied)
        guilty = walk.run(ends_cut=ends_cut)
        if not guilty:
            return walk.result()
        denied |= guilty


class _Walk:
    """One pass: for each tensor, the segments of its cut width and the products that caused it."""

    def __init__(self, ops: Sequence[Op], *, tp: int, vocab_size: int, cuts_experts: bool, denied: set[str]) -> None:
        self.ops, self.tp, self.vocab_size, self.denied = ops, tp, vocab_size, denied
        self.cuts_experts = cuts_experts
        self.sources: dict[str, frozenset[str]] = {}
        self.widths: dict[str, Fraction] = {}
        self.params: dict[str, ParamCut] = {}
        self.rows: list[str] = []
        self.columns: list[str] = []
        self.parts = _attention_parts(ops)
        self.inner = _row_widths(ops)
        self.table_widths: set[int] = set()

    def result(self) -> BlockShare:
        return BlockShare(
            degree=self.tp, params=self.params, widths=self.widths, rows=tuple(self.rows), columns=tuple(self.columns)
        )

    def run(self, *, ends_cut: bool) -> frozenset[str]:
        """Give the products that must stay whole, none if all is well."""
        for op in self.ops:
            guilty = self._step(op)
            if guilty:
                return guilty
        last = next((op.output for op in reversed(self.ops) if op.output is not None), None)
        return frozenset() if ends_cut or last is None else self._causes(last)

    def _causes(self, *tensors: Tensor) -> frozenset[str]:
        return frozenset().union(*(self.sources.get(_base(tensor).name, frozenset()) for tensor in tensors))

    def _step(self, op: Op) -> frozenset[str]:
        causes = self._causes(*op.inputs)
        match op.kind:
            case "embedding" | "parameter":
                self._table(op)
            case "linear":
                return self._linear(op, causes)
            case "norm" if causes and not _is_grouped(op):
                return causes
            case "router":
                return causes
            case "experts":
                self._experts(op)
                return causes
            case "attention" if causes:
                return self._attention(op, causes)
            case "norm" | "elementwise" if causes:
                return self._pass_on(op, causes)
            case "loss" if causes:
                for saved in op.saves:
                    self._mark(saved.tensor, max(self.widths[_base(t).name] for t in op.inputs), causes)
        return frozenset()

    def _table(self, op: Op) -> None:
        """Rows are looked up where they are, those of all tables summed at once; a bias by distance is cut by heads."""
        heads = {each.attention.heads for each in self.ops if each.attention is not None}
        for param in op.params:
            if op.output is None and len(param.shape) == 2 and param.shape[1] in heads and param.shape[1] >= self.tp:
                self.params[_full(op, param)] = ParamCut(dim=1, segments=(Segment(length=param.shape[1]),))
            is_vocabulary = param.shape[0] == self.vocab_size
            is_added = op.kind == "embedding" and param.shape[-1] in self.table_widths
            if (is_vocabulary or is_added) and param.shape[0] >= self.tp:
                self.params[_full(op, param)] = ParamCut(dim=0, segments=(Segment(length=param.shape[0]),))
                self.table_widths |= {param.shape[-1]} if op.kind == "embedding" else set()
                self.rows += [op.name] if is_vocabulary and op.output is not None else []

    def _linear(self, op: Op, causes: frozenset[str]) -> frozenset[str]:
        if not op.params:  # of two activations, or of a parameter that an operation before has named
            return causes
        weight, matmul = op.params[0], op.matmuls[0]
        is_transposed = weight.shape != (matmul.outer, matmul.inner)
        if causes:
            segments = self._row_segments(op)
            self.params[_full(op, weight)] = ParamCut(dim=0 if is_transposed else 1, segments=segments)
            self.rows.append(op.name)
            for saved in op.saves:  # the cast of a cut input is cut
                self._mark(saved.tensor, _fraction(segments, self.tp), causes)
            return frozenset()
        if op.name in self.denied:
            return frozenset()
        segments = self._column_segments(op)
        if not segments or op.output is None:
            return frozenset()
        self.params[_full(op, weight)] = ParamCut(dim=1 if is_transposed else 0, segments=segments)
        for bias in op.params[1:]:
            self.params[_full(op, bias)] = ParamCut(dim=0, segments=segments)
        self.columns.append(op.name)
        self._mark(op.output, _fraction(segments, self.tp), frozenset({op.name}))
        return frozenset()

    def _row_segments(self, op: Op) -> tuple[Segment, ...]:
        width = op.matmuls[0].inner
        shape = self.parts.behind.get(op.inputs[0].name)
        return (Segment(length=width, grain=width // shape if shape else 1),)

    def _column_segments(self, op: Op) -> tuple[Segment, ...]:
        """Whole heads where attention reads the result, else the width that the next product has, once or twice."""
        width = op.matmuls[0].outer
        if op.name in self.parts.segments:
            segments = self.parts.segments[op.name]
            return segments if sum(s.length for s in segments) == width else _by_heads(segments, width, self.tp)
        inner = self.inner.get(op.output.name if op.output else "", width)
        times = width // inner if inner and width % inner == 0 else 1
        if width // times < self.tp:
            return ()
        return tuple(Segment(length=width // times) for _ in range(times))

    def _experts(self, op: Op) -> None:
        """Every rank has a part of each expert's width, and the tokens all of them."""
        if not self.cuts_experts:
            return
        width = op.matmuls[1].inner
        for param in op.params:
            dims = [dim for dim, size in enumerate(param.shape) if dim and size in (width, 2 * width)]
            if param.name.startswith("gate_up"):
                dims = [dim for dim in dims if param.shape[dim] == 2 * width] or dims
            elif param.name.endswith("bias"):
                continue
            if dims:
                times = param.shape[dims[-1]] // width if param.name.startswith("gate_up") else 1
                dim = dims[-1] if param.name.startswith("gate_up") else _down_dim(param, op)
                self.params[_full(op, param)] = ParamCut(dim=dim, segments=(Segment(length=width),) * times)
        fraction = _fraction((Segment(length=width),), self.tp)
        for saved in op.saves:
            if saved.tensor.width % width == 0 and saved.tensor.name.rpartition(".")[2] not in _WHOLE_EXPERT_TENSORS:
                self.widths[saved.tensor.name] = fraction
        self.rows.append(op.name)

    def _attention(self, op: Op, causes: frozenset[str]) -> frozenset[str]:
        shape = op.attention
        if shape is None or op.output is None:
            return frozenset()
        heads = _fraction((Segment(length=shape.heads),), self.tp)
        keys = _fraction((Segment(length=shape.kv_heads),), self.tp)
        for saved in op.saves:
            is_key = saved.tensor.name in {tensor.name for tensor in op.inputs[1:]} and shape.kv_heads != shape.heads
            if not saved.tensor.shared and saved.tensor.rows != "mask":
                self._mark(saved.tensor, keys if is_key else heads, causes)
        self._mark(op.output, heads, causes)
        return frozenset()

    def _pass_on(self, op: Op, causes: frozenset[str]) -> frozenset[str]:
        if op.output is None:
            return frozenset()
        cut = [tensor for tensor in op.inputs if self._causes(tensor)]
        whole = [tensor for tensor in op.inputs if tensor not in cut]
        if any(tensor.width == op.output.width for tensor in whole):
            return causes
        fraction = max(self.widths[_base(tensor).name] for tensor in cut)
        for saved in op.saves:
            if saved.tensor.rows not in ("once", "positions") and not saved.tensor.shared:
                is_whole = any(_base(saved.tensor).name == tensor.name for tensor in whole)
                self._mark(saved.tensor, _WHOLE if is_whole else fraction, frozenset() if is_whole else causes)
        self._mark(op.output, fraction, causes)
        return frozenset()

    def _mark(self, tensor: Tensor, fraction: Fraction, causes: frozenset[str]) -> None:
        known = self.widths.get(_base(tensor).name, fraction)
        if causes:
            self.widths[tensor.name] = known if tensor.cast_of is not None else fraction
            self.sources[tensor.name] = causes


_WHOLE_EXPERT_TENSORS = frozenset({"order", "sent", "sent_weights", "returned"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionParts:
    """``segments``: what attention reads of a product, by its name. ``behind``: heads in a tensor made by attention."""

    segments: Mapping[str, tuple[Segment, ...]]
    behind: Mapping[str, int]


def _attention_parts(ops: Sequence[Op]) -> _AttentionParts:
    makers = {op.output.name: op for op in ops if op.output is not None}
    segments: dict[str, tuple[Segment, ...]] = {}
    behind: dict[str, int] = {}
    for op in ops:
        shape = op.attention
        if shape is None or op.output is None:
            continue
        behind[op.output.name] = shape.heads
        kinds = ((shape.heads, shape.qk_width), (shape.kv_heads, shape.qk_width), (shape.kv_heads, shape.v_width))
        for tensor, (heads, width) in zip(op.inputs, kinds, strict=True):
            for maker in _products_behind(tensor, makers):
                segments[maker] = (*segments.get(maker, ()), Segment(length=heads * width, grain=width))
    return _AttentionParts(segments=segments, behind=behind)


def _products_behind(tensor: Tensor, makers: Mapping[str, Op]) -> list[str]:
    """Names of the nearest products that a tensor was computed from."""
    op = makers.get(_base(tensor).name)
    if op is None:
        return []
    if op.kind == "linear":
        return [op.name]
    return [name for each in op.inputs for name in _products_behind(each, makers)]


def _row_widths(ops: Sequence[Op]) -> dict[str, int]:
    """Inner width of the next product that reads a tensor, directly or through elementwise work."""
    widths: dict[str, int] = {}
    for op in reversed(ops):
        if op.kind == "linear":
            widths[_base(op.inputs[0]).name] = op.matmuls[0].inner
        elif op.kind == "elementwise" and op.output is not None and op.output.name in widths:
            for tensor in op.inputs:
                widths.setdefault(_base(tensor).name, widths[op.output.name])
    return widths


def _by_heads(segments: tuple[Segment, ...], width: int, tp: int) -> tuple[Segment, ...]:
    """A product that gives every head something else than attention reads (latents): equal parts, a head each."""
    heads = max(segment.length // segment.grain for segment in segments)
    if width % heads or heads < tp:
        return ()
    return (Segment(length=width, grain=width // heads),)


def _down_dim(param: Param, op: Op) -> int:
    """The dim of a stacked down matrix that the experts' width runs along."""
    width, outer = op.matmuls[1].inner, op.matmuls[1].outer
    return 2 if param.shape[1:] == (outer, width) else 1


def _is_grouped(op: Op) -> bool:
    """Whether a norm looks at heads one by one."""
    return bool(op.params) and op.params[0].shape[0] < op.inputs[0].width


def _fraction(segments: tuple[Segment, ...], tp: int) -> Fraction:
    return Fraction(sum(s.share(0, degree=tp) for s in segments), sum(s.length for s in segments))


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor.cast_of is None else _base(tensor.cast_of)


def _full(op: Op, param: Param) -> str:
    return ".".join(filter(None, (op.name, param.name)))
