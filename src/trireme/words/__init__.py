"""The message catalogue: every sentence a user reads, in English and Simplified Chinese."""

from trireme.words.catalogue import Text, language, say

__all__ = ["Text", "language", "say"]
