"""Databases on which stores are checked (`conformance.py`), and how a check says what it expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from treadle.kernel.errors import TreadleError

if TYPE_CHECKING:
    from treadle.store.protocol import Reads, Store


class StoragePlace(Protocol):
    """A database. `shared` says whether a second store opened on it sees the first one's rows."""

    shared: bool

    def open(self) -> Store: ...

    def reader(self) -> Reads:
        """Reads on a connection of their own; asked only of a shared place."""
        ...

    def damage(self, digest: str) -> None:
        """Changes a byte of a stored payload behind the store's back."""
        ...


MakePlace = Callable[[], AbstractContextManager[StoragePlace]]
Check = Callable[[MakePlace], None]


@contextmanager
def expect(error: type[TreadleError], promise: str) -> Iterator[None]:
    try:
        yield
    except error:
        return
    raise AssertionError(f"{promise}: {error.__name__} was expected")


@contextmanager
def owned(make: MakePlace) -> Iterator[tuple[StoragePlace, Store]]:
    with make() as place:
        store = place.open()
        store.own()
        yield place, store
