"""What is in a store and belongs to nobody any more: payloads that no run refers to, files without a row, rows whose run is
gone. Who looks for it may look beside the core; who removes it asks again, of each, whether it is still so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

# Runs that are gone, by the table that still has rows of them: their numbers, or their ids.
Orphans = dict[str, list[int | str]]
# Payloads that one transaction looks at; their files, which take longer.
LOOSE_AT_ONCE: Final = 200
_DIGEST: Final = re.compile(rb"sha256:[0-9a-f]{64}")


def named(bodies: Iterable[bytes]) -> set[str]:
    """The payloads that messages speak of, wherever in them."""
    return {digest.decode() for body in bodies for digest in _DIGEST.findall(body)}


class LooseReads(Protocol):
    def orphans(self) -> Orphans:
        """The runs that are gone and still have rows."""
        ...

    def loose(self, before_ns: int, after: str, limit: int) -> list[str]:
        """Payloads that no run refers to, but for those put down after an instant for a receipt to come; a page in
        their order."""
        ...

    def stray_files(self) -> list[str]:
        """Files of payloads that have no row, and had time to get one: whoever wrote them was killed."""
        ...

    @property
    def files_at_once(self) -> int:
        """How many files are removed in no time."""
        ...


class LooseWrites(Protocol):
    def remove_orphans(self, found: Mapping[str, Sequence[int | str]]) -> None:
        """Removes rows of runs that `orphans` found, where there is no such run by now either."""
        ...

    def remove_loose(self, digests: Sequence[str], before_ns: int) -> tuple[int, list[str]]:
        """Removes those of these payloads that are loose, and in no message under way: how many, and those of them whose
        bytes are in files, which are for `remove_files`."""
        ...

    def remove_files(self, digests: Sequence[str]) -> None:
        """Removes the files of those of these payloads that have no row."""
        ...

    def sweep(self, *, keep: Iterable[str] = (), loose_before_ns: int | None = None) -> int:
        """All of that at once, except `keep`, for a store that nobody waits for; how many payloads. What was put down for a
        receipt to come stays until it is older than `loose_before_ns`."""
        ...
