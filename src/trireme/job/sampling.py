"""How tokens are drawn when a model writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn; ``temperature`` 0 takes the likeliest.

    The defaults suit small models, whose unlikely tokens are noise more often than invention.
    """

    max_new_tokens: int = 128
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 0
    seed: int = 0
