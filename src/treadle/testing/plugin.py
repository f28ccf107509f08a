"""The pytest plug-in: fixtures for those who test their workflows. Installed with Treadle.

`treadle_clock` is a virtual clock; `treadle_engine` an engine on a store in memory that goes by it,
opened already; `treadle_replays` asserts that journals replay. Register tools on the engine before the first run:
nothing is recovered, the store is new.

    async def test_reminder(treadle_engine, treadle_clock):
        run = await treadle_engine.start(reminder)
        await treadle_clock.advance(3600)
        assert await run.result(timeout=5) == "sent"

Asynchronous fixtures need an asynchronous test runner; with pytest-asyncio that is this plug-in's
own business, in either of its modes. Importing this module costs nothing: everything else is
imported by the fixture that needs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from treadle.engine import Engine

    from .clock import VirtualClock

F = TypeVar("F", bound=Callable[..., Any])


def _async_fixture(function: F) -> F:
    """An asynchronous fixture of pytest-asyncio, or a plain one for whoever else runs such tests."""
    make: Any = pytest.fixture
    with suppress(ImportError):
        import pytest_asyncio

        make = pytest_asyncio.fixture
    made: F = make(function)
    return made


@pytest.fixture
def treadle_clock() -> VirtualClock:
    """A clock that stands still until the test moves it."""
    from .clock import VirtualClock

    return VirtualClock()


@_async_fixture
async def treadle_engine(treadle_clock: VirtualClock) -> AsyncIterator[Engine]:
    """An engine on a store in memory, by the virtual clock."""
    async with treadle_clock.engine("memory:") as engine:
        yield engine


@pytest.fixture
def treadle_replays() -> Any:
    """`await treadle_replays(engine_or_run)`: journals, decided again, give equal bytes."""
    from .replaying import assert_replays

    return assert_replays
