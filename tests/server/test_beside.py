"""What a server does beside requests: it looks after workers, tells others of itself, carries work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvicorn
from fastapi import FastAPI

from treadle import Engine
from treadle.server import serving
from treadle.server.workers import Workers


async def test_it_goes_on_after_a_fault_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Leases would never run out again, and nobody would know why."""
    servers: list[uvicorn.Server] = []
    again, tries = asyncio.Event(), 0

    def on_signals(app: FastAPI, server: uvicorn.Server, place: object) -> Callable[[], bool]:
        servers.append(server)
        return lambda: False

    async def watch(workers: Workers) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("a fault of ours")
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(serving, "_on_signals", on_signals)
    monkeypatch.setattr(Workers, "watch", watch)
    async with Engine("memory:") as engine:
        done = asyncio.ensure_future(serving.serve(engine, serving.Options(port=0), lambda *about: None))
        try:
            await asyncio.wait_for(again.wait(), 20)
        finally:
            servers[0].should_exit = True
            assert await asyncio.wait_for(done, 60) == 0
    assert "a fault of ours" in caplog.text
