"""Where a figure comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

READ = "2026-11-30"
Confidence = Literal["primary", "secondary", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An address or a paper, the day it was read, and how far to trust it.

    Attributes:
        where: Address or paper, with the part of it in brackets where that helps.
        date: Day it was read or measured.
        confidence: ``primary``, ``secondary`` (told by a third party), ``low`` (sources disagree, or none measured).
    """

    where: str
    date: str = READ
    confidence: Confidence = "primary"


NETWORK_SURVEY = Source(where="https://github.com/stas00/ml-engineering/blob/0030e63/network/README.md")
NCCL_TUNING = Source(where="https://github.com/NVIDIA/nccl/blob/b647562/src/graph/tuning.cc")
GIVEN = Source(where="given by the user", confidence="secondary")
