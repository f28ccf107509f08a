"""What somebody may have meant who wrote a word that is not known. Where every word is, nothing is imported for it."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """The known word that is nearest to another, if one is near enough."""
    from difflib import get_close_matches

    return get_close_matches(word, [*known], n=1, cutoff=cutoff)


def likeness(one: str, other: str) -> float:
    """How alike two words are, from 0 to 1."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one, other).ratio()
