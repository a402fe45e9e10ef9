"""Find the known words that an unknown one may stand for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three known words that `word` may be a misspelling or the beginning of, best first."""
    words, written = list(known), word.lower().replace("-", "_")
    return difflib.get_close_matches(written, words, n=3) or [each for each in words if each.startswith(written)][:3]


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the question "did you mean A, B?", or `otherwise` if no known word is near."""
    near = nearest(word, known)
    return f"did you mean {', '.join(near)}?" if near else otherwise
