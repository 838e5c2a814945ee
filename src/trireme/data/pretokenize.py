"""Where a text may be cut before pieces are learned: rules that fit Chinese, Python and prose.

The rules only say where no token may reach across; nothing is changed, so every text comes back as it was.
"""

from __future__ import annotations

from typing import Any

# Han characters with the marks that stand for them (repetition, "closing mark", zero).
_HAN = r"\p{Han}々〆〇"
_KANA = r"\p{Hiragana}\p{Katakana}ー"
# Chinese and full-width punctuation: brackets, quotes, stops, dashes, dots.
_CJK_MARK = (
    r"\u3001-\u3004\u3008-\u3020\u3030\u303D\u2014\u2018\u2019\u201C\u201D\u2026\u00B7"
    r"\uFE30-\uFE4F\uFF01-\uFF0F\uFF1A-\uFF20\uFF3B-\uFF40\uFF5B-\uFF65"
)

RULES = (
    # English endings ('s 't 're ...) are words of their own after a letter, but a Python string 's' is not one.
    r"(?<=\p{L})'(?:[sdmtSDMT]|ll|LL|ve|VE|re|RE)(?!\p{L})",
    # A run of Han apart from kana, Latin and digits: Chinese words form inside it, never across a change of script.
    rf"[{_HAN}]+",
    rf"[{_KANA}]+",
    # Chinese marks one by one: a model should not need one token for "。" and another for "。”".
    rf"[{_CJK_MARK}]",
    # Words of any other script, with one sign or blank before them: " return", "_name", ".join", "(self".
    rf"[^\r\n\p{{L}}\p{{M}}\p{{N}}{_CJK_MARK}]?[\p{{L}}\p{{M}}&&[^{_HAN}{_KANA}]]+",
    # Digits by threes at most, so that numbers are read in even pieces; full-width digits are digits too.
    r"\p{N}{1,3}",
    # Operators and other signs in a run, with the blank before them: " ==", " -> ", "):".
    rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}{_CJK_MARK}]+",
    # Line ends in a run, apart from the indentation that follows: blocks of Python end and begin here.
    r"[\r\n]+",
    # Indentation and other blanks, all but the last, which goes with the word that follows.
    r"[^\S\r\n]+(?!\S)|\s",
)


def split_rules() -> dict[str, Any]:
    """Return the pre-tokenizer of a ``tokenizer.json``: the rules in order, then bytes as visible characters."""
    split = {"type": "Split", "pattern": {"Regex": "|".join(RULES)}, "behavior": "Isolated", "invert": False}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, to_bytes]}
