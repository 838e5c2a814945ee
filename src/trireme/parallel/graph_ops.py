"""From recorded calls to the operations of one section of a model: products, attention, norms, the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from trireme.graph import AttentionShape, Block, ExpertShape, Matmul, Op, OpKind, Param, Saved, Tensor
from trireme.parallel.graph_attention import Scores, find_scores
from trireme.parallel.graph_group import grouped
from trireme.parallel.graph_record import Ran, Seen
from trireme.parallel.graph_size import Runs
from trireme.parallel.graph_tensor import PRODUCTS, Naming, is_attention

_REDUCTIONS = frozenset({"mean", "var", "var_mean", "std", "native_layer_norm", "_fused_rms_norm", "native_group_norm"})
_GATES = frozenset({"silu", "gelu", "relu", "sigmoid", "tanh", "elu", "mish", "hardswish", "softplus"})
_UNKNOWN = ("lstm", "rnn", "gru", "cdist", "bilinear", "fft", "mm", "conv", ".")
"""Parts of names of calls whose products aren't counted here; a dot is in those that aren't torch's own."""

_FUSED_ONLY, _EAGER_ONLY = True, False


@dataclass(slots=True, kw_only=True)
class Section:
    """Calls of one block, or of what lies between blocks.

    Attributes:
        path: The block's module path, empty between blocks.
        first: Number of the first call over the whole forward.
        calls: In order.
        naming: Names of its tensors.
        read_later: Memory that later sections read.
        declared: Memory of parameters that some operation has named already.
        aliases: Further names of parameters that some operation has named.
        owners: Modules by path, for what they say of themselves.
        ties: Further names of parameters, to their first.
        unknown: Calls that multiply by ways that aren't known here.
    """

    path: str
    first: int
    calls: Sequence[Ran]
    naming: Naming
    read_later: frozenset[int]
    declared: set[int]
    aliases: set[str]
    owners: Mapping[str, Any]
    ties: dict[str, str] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)

    def block(self, kind: str) -> Block:
        """Give the section as a block."""
        return Block(kind=kind, ops=tuple(self.ops))

    def write(self) -> None:
        """Write every operation down."""
        scores = find_scores(self.calls)
        inside = {index for each in scores for index in each.calls}
        ends = {each.last: each for each in scores}
        for group in grouped(self.calls, read_later=self.read_later, apart=inside):
            last = group[-1]
            if last in ends:
                self._scores(ends[last])
            elif last in inside:
                continue
            else:
                self._write(group)

    def _write(self, group: Sequence[int]) -> None:
        ran = self.calls[group[0]]
        if len(group) > 1 and any(self.calls[index].name == "_grouped_mm" for index in group):
            self._experts(group)
        elif len(group) == 1 and ran.name in PRODUCTS:
            self._product(group[0])
        elif is_attention(ran.name):
            self._fused_attention(group[0])
        else:
            self._elementwise(group)

    def _product(self, index: int) -> None:
        ran = self.calls[index]
        weight = self._weight(ran)
        inner, outer = _factors(ran, weight)
        size = self._runs.made(self.first + index, of=outer)
        matmul = Matmul(inner=inner, outer=outer, rows=size.rows, times=size.width)
        name, params = self._params(ran, fallback=ran.name)
        read = [place for place, seen in enumerate(ran.inputs) if not self._is_param(seen)]
        inputs = tuple(self._view(index, place) for place in read[-2:]) or (self._view(index, 0),)
        output = self._output(ran)
        kind: OpKind = "convolution" if ran.name == "convolution" else "linear"
        if weight is not None and self._leads_to_choice(index):
            kind = "router"
        if not read:  # parameters alone
            kind = "elementwise"
        if weight is None:
            inputs = tuple(_with_rows(tensor, matmul) for tensor in inputs)
        saves = tuple(Saved(tensor=_compute(tensor, of=f"{name}.")) for tensor in self._tensors(ran.kept))
        self._add(name, kind, inputs, output, params=params, matmuls=(matmul,), saves=saves)

    def _weight(self, ran: Ran) -> Seen | None:
        matrices = [seen for seen in ran.inputs if self._is_param(seen) and len(seen.shape) > 1]
        return matrices[0] if matrices else None

    def _leads_to_choice(self, index: int) -> bool:
        """Whether the best of a product's results are chosen, by anything but a matrix product."""
        reached = {seen.storage for seen in self.calls[index].outputs}
        for ran in self.calls[index + 1 :]:
            if not reached & {seen.storage for seen in ran.inputs}:
                continue
            if ran.name in ("topk", "sort"):
                return True
            if ran.name not in PRODUCTS and not is_attention(ran.name):
                reached |= {seen.storage for seen in ran.outputs}
        return False

    def _fused_attention(self, index: int) -> None:
        ran = self.calls[index]
        q, k, v = ran.inputs[:3]
        seqs = self._runs.load.seqs
        shape = AttentionShape(
            heads=q.shape[1] * max(1, q.shape[0] // seqs),
            kv_heads=self._kv_heads(k),
            qk_width=q.shape[-1],
            v_width=v.shape[-1],
            causal=self._is_causal(ran, masked=True in ran.options or len(ran.inputs) > 3),
            window=self._window(ran),
            cache_width=self._kv_heads(k) * (k.shape[-1] + v.shape[-1]),
        )
        read = tuple(self._tensor(self.naming.kinds.origin(seen.storage)) for seen in (q, k, v))
        kept = [storage for storage in ran.kept if storage not in {seen.storage for seen in ran.inputs[:3]}]
        masks = {seen.storage for seen in ran.inputs[3:]}
        saves = [Saved(tensor=_compute(tensor)) for tensor in read]
        for part, origin in zip((q, k, v), read, strict=True):
            if part.storage in ran.kept and self._tensor(part.storage) != origin:
                saves.append(Saved(tensor=self._tensor(part.storage), attention=("eager", "sdpa")))
        saves[0:3] = [
            saved
            if self._tensor(part.storage) == saved.tensor or saved.tensor.cast_of == self._tensor(part.storage)
            else Saved(tensor=saved.tensor, attention=("flash",))
            for part, saved in zip((q, k, v), saves[0:3], strict=True)
        ]
        for storage in dict.fromkeys(kept):
            kept_tensor = Saved(tensor=self._tensor(storage))
            saves.append(replace(kept_tensor, attention=("eager", "sdpa")) if storage in masks else kept_tensor)
        self._add(self._name(ran, "attention"), "attention", read, self._output(ran), saves=tuple(saves), shape=shape)

    def _scores(self, scores: Scores) -> None:
        """Attention written out: two products with a softmax between them."""
        first, last = self.calls[scores.first], self.calls[scores.last]
        q, k = first.inputs[-2:] if first.name == "baddbmm" else first.inputs[:2]
        v = last.inputs[1]
        seqs = self._runs.load.seqs
        heads = max(1, prod(q.shape[:-2]) // seqs)
        calls = [self.calls[index] for index in scores.calls]
        shape = AttentionShape(
            heads=heads,
            kv_heads=self._kv_heads(k, heads=heads),
            qk_width=q.shape[-1],
            v_width=v.shape[-1],
            causal=self._is_causal(last, masked=scores.is_masked),
            window=self._window(last),
            cache_width=self._kv_heads(k, heads=heads) * (q.shape[-1] + v.shape[-1]),
        )
        read = tuple(self._tensor(self.naming.kinds.origin(seen.storage)) for seen in (q, k, v))
        kept = {
            (_compute(tensor) if ran.name in PRODUCTS else tensor): None
            for ran in calls
            for tensor in self._tensors(ran.kept)
        }
        saves = tuple(Saved(tensor=tensor) for tensor in kept)
        self._add(self._name(last, "attention"), "attention", read, self._output(last), saves=saves, shape=shape)

    def _is_causal(self, ran: Ran, *, masked: bool) -> bool:
        """What the module says of itself, else whether anything masks the scores."""
        module = self.owners.get(ran.module)
        said = [getattr(module, key, None) for key in ("is_causal", "is_decoder")]
        return next((each for each in said if isinstance(each, bool)), masked)

    def _window(self, ran: Ran) -> int | None:
        """How far a query looks back, where the module says so."""
        module = self.owners.get(ran.module)
        config = getattr(module, "config", None)
        window = getattr(module, "sliding_window", None)
        is_alike = getattr(config, "layer_types", None) is None and getattr(config, "use_sliding_window", True)
        if not hasattr(module, "sliding_window") and is_alike:
            window = getattr(config, "sliding_window", None)
        return window if isinstance(window, int) and window > 0 else None

    def _kv_heads(self, keys: Seen, *, heads: int = 0) -> int:
        """Heads before they are repeated for their queries."""
        heads = heads or max(1, prod(keys.shape[:-2]) // self._runs.load.seqs)
        memory = self._runs.base.memory
        whole = memory[keys.storage].numel
        return max(1, heads * min(memory[self.naming.kinds.origin(keys.storage)].numel, whole) // max(1, whole))

    def _experts(self, group: Sequence[int]) -> None:
        calls = [self.calls[index] for index in group]
        products = [(index, self.calls[index]) for index in group if self.calls[index].name == "_grouped_mm"]
        matmuls, params = list[Matmul](), list[Param]()
        name = ""
        for index, ran in products:
            weight = self._weight(ran)
            inner, outer = _factors(ran, weight)
            size = self._runs.made(self.first + index, of=outer)
            matmuls.append(Matmul(inner=inner, outer=outer, rows=size.rows, times=size.width))
        for ran in calls:
            owner, found = self._params(ran, fallback="")
            name, params = name or owner, [*params, *found]
        count = max((param.shape[0] for param in params if len(param.shape) == 3), default=1)
        shape = ExpertShape(num_experts=count, top_k=matmuls[0].times)
        inputs = sorted(self._read(calls), key=lambda tensor: -tensor.width)
        self._add(
            name or self._name(calls[-1], "experts"),
            "experts",
            tuple(inputs) or (self._output(calls[0]),),
            self._output(calls[-1]),
            params=tuple(params),
            matmuls=tuple(matmuls),
            saves=tuple(Saved(tensor=tensor) for tensor in self._kept(calls)),
            experts=shape,
        )

    def _elementwise(self, group: Sequence[int]) -> None:
        calls = [self.calls[index] for index in group]
        last = calls[-1]
        inputs = tuple(self._read(calls))
        name, params = "", list[Param]()
        for ran in calls:
            owner, found = self._params(ran, fallback="")
            if found and name and owner != name:
                self._add(owner, "parameter", (), None, params=found)
                continue
            name, params = name or (owner if found else ""), [*params, *found]
        kind: OpKind = "elementwise"
        if calls[0].name == "embedding":
            kind = "embedding"
        elif any(ran.name in _REDUCTIONS for ran in calls) and inputs and inputs[0].rows == "tokens":
            kind = "norm"
        kept = self._kept(calls)
        if kind == "norm":
            saves = _norm_saves(name or "norm", inputs[0], params, kept)
        elif len(calls) > 1:
            saves = _chain_saves(inputs, kept)
        else:
            saves = self._gate_saves(last, kept)
        self.unknown |= dict.fromkeys(ran.name for ran in calls if any(part in ran.name for part in _UNKNOWN))
        suffix = "residual" if len(calls) == 1 and last.name in ("add", "add_") and len(inputs) > 1 else last.name
        self._add(name or self._name(last, suffix), kind, inputs, self._output(last), params=tuple(params), saves=saves)

    def _gate_saves(self, ran: Ran, kept: Sequence[Tensor]) -> tuple[Saved, ...]:
        """A fused kernel computes an activation again rather than keep it beside what it multiplies."""
        if ran.name not in ("mul", "mul_"):
            return tuple(Saved(tensor=tensor) for tensor in kept)
        activated = {
            self._tensor(seen.storage).name
            for seen in ran.inputs
            if (maker := self.naming.kinds.makers.get(seen.storage)) is not None and maker.name in _GATES
        }
        return tuple(Saved(tensor=t, fused=_EAGER_ONLY if t.name in activated else None) for t in kept)

    def _read(self, calls: Sequence[Ran]) -> Iterator[Tensor]:
        """What calls read that none of them makes, parameters apart."""
        made = {seen.storage for ran in calls for seen in ran.outputs}
        read = (seen for ran in calls for seen in ran.inputs if not self._is_param(seen))
        return self._tensors([seen.storage for seen in read if seen.storage not in made])

    def _kept(self, calls: Sequence[Ran]) -> list[Tensor]:
        return list(self._tensors(dict.fromkeys(storage for ran in calls for storage in ran.kept)))

    def _params(self, ran: Ran, *, fallback: str) -> tuple[str, tuple[Param, ...]]:
        """Parameters that a call reads for the first time, and the module that holds them."""
        names = self._runs.base.params
        found, owner = list[Param](), ""
        for seen in sorted((seen for seen in ran.inputs if self._is_param(seen)), key=lambda each: -len(each.shape)):
            if not self._runs.base.is_trained(seen.storage):
                continue
            full = self._param_name(names[seen.storage], ran.module, seen.storage)
            if full is None:
                continue
            holder, _, last = full.rpartition(".")
            if found and holder != owner:
                self._add(holder, "parameter", (), None, params=(self._param(last, seen.storage),))
                continue
            owner = holder
            found.append(self._param(last, seen.storage))
        return (owner if found else self._name(ran, fallback) if fallback else ""), tuple(found)

    def _param(self, name: str, storage: int) -> Param:
        return Param(name=name, shape=self._runs.base.shapes[storage])

    def _param_name(self, names: tuple[str, ...], module: str, storage: int) -> str | None:
        """Name below the section; None where the section has named it before. A second reader's is a tie's alias."""
        if storage in self.declared:
            own = (name for name in names if name.rpartition(".")[0] == module)
            alias = next(own, f"{module or 'tied'}.weight")
            if self.path or alias in self.aliases or alias == names[0]:
                return None
            self.aliases.add(alias)
            self.ties[alias] = names[0]
            return alias
        self.declared.add(storage)
        return self._below(names[0])

    def _below(self, name: str) -> str:
        prefix = f"{self.path}."
        return name.removeprefix(prefix) if self.path and name.startswith(prefix) else name

    def _name(self, ran: Ran, what: str) -> str:
        module = self._below(ran.module) if ran.module != self.path else ""
        base = f"{module}.{what}" if module else what
        same = sum(op.name == base or op.name.startswith(f"{base}#") for op in self.ops)
        return f"{base}#{same}" if same else base

    @property
    def _runs(self) -> Runs:
        return self.naming.kinds.runs

    def _is_param(self, seen: Seen) -> bool:
        return seen.storage in self._runs.base.params

    def _tensor(self, storage: int) -> Tensor:
        return self.naming.tensor(storage)

    def _tensors(self, storages: Sequence[int] | dict[int, None]) -> Iterator[Tensor]:
        for storage in dict.fromkeys(storages):
            yield self._tensor(storage)

    def _view(self, index: int, place: int) -> Tensor:
        seen = self.calls[index].inputs[place]
        return self.naming.view(seen.storage, call=self.first + index, place=place)

    def _output(self, ran: Ran) -> Tensor:
        return self._tensor(ran.outputs[0].storage)

    def _add(
        self,
        name: str,
        kind: OpKind,
        inputs: tuple[Tensor, ...],
        output: Tensor | None,
        *,
        params: tuple[Param, ...] = (),
        matmuls: tuple[Matmul, ...] = (),
        saves: tuple[Saved, ...] = (),
        shape: AttentionShape | None = None,
        experts: ExpertShape | None = None,
    ) -> None:
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                params=params,
                matmuls=matmuls,
                attention=shape,
                experts=experts,
                saves=saves,
                inputs=inputs,
                output=output,
            )
        )


def _factors(ran: Ran, weight: Seen | None) -> tuple[int, int]:
    """Inner and outer length of a product."""
    if ran.name == "convolution":
        kernel = ran.inputs[1].shape
        return prod(kernel[1:]), kernel[0]
    outer = ran.outputs[0].shape[-1] if ran.outputs[0].shape else 1
    factors = ran.inputs[1:3] if ran.name in ("addmm", "baddbmm", "addmv") else ran.inputs[:2]
    return factors[0].shape[-1] if factors and factors[0].shape else 1, outer


def _with_rows(tensor: Tensor, matmul: Matmul) -> Tensor:
    """A product of two activations has as many rows as it says, whatever its factors have."""
    return tensor if tensor.rows == matmul.rows else Tensor(name=tensor.name, width=matmul.inner, rows=matmul.rows)


def _compute(tensor: Tensor, *, of: str = "") -> Tensor:
    """The copy in the format of products that autocast makes for each product of its own (``of``)."""
    if tensor.kind != "stream":
        return tensor
    name = f"{of}{tensor.name}@compute"
    return Tensor(name=name, width=tensor.width, rows=tensor.rows, cast_of=tensor, shared=tensor.shared)


def _chain_saves(inputs: Sequence[Tensor], kept: Sequence[Tensor]) -> tuple[Saved, ...]:
    """What a chain of calls keeps; one kernel in its place keeps what went in, where that is less."""
    if sum(tensor.width for tensor in inputs) >= sum(tensor.width for tensor in kept):
        return tuple(Saved(tensor=tensor) for tensor in kept)
    given = tuple(Saved(tensor=tensor, fused=_FUSED_ONLY) for tensor in inputs)
    return (*given, *(Saved(tensor=tensor, fused=_EAGER_ONLY) for tensor in kept))


def _norm_saves(name: str, x: Tensor, params: Sequence[Param], kept: Sequence[Tensor]) -> tuple[Saved, ...]:
    """What the code keeps, and what a fused kernel keeps in its place: the input and a number or two per group."""
    size = max((param.numel for param in params), default=x.width)
    stats = Tensor(name=f"{name}.rstd", width=max(1, x.width // max(1, size)), rows=x.rows, kind="float32")
    fused = (Saved(tensor=x, fused=_FUSED_ONLY), Saved(tensor=stats, fused=_FUSED_ONLY))
    return (*fused, *(Saved(tensor=tensor, fused=_EAGER_ONLY) for tensor in kept))
