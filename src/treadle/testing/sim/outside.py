"""What is outside of all engines, where nothing can be taken back: whoever is called, and remembers it.

A service that heeds keys does under one key one thing, and answers whoever comes again with what it did. Looked at with each
call: every attempt at one thing brings the same key. Another service heeds none; it must be called once, or not at all, by who
has marked the call as begun before it is made.
"""

from __future__ import annotations


class Outside:
    def __init__(self) -> None:
        # What was done under each key, by its number; the key with which each thing was first asked for.
        self._done: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._called: set[str] = set()

    def pay(self, what: str, key: str) -> int:
        """Something is paid for: once under each key."""
        first = self._keys.setdefault(what, key)
        assert key == first, f"{what} is asked for under the key {key}, and was under {first}"
        return self._done.setdefault(key, len(self._done) + 1)

    def call(self, intent: str) -> None:
        """Something is done that must not be repeated."""
        assert intent not in self._called, f"{intent} is called again, and was marked as begun"
        self._called.add(intent)
