"""Frameworks by name: who overlaps what, who keeps gradients in fp32, who cuts experts.

Source:
    Each project's documentation and defaults: Megatron-LM's ``DistributedDataParallelConfig`` and
    ``--overlap-grad-reduce``, ``--tp-comm-overlap`` of Transformer Engine as NeMo's recipes set it, DeepSpeed's
    ``bf16``/``fp16`` engines, FSDP2's ``MixedPrecisionPolicy`` as torchtitan and llm-foundry set it, PaddleNLP's
    ``amp_master_grad``, nanotron's ``accumulate_grad_in_fp32``; read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from trireme.plan.framework import TRIREME, Framework

_DEEPSPEED_BUFFERS_BYTES = 4 * 500_000_000 * 2
"""Two buckets that gradients are gathered in, one to reduce from and one that parameters are gathered in: DeepSpeed's
``reduce_bucket_size`` and ``allgather_bucket_size`` are 5e8 numbers of 16 bits unless set."""

_MEGATRON_2021 = Framework(
    name="Megatron-LM 2021",
    weights="copy",
    float32_gradients=False,
    float32_loss=True,
    keeps_gradients=True,
    overlaps_data=False,
    overlaps_pipeline=False,
    cuts_experts=True,
)
_MEGATRON = Framework(
    name="Megatron-LM",
    weights="copy",
    float32_loss=True,
    keeps_sequence_cut=True,
    keeps_gradients=True,
    cuts_experts=True,
)
_NEMO = Framework(
    name="NeMo",
    weights="copy",
    float32_loss=True,
    keeps_sequence_cut=True,
    keeps_gradients=True,
    overlaps_tensor=True,
    cuts_experts=True,
    has_library_attention=True,
)
_FSDP2 = Framework(name="FSDP2", autocasts=False, compiles=True, repeats="half")


def _core(name: str) -> Framework:
    return Framework(
        name=name,
        weights="copy",
        float32_loss=True,
        keeps_sequence_cut=True,
        keeps_gradients=True,
        overlaps_tensor=True,
        has_library_attention=True,
    )


FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "trireme": TRIREME,
        "megatron-lm": _MEGATRON,
        "megatron-lm 2021": _MEGATRON_2021,
        "megatron-core": _core("Megatron-Core"),
        "megatron-bridge": _core("Megatron-Bridge"),
        "nemo": _NEMO,
        "nemo automodel": Framework(name="NeMo AutoModel", autocasts=False, has_library_attention=True),
        "megascale": Framework(
            name="MegaScale",
            weights="copy",
            float32_loss=True,
            keeps_sequence_cut=True,
            keeps_gradients=True,
            overlaps_tensor=True,
        ),
        "megatron-deepspeed": Framework(
            name="Megatron-DeepSpeed",
            weights="copy",
            float32_loss=True,
            float32_gradients=False,
            keeps_gradients=True,
            overlaps_data=False,
            overlaps_pipeline=False,
            buffer_bytes=_DEEPSPEED_BUFFERS_BYTES,
        ),
        "deepspeed": Framework(
            name="DeepSpeed",
            weights="copy",
            float32_loss=True,
            float32_gradients=False,
            buffer_bytes=_DEEPSPEED_BUFFERS_BYTES,
        ),
        "gpt-neox": Framework(
            name="GPT-NeoX",
            weights="copy",
            float32_loss=True,
            float32_gradients=False,
            overlaps_data=False,
            overlaps_pipeline=False,
        ),
        "fsdp": Framework(name="FSDP", autocasts=False, float32_gradients=False, repeats="half"),
        "fsdp2": _FSDP2,
        "torchtitan": Framework(name="torchtitan", autocasts=False, compiles=True, repeats="half"),
        "llm-foundry": Framework(name="llm-foundry", autocasts=False, float32_gradients=False),
        "maxtext": Framework(
            name="MaxText",
            autocasts=False,
            float32_gradients=False,
            compiles=True,
            repeats="half",
            has_library_attention=True,
        ),
        "alpa": Framework(
            name="Alpa",
            autocasts=False,
            float32_gradients=False,
            compiles=True,
            overlaps_data=False,
            overlaps_pipeline=False,
        ),
        "internevo": Framework(
            name="InternEvo", weights="copy", float32_loss=True, float32_gradients=False, keeps_gradients=True
        ),
        "paddlenlp": Framework(
            name="PaddleNLP", weights="copy", float32_loss=True, keeps_sequence_cut=True, keeps_gradients=True
        ),
        "nanotron": Framework(
            name="nanotron",
            weights="copy",
            float32_loss=True,
            keeps_both_gradients=True,
            keeps_gradients=True,
            overlaps_pipeline=False,
        ),
        "mindspeed": Framework(
            name="MindSpeed", weights="copy", float32_loss=True, keeps_sequence_cut=True, keeps_gradients=True
        ),
    }
)
"""Every framework whose habits we know."""

_SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"megatron-bridge", "megatron-bridge"),
    (r"automodel", "nemo automodel"),
    (r"nemo", "nemo"),
    (r"megascale", "megascale"),
    (r"deepspeed.*zero|zero.*deepspeed", "deepspeed"),
    (r"megatron-?deepspeed", "megatron-deepspeed"),
    (r"deepspeed", "deepspeed"),
    (r"alpa|parax", "alpa"),
    (r"megatron-core|mcore", "megatron-core"),
    (r"megatron", "megatron-lm"),
    (r"neox", "gpt-neox"),
    (r"torchtitan", "torchtitan"),
    (r"llm-foundry|composer|mosaic", "llm-foundry"),
    (r"maxtext|jax|levanter", "maxtext"),
    (r"internevo|internlm", "internevo"),
    (r"paddle", "paddlenlp"),
    (r"nanotron", "nanotron"),
    (r"mindspeed|modellink|ascendspeed", "mindspeed"),
    (r"fsdp2|torch\.compile|olmo-core", "fsdp2"),
    (r"fsdp|lit-?gpt", "fsdp"),
    (r"trireme", "trireme"),
)


def find_framework(name: str) -> Framework | None:
    """Return the habits of the framework that ``name`` means, None for one that the table lacks."""
    said = name.lower().strip()
    if said in FRAMEWORKS:
        return FRAMEWORKS[said]
    return next((FRAMEWORKS[key] for pattern, key in _SPELLINGS if re.search(pattern, said)), None)
