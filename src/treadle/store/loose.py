"""What is in a store and belongs to nobody any more: payloads that no run refers to, files without a row, rows whose run is
gone. Who looks for it may look beside the core; who removes it asks again, of each, whether it is still so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# Runs that are gone, by the table that still has rows of them: their numbers, or their ids.
Orphans = dict[str, list[int | str]]
# Payloads that one transaction looks at; their files, which take longer.
LOOSE_AT_ONCE: Final = 200
_DIGEST: Final = re.compile(rb"sha256:[0-9a-f]{64}")


def named(bodies: Iterable[bytes]) -> set[str]:
    """The payloads that messages speak of, wherever in them."""
    return {digest.decode() for body in bodies for digest in _DIGEST.findall(body)}
