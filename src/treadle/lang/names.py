"""Names from several places, each of which is asked only where those before it do not have the name.

The last may be one that takes long to answer (the plug-ins among the installed packages), or that is only made when it
comes to it: a function that gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator


class KnownNames(Collection[str]):
    def __init__(self, *places: Collection[str] | Callable[[], Collection[str]]) -> None:
        self._places = places

    def __contains__(self, name: object) -> bool:
        return any(name in place for place in self._asked())

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({name for place in self._asked() for name in place}))

    def _asked(self) -> Iterator[Collection[str]]:
        for place in self._places:
            yield place() if callable(place) else place

    def __len__(self) -> int:
        return sum(1 for _ in self)
