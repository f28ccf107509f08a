"""A guest that asks the owner of its store for help (`host/helping.py`)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.host.helping import Helping
from treadle.work.others import Others


async def test_an_engine_ends_though_nobody_could_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    """Its end would stop halfway: the worker and the core's thread would go on, and the store stay locked."""
    seat: Any = SimpleNamespace(shares=False, core=None, works_alone=lambda: "the owner")
    worker: Any = SimpleNamespace(others=Others())
    asked = asyncio.Event()

    async def operate(name: str, body: dict[str, Any]) -> Any:
        asked.set()
        raise OSError("the core's thread has failed")

    helping = Helping(seat, worker, operate)
    helping.begin()
    await asyncio.wait_for(asked.wait(), 10)
    await asyncio.sleep(0)
    await helping.end()
    assert "nobody can be asked to help" in caplog.text
