"""Write a block down operation by operation, as its forward pass runs, with what autograd keeps of each.

The rules are what torch's autograd keeps for the eager code of transformers 5 (measured with
``torch.autograd.graph.saved_tensors_hooks``; a test compares every family), and beside each the rule of the
fused kernel that replaces it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from trireme.graph.block import Block
from trireme.graph.op import AttentionShape, Matmul, Op, OpKind, Param
from trireme.graph.tensor import Kind, Rows, Saved, Tensor, compute_copy, float32_copy

NormFlavour = Literal["plain", "float32", "offset", "t5", "bare"]
_SDPA_OR_FLASH: tuple[Literal["sdpa"], Literal["flash"]] = ("sdpa", "flash")


class Tape:
    """Collects operations; every method adds one and returns the tensor that it makes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def block(self, kind: str) -> Block:
        """What was written, as a block of that kind."""
        return Block(kind=kind, ops=tuple(self.ops))

    def add(self, op: Op) -> None:
        """Append an operation that has no method of its own."""
        self.ops.append(op)

    def linear(
        self,
        name: str,
        x: Tensor,
        width: int,
        *,
        bias: bool = False,
        transposed: bool = False,
        rows: Rows = "tokens",
        weight: str = "weight",
    ) -> Tensor:
        """A matrix product; ``transposed`` is the (in, out) weight of GPT-2's Conv1D."""
        shape = (x.width, width) if transposed else (width, x.width)
        params = (Param(name=weight, shape=shape), *([Param(name="bias", shape=(width,))] if bias else []))
        output = Tensor(name=f"{name}.out", width=width, rows=rows)
        matmul = Matmul(inner=x.width, outer=width, rows=rows)
        saves = (Saved(tensor=compute_copy(x, name=f"{name}.in")),)
        self._add(name, "linear", (x,), output, params=params, matmuls=(matmul,), saves=saves)
        return output

    def rms_norm(
        self,
        name: str,
        x: Tensor,
        *,
        size: int | None = None,
        flavour: NormFlavour = "plain",
        output_kind: Kind = "stream",
    ) -> Tensor:
        """RMSNorm over groups of ``size`` numbers (all by default).

        Flavours, by what eager code keeps beside the float32 input: ``plain`` scales in the model's format,
        ``float32`` before casting back, ``offset`` likewise with a weight of 1 + w (Gemma), ``t5`` multiplies
        the uncast input, ``bare`` has no weight. Under autocast the float32 weight makes the result float32;
        ``output_kind="compute"`` is for norms that cast it back themselves.
        """
        size = size or x.width
        rstd = Tensor(name=f"{name}.rstd", width=x.width // size, rows=x.rows, kind="float32")
        saves = [Saved(tensor=x, fused=True), Saved(tensor=float32_copy(x), fused=False), Saved(tensor=rstd)]
        kept = Tensor(name=f"{name}.normalized", width=x.width, rows=x.rows, kind=x.kind)
        if flavour == "t5":
            saves.append(Saved(tensor=x, fused=False))
        if flavour in ("float32", "offset"):
            kept = Tensor(name=kept.name, width=x.width, rows=x.rows, kind="float32")
        if flavour == "offset":
            scale = Tensor(name=f"{name}.scale", width=size, rows="once", kind="float32")
            saves.append(Saved(tensor=scale, fused=False))
        if flavour != "bare":
            saves.append(Saved(tensor=kept, fused=False))
        params = () if flavour == "bare" else (Param(name="weight", shape=(size,)),)
        output = Tensor(name=f"{name}.out", width=x.width, rows=x.rows, kind=output_kind)
        self._add(name, "norm", (x,), output, params=params, saves=tuple(saves))
        return output

    def layer_norm(self, name: str, x: Tensor, *, size: int | None = None, affine: bool = True) -> Tensor:
        """torch's LayerNorm over groups of ``size`` numbers: keeps its input and two numbers per group."""
        size = size or x.width
        params = tuple(Param(name=n, shape=(size,)) for n in ("weight", "bias")) if affine else ()
        stats = Tensor(name=f"{name}.stats", width=2 * (x.width // size), rows=x.rows, kind="float32")
        output = Tensor(name=f"{name}.out", width=x.width, rows=x.rows, kind="stream")
        saves = (Saved(tensor=x), Saved(tensor=stats))
        self._add(name, "norm", (x,), output, params=params, saves=saves)
        return output

    def activation(self, name: str, x: Tensor, function: str, *, output: str = "") -> Tensor:
        """An elementwise nonlinearity by its Hugging Face name."""
        result = Tensor(name=output or f"{name}.out", width=x.width, rows=x.rows)
        saves: tuple[Saved, ...] = (Saved(tensor=x),)
        if function == "relu":
            saves = (Saved(tensor=result),)
        elif function in ("gelu_new", "gelu_fast"):
            # Written out as tanh of a polynomial: tanh, half the input and one plus tanh are kept as well.
            parts = (Tensor(name=f"{name}.part{index}", width=x.width, rows=x.rows) for index in range(3))
            saves += tuple(Saved(tensor=part, fused=False) for part in parts)
        elif function == "quick_gelu":
            saves += (Saved(tensor=Tensor(name=f"{name}.sigmoid", width=x.width, rows=x.rows), fused=False),)
        self._add(name, "elementwise", (x,), result, saves=saves)
        return result

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """``a * b`` with ``a`` from an activation, which a fused kernel computes again in backward."""
        output = Tensor(name=f"{name}.product", width=a.width, rows=a.rows)
        saves = (Saved(tensor=a, fused=False), Saved(tensor=b))
        self._add(name, "elementwise", (a, b), output, saves=saves)
        return output

    def scaled(self, name: str, x: Tensor, scale: Tensor) -> Tensor:
        """``x * scale`` where both need gradients; ``scale`` may be one number per row."""
        output = Tensor(name=f"{name}.scaled", width=x.width, rows=x.rows)
        self._add(name, "elementwise", (x, scale), output, saves=(Saved(tensor=x), Saved(tensor=scale)))
        return output

    def dropout(self, name: str, x: Tensor, *, ratio: float) -> Tensor:
        """Keeps a mask where the ratio isn't zero, else is nothing at all."""
        if not ratio:
            return x
        mask = Tensor(name=f"{name}.mask", width=x.width, rows=x.rows, kind="dropout_mask")
        output = Tensor(name=f"{name}.out", width=x.width, rows=x.rows)
        self._add(name, "elementwise", (x,), output, saves=(Saved(tensor=mask),))
        return output

    def softcap(self, name: str, x: Tensor) -> Tensor:
        """``cap * tanh(x / cap)``: tanh keeps its result."""
        output = Tensor(name=f"{name}.softcap", width=x.width, rows=x.rows)
        self._add(name, "elementwise", (x,), output, saves=(Saved(tensor=output),))
        return output

    def rotary(
        self,
        name: str,
        x: Tensor,
        *,
        width: int,
        float32: bool = False,
        tables: str = "rotary",
        shared: bool = True,
        output_kind: Kind = "stream",
    ) -> Tensor:
        """Rotary positions: keeps the cosine and sine tables, which all layers share unless each expands its own."""
        kind: Kind = "float32" if float32 else "stream"
        table = Tensor(name=tables, width=2 * width, rows="positions", kind=kind, shared=shared)
        output = Tensor(name=f"{name}.rotated", width=x.width, rows=x.rows, kind=output_kind)
        self._add(name, "elementwise", (x,), output, saves=(Saved(tensor=table),))
        return output

    def add_residual(self, name: str, x: Tensor, *others: Tensor) -> Tensor:
        """A sum; keeps nothing."""
        output = Tensor(name=f"{name}.sum", width=x.width, rows=x.rows, kind="stream")
        self._add(name, "elementwise", (x, *others), output)
        return output

    def embedding(self, name: str, *, rows: int, width: int, per: Rows = "tokens", saves_input: bool = True) -> Tensor:
        """A table looked up by index; keeps the indices."""
        indices = Tensor(name=f"{name}.indices", width=1, rows=per, kind="int64")
        output = Tensor(name=f"{name}.out", width=width, rows=per, kind="stream")
        saves = (Saved(tensor=indices),) if saves_input else ()
        self._add(
            name, "embedding", (indices,), output, params=(Param(name="weight", shape=(rows, width)),), saves=saves
        )
        return output

    def parameter(self, name: str, shape: tuple[int, ...]) -> None:
        """A bare parameter of the block (a class token, attention sinks)."""
        self._add(name, "parameter", (), None, params=(Param(name="", shape=shape),))

    def cross_entropy(self, logits: Tensor, *, rows: Rows = "tokens") -> None:
        """Eager code casts the logits and keeps float32 log-probabilities; a fused kernel works in place."""
        logprobs = Tensor(name="loss.log_probabilities", width=logits.width, rows=rows, kind="float32")
        saves = (Saved(tensor=logprobs, fused=False), Saved(tensor=logits, fused=True))
        self._add("loss", "loss", (logits,), None, saves=saves)

    def attention(
        self,
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        shape: AttentionShape,
        *,
        upcast: bool = True,
        softcap: bool = False,
        sinks: bool = False,
        dropout: float = 0.0,
        copies_output: bool = False,
        learned_bias: bool = False,
    ) -> Tensor:
        """Scores, softmax and weighted sum.

        ``upcast``: eager softmax runs in float32. ``copies_output``: queries are laid out head by head (they come
        from a concatenation), so the flash kernel's output is too, and merging heads copies it.
        ``learned_bias``: a bias that needs a gradient is added to the scores (or, across, handed on as zeros);
        torch's sdpa then computes plainly in float32.
        """
        q, k, v = (compute_copy(x, name=f"{name}.{part}@compute") for x, part in ((q, "q"), (k, "k"), (v, "v")))
        output = Tensor(name=f"{name}.merged", width=shape.heads * shape.v_width)
        raw = Tensor(name=f"{name}.heads", width=output.width) if copies_output else output
        scores = _eager_saves(name, shape, upcast=upcast, softcap=softcap, sinks=sinks, dropout=dropout)
        lse = Tensor(name=f"{name}.lse", width=shape.heads, kind="float32")
        if learned_bias and not shape.cross:
            kernel = tuple(Saved(tensor=t, attention=("flash",)) for t in (q, k, v, raw, lse))
            saves = (*scores, *kernel, *_plain_sdpa_saves(name, shape))
        else:
            kernel = tuple(Saved(tensor=t, attention=_SDPA_OR_FLASH) for t in (q, raw, lse))
            saves = (*scores, *kernel, *_key_value_saves(name, k, v, shape))
        if learned_bias and shape.cross:
            zeros = Tensor(name="cross_bias", width=shape.heads, rows="memory_position_pairs", shared=True)
            saves = (*saves, Saved(tensor=zeros, attention=("sdpa",)))
        self._add(name, "attention", (q, k, v), output, saves=saves, attention=shape)
        return output

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
        attention: AttentionShape | None = None,
    ) -> None:
        self.add(
            Op(
                name=name,
                kind=kind,
                params=params,
                matmuls=matmuls,
                saves=saves,
                attention=attention,
                inputs=inputs,
                output=output,
            )
        )


def logits_loss(classes: int, *, rows: Rows = "tokens") -> Block:
    """The loss behind logits of so many classes."""
    tape = Tape()
    tape.cross_entropy(Tensor(name="logits", width=classes, rows=rows), rows=rows)
    return tape.block("loss")


def _eager_saves(
    name: str, shape: AttentionShape, *, upcast: bool, softcap: bool, sinks: bool, dropout: float
) -> tuple[Saved, ...]:
    """Copies of q, k and v with key/value heads repeated, and the score matrices."""
    keys: Rows = "memory" if shape.cross else "tokens"
    pairs: Rows = "memory_pairs" if shape.cross else "pairs"
    probs = Tensor(name=f"{name}.probs", width=shape.heads, rows=pairs)
    kept = [
        Tensor(name=f"{name}.q", width=shape.heads * shape.qk_width),
        Tensor(name=f"{name}.k", width=shape.heads * shape.qk_width, rows=keys),
        Tensor(name=f"{name}.v", width=shape.heads * shape.v_width, rows=keys),
        probs,
    ]
    if softcap:
        kept.append(Tensor(name=f"{name}.tanh", width=shape.heads, rows=pairs))
    softmax = float32_copy(probs)
    # Where softmax isn't asked for float32, it still runs in the stream's format under autocast.
    kept.append(softmax if upcast else replace(softmax, kind="stream"))
    if sinks:  # one more column of scores, and the index of each row's maximum
        kept.append(Tensor(name=f"{name}.sink_probs", width=shape.heads))
        kept.append(Tensor(name=f"{name}.max_index", width=shape.heads, kind="int64"))
    if dropout:
        kept.append(Tensor(name=f"{name}.dropout_mask", width=shape.heads, rows=pairs, kind="dropout_mask"))
        kept.append(Tensor(name=f"{name}.dropped", width=shape.heads, rows=pairs))
    return tuple(Saved(tensor=tensor, attention=("eager",)) for tensor in kept)


def _plain_sdpa_saves(name: str, shape: AttentionShape) -> tuple[Saved, ...]:
    """What torch's sdpa keeps where no fused kernel takes the bias: float32 q, k, v and score matrix."""
    widths = {"q": shape.qk_width, "k": shape.qk_width, "v": shape.v_width}
    kept = [
        Tensor(name=f"{name}.{part}@plain", width=shape.heads * width, kind="float32") for part, width in widths.items()
    ]
    kept.append(Tensor(name=f"{name}.probs@plain", width=shape.heads, rows="pairs", kind="float32"))
    return tuple(Saved(tensor=tensor, attention=("sdpa",)) for tensor in kept)


def _key_value_saves(name: str, k: Tensor, v: Tensor, shape: AttentionShape) -> tuple[Saved, ...]:
    """Keys and values as flash keeps them; sdpa repeats their heads and keeps a mask once a window bites."""
    if shape.reach is None:
        return tuple(Saved(tensor=t, attention=_SDPA_OR_FLASH) for t in (k, v))
    flash = tuple(Saved(tensor=t, attention=("flash",)) for t in (k, v))
    short = tuple(Saved(tensor=t, attention=("sdpa",), up_to=shape.reach) for t in (k, v))
    repeated = (k, v)
    if shape.heads != shape.kv_heads:
        repeated = (
            Tensor(name=f"{name}.k", width=shape.heads * shape.qk_width),
            Tensor(name=f"{name}.v", width=shape.heads * shape.v_width),
        )
    masked = (*repeated, Tensor(name=f"{name}.mask", width=1, rows="mask"))
    long = tuple(Saved(tensor=t, attention=("sdpa",), longer_than=shape.reach) for t in masked)
    return flash + short + long
