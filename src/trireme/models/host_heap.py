"""The C library's heap, told to keep what training frees.

glibc gives every large tensor pages of its own and hands them back when it is freed, so each step pays
for the same pages again: the kernel clears and maps them at first touch. Measured on two cores, a 19 M
decoder, 8 x 256 tokens: 75,000 page faults and a tenth of the step.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
"""Numbers of ``mallopt`` parameters.

Source:
    mallopt(3), Linux manual pages.
"""


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process for the next step; return whether the C library could be told.

    Call it once before training on a CPU. The process then holds its peak until it ends. Other C libraries
    than glibc are left as they are.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it, and only there the numbers mean this
        return bool(library.mallopt(_MMAP_MAX, 0)) and bool(library.mallopt(_TRIM_THRESHOLD, -1))
    except (OSError, AttributeError, TypeError):
        return False
