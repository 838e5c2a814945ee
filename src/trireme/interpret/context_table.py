"""Which rule meets which torch function while positions are cut: the common table, and what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trireme.interpret import context_attention, context_rule, metadata, pointwise
from trireme.interpret.call import Rule
from trireme.interpret.loss import cut_cross_entropy
from trireme.interpret.table import COMPARES, RULES, functions

_BY_RULE: dict[Rule, str] = {
    context_attention.scaled_dot_product: "scaled_dot_product_attention",
    context_rule.narrow: "narrow",
    context_rule.split: "split split_with_sizes",
    context_rule.chunk: "chunk",
    context_rule.cat: "cat concat concatenate",
    context_rule.stack: "stack",
    context_rule.getitem: "__getitem__",
    context_rule.embedding: "embedding",
    context_rule.anew: "new_tensor",
    context_rule.setitem: "__setitem__",
    context_rule.drawn_like: "rand_like randn_like",
    context_rule.along: """topk sort argsort argmax argmin max min amax amin logsumexp norm vector_norm any all prod
        median softmax log_softmax softmin cumsum cumprod cummax cummin gather scatter scatter_ take_along_dim
        normalize glu logcumsumexp""",
    context_rule.one_hot: "one_hot",
    context_rule.pad: "pad",
    context_rule.cross_entropy: "cross_entropy nll_loss",
    context_rule.elementwise_loss: """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
        binary_cross_entropy_with_logits kl_div""",
    metadata.as_it_is: "stride storage_offset data_ptr is_conj is_neg is_inference",
    pointwise.pointwise: "empty_like threshold hardshrink softshrink",
}

CONTEXT_RULES: dict[Callable[..., Any], Rule] = {
    **RULES,
    **{function: rule for rule, names in _BY_RULE.items() for function in functions(names)},
    cut_cross_entropy: context_rule.token_rows(cut_cross_entropy),
}
"""By torch function."""

_COMPARING = """__getitem__ __setitem__ topk sort max min gather scatter scatter_ take_along_dim cross_entropy nll_loss
mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div"""

CONTEXT_COMPARES = COMPARES | frozenset(functions(_COMPARING)) | {cut_cross_entropy}
"""Functions whose rules compare how all their arguments are cut; others look at their first one."""
