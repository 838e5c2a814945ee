"""Causal attention over plain or packed rows: one meaning, the fastest path each device has for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret import is_marked, met_whole
from trireme.models.block_attention import block_attention
from trireme.models.precision import prefers_host_kernel
from trireme.models.visibility import Visibility


@met_whole(head_dim=2)
def attend(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor, visibility: Visibility) -> Tensor:
    """Let each query see the keys of its own document up to itself; result ``[B, T, H, K]``."""
    positions_are_cut = is_marked(q_BTHK, "cp")  # then only the library's call says what is meant
    if prefers_host_kernel(q_BTHK) and not positions_are_cut:
        return block_attention(q_BTHK, k_BTGK, v_BTGK, visibility)
    if visibility.document_ids_BT is None:
        return _library(q_BTHK, k_BTGK, v_BTGK, mask=None, causal=True)
    if _has_ragged_kernel(q_BTHK) and not positions_are_cut:
        return _ragged(q_BTHK, k_BTGK, v_BTGK, visibility)
    return _library(q_BTHK, k_BTGK, v_BTGK, mask=visibility.dense_mask[:, None], causal=False)


def attend_to_cache(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor) -> Tensor:
    """Let the last T of S positions see all keys up to themselves; no documents."""
    num_new, num_keys = q_BTHK.shape[1], k_BSGK.shape[1]
    place = torch.arange(num_keys, device=q_BTHK.device)
    mask_TS = place[None, :] <= place[num_keys - num_new :, None]
    return _library(q_BTHK, k_BSGK, v_BSGK, mask=mask_TS, causal=False)


def _library(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
    """PyTorch's own attention, which takes heads before positions."""
    grouped = q_BTHK.shape[2] != k_BSGK.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK, k_BSGK, v_BSGK))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
    return mixed.transpose(1, 2)


def _has_ragged_kernel(q_BTHK: Tensor) -> bool:
    """Whether the variable-length flash kernel takes these: 16-bit, on CUDA, head width a multiple of 8 up to 256."""
    width = q_BTHK.shape[-1]
    sixteen_bit = q_BTHK.dtype in (torch.bfloat16, torch.float16)
    return q_BTHK.is_cuda and sixteen_bit and width % 8 == 0 and width <= 256


def _ragged(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor, visibility: Visibility) -> Tensor:
    """Each document as a sequence of its own: time and memory grow with the documents, not with the row squared."""
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = visibility.boundaries, visibility.longest_document
    q, k, v = (x.flatten(0, 1) for x in (q_BTHK, k_BTGK, v_BTGK))
    grouped = q.shape[1] != k.shape[1]
    mixed = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0), enable_gqa=grouped)
    assert isinstance(mixed, Tensor)
    return mixed.view(q_BTHK.shape)
