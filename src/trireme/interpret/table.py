"""Which rule meets which torch function: everything the interpreter understands, on one page.

A function that is not here and gets a shard is run on gathered inputs, with a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret import (
    across,
    attention,
    convolution,
    creation,
    dispatch,
    embedding,
    head,
    indexing,
    loss,
    matmul,
    metadata,
    module_attention,
    padding,
    permute,
    pointwise,
    reduction,
    section,
    view,
)
from trireme.interpret.call import Rule

_POINTWISE = """
add sub rsub mul div true_divide multiply divide subtract neg negative pow square exp exp2 expm1 log log1p log2 sqrt
rsqrt reciprocal sigmoid tanh sin cos erf abs absolute sign floor ceil round trunc clamp clip clamp_min clamp_max
minimum maximum fmod remainder where masked_fill nan_to_num isnan isinf isfinite eq ne lt gt le ge logical_and
logical_or logical_not logical_xor lerp addcmul addcdiv atan2 relu gelu silu mish softplus leaky_relu elu selu celu
hardtanh relu6 hardswish hardsigmoid logsigmoid softsign tanhshrink logit sinc xlogy erfc erfinv lgamma digamma tan
asin acos atan sinh cosh sgn square_ hypot deg2rad rad2deg heaviside bitwise_and bitwise_or bitwise_xor bitwise_not
copysign signbit threshold frac float_power floor_divide __floordiv__ __rfloordiv__ __lshift__ __rshift__ __rmod__
prelu_ xlog1py isposinf isneginf isclose float half bfloat16 double int long bool type clone contiguous detach data
zeros_like ones_like full_like __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__
__rdiv__ __pow__ __rpow__ __neg__ __abs__ __eq__ __ne__ __lt__ __gt__ __le__ __ge__ __and__ __or__ __xor__
__invert__ __rand__ __ror__ __mod__ __iadd__ __isub__ __imul__ __itruediv__ __iand__ __ior__ add_ sub_ mul_ div_
neg_ pow_ exp_ sqrt_ rsqrt_ sigmoid_ tanh_ relu_ clamp_ masked_fill_ copy_ fill_ zero_ log_ clamp_min_ clamp_max_
addcmul_ addcdiv_ lerp_ round_
"""

_METADATA = """
dim ndim dtype device layout requires_grad is_leaf grad_fn is_floating_point is_complex is_contiguous element_size
is_cuda is_cpu is_xpu is_mps is_meta is_sparse is_nested is_quantized is_mkldnn is_xla is_ipu is_hpu is_vulkan
get_device register_hook retain_grad requires_grad_ __hash__ _version _base names _backward_hooks
_has_symbolic_sizes_strides
"""

_BY_RULE: dict[Rule, str] = {
    pointwise.dropout: "dropout",
    pointwise.type_of_other: "type_as to",
    metadata.size: "size",
    metadata.numel: "numel nelement",
    metadata.length: "__len__",
    metadata.shape: "shape",
    creation.made_new: "new_empty new_zeros new_ones new_full",
    padding.pad: "pad",
    permute.transpose: "transpose swapaxes swapdims",
    permute.flip_last: "t T mT",
    permute.permute: "permute",
    permute.movedim: "movedim moveaxis",
    permute.unsqueeze: "unsqueeze",
    permute.squeeze: "squeeze",
    view.view: "view reshape",
    view.flatten: "flatten",
    view.unflatten: "unflatten",
    view.expand: "expand expand_as",
    view.repeat: "repeat",
    view.repeat_interleave: "repeat_interleave",
    section.split: "split split_with_sizes",
    section.chunk: "chunk",
    section.tensor_split: "tensor_split",
    section.unbind: "unbind",
    section.narrow: "narrow",
    section.cat: "cat concat concatenate",
    section.stack: "stack",
    indexing.getitem: "__getitem__",
    indexing.setitem: "__setitem__",
    indexing.index_select: "index_select",
    reduction.reduce: "sum mean amax amin var std",
    across.either(across.softmax, reduction.along): "softmax",
    across.either(across.log_softmax, reduction.along): "log_softmax",
    reduction.along: "cumsum cumprod logcumsumexp sort argsort",
    across.logsumexp: "logsumexp",
    across.ranked: "max min argmax argmin",
    across.gathered: "gather take_along_dim",
    across.topk: "topk",
    reduction.norm: "layer_norm rms_norm",
    matmul.linear: "linear",
    matmul.matmul: "matmul __matmul__ mm bmm mv",
    matmul.reversed_matmul: "__rmatmul__",
    matmul.addmm: "addmm",
    matmul.baddbmm: "baddbmm",
    matmul.einsum: "einsum",
    matmul.grouped: "_grouped_mm grouped_mm",
    convolution.convolution: "conv1d conv2d conv3d",
    embedding.embedding: "embedding",
    attention.scaled_dot_product: "scaled_dot_product_attention",
    module_attention.module_attention: "multi_head_attention_forward",
    loss.cross_entropy: "cross_entropy",
    loss.nll_loss: "nll_loss",
    loss.kl_div: "kl_div",
    pointwise.pointwise: _POINTWISE,
    metadata.as_it_is: _METADATA,
}

_DECIDING = """
linear matmul __matmul__ mm bmm __rmatmul__ addmm baddbmm einsum conv1d conv2d conv3d embedding
multi_head_attention_forward _grouped_mm grouped_mm
"""


def functions(names: str) -> Iterable[Callable[..., Any]]:
    """Yield the functions, methods and property getters of these names."""
    for name in names.split():
        for place in (Tensor, torch, F):
            found = getattr(place, name, None)
            if found is not None:
                yield getattr(found, "__get__", found) if place is Tensor and not callable(found) else found


RULES: dict[Callable[..., Any], Rule] = {
    function: rule for rule, names in _BY_RULE.items() for function in functions(names)
}
"""By torch function; a call without shards never looks further."""
RULES[dispatch.run_experts] = dispatch.experts
RULES[head.head_input] = head.head_rule

_COMPARING = """
linear matmul __matmul__ mm bmm mv __rmatmul__ addmm baddbmm einsum scaled_dot_product_attention
multi_head_attention_forward cat concat concatenate stack type_as to
"""

COMPARES = (
    frozenset(functions(_COMPARING))
    | {dispatch.run_experts}
    | {function for function, rule in RULES.items() if rule is pointwise.pointwise}
)
"""Functions whose rules compare how all their arguments are cut; others look at their first one."""

DECIDES = frozenset(functions(_DECIDING))
"""Functions that decide, while planning, how a parameter is cut, though nothing is sharded yet."""
