"""Tool names as providers take them: letters, digits, `_` and `-`, 64 at most.

A name of an MCP server may have dots, slashes or any length; one bad name would cost the whole
turn. It is offered under a name made from it, and calls are given back under its own. The same
name is always made into the same one, so earlier turns stay readable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

LENGTH_MAX: Final = 64
_FITS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Names:
    """The names of one request's tools; `reserved` ones are the provider's own."""

    def __init__(self, names: Iterable[str], *, reserved: Iterable[str] = ()) -> None:
        listed, kept = list(names), set(reserved)
        self._fitted = {name: name for name in listed if _FITS.fullmatch(name) and name not in kept}
        for name in listed:
            if name not in self._fitted:
                self._fitted[name] = _made(name, {*kept, *self._fitted.values()})
        self._own = {fitted: name for name, fitted in self._fitted.items()}

    def fit(self, name: str) -> str:
        return self._fitted[name]

    def own(self, fitted: str) -> str:
        """What a tool is called here; a name that was never offered stays as the model said it."""
        return self._own.get(fitted, fitted)


def _made(name: str, taken: set[str]) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    readable = re.sub(r"[^a-zA-Z0-9_-]+", "_", name)
    for length in range(8, len(digest) + 1):
        made = f"{readable[: LENGTH_MAX - 1 - length]}_{digest[:length]}"[-LENGTH_MAX:]
        if made not in taken:
            return made
    raise AssertionError("two names with one digest")
