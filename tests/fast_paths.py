"""The short ways of the house, each of which can be closed or forced: no promise may depend on one being there.

Speed is kept by asking and writing less where that is enough. Whoever adds such a way adds its switch here, so that the
simulator, the kills and the suite for stores are lived through with it and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from treadle.host import news
from treadle.host.thread import Turning
from treadle.store.sql import SqlStore
from treadle.store.sqlite import SqliteDialect
from treadle.testing.sim import SimWorld
from treadle.testing.sim.disk import SimDialect
from treadle.work.worker import Worker

Switch = Callable[[], AbstractContextManager[object]]


@contextmanager
def no_overlap() -> Iterator[None]:
    """Nothing is decided while a commit is made durable."""
    with patch.object(SqliteDialect, "overlaps", False), patch.object(SimDialect, "overlaps", False):
        yield


@contextmanager
def always_overlap() -> Iterator[None]:
    """Events are decided while a commit is made durable, however quick the disk is."""
    with patch.object(SqliteDialect, "overlaps", True):
        yield


def no_single_statement() -> AbstractContextManager[object]:
    """A commit of one record and nothing else is written as any other."""
    return patch.object(SqliteDialect, "append", None)


def plain_records() -> AbstractContextManager[object]:
    return _stores(plain_records=1 << 60)


def packed_records() -> AbstractContextManager[object]:
    """From the first one on."""
    return _stores(plain_records=0)


def _stores(**limits: int) -> AbstractContextManager[object]:
    """Every store that is opened meanwhile is handed these limits."""
    init = SqlStore.__init__

    def handed(store: SqlStore, *arguments: Any) -> None:
        init(store, *arguments, **limits)

    return patch.object(SqlStore, "__init__", handed)


def no_turns_by_workers() -> AbstractContextManager[object]:
    """Receipts go through the queue to the core's own thread."""
    return patch.object(Turning, "turn_with", lambda turning, item: False)


@contextmanager
def nothing_ahead() -> Iterator[None]:
    """What is pure is begun after its commit, as all other work is."""
    with (
        patch.object(Worker, "is_pure", lambda worker, work, definition: False),
        patch.object(SimWorld, "is_pure", lambda world, intent: False),
    ):
        yield


def no_results_from_memory() -> AbstractContextManager[object]:
    return patch.object(news, "outcome", lambda core, run: None)


CLOSED: tuple[Switch, ...] = (
    no_overlap,
    no_single_statement,
    plain_records,
    no_turns_by_workers,
    nothing_ahead,
    no_results_from_memory,
)
FORCED: tuple[Switch, ...] = (always_overlap, packed_records)


def _all(switches: tuple[Switch, ...]) -> Switch:
    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for switch in switches:
                stack.enter_context(switch())
            yield

    return entered


# For those who do not look at each way by itself.
WAYS: dict[str, Switch] = {"closed": _all(CLOSED), "forced": _all(FORCED)}
