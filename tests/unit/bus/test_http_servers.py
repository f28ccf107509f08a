"""A worker that knows several servers goes on with one that answers (`bus/http.py`)."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from treadle.bus.carrier import Away
from treadle.bus.http import HttpBus
from treadle.kernel.values import encode


async def test_requests_that_meet_a_dead_server_together_are_answered_by_the_next() -> None:
    """Each passes over the server that did not answer it, not over the one that another has gone on to."""
    both, asked = asyncio.Event(), 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        if request.url.host == "dead":
            asked += 1
            if asked == 2:
                both.set()
            await both.wait()
            raise httpx.ConnectError("nobody is there")
        return httpx.Response(200, content=encode({"lost": []}))

    bus = HttpBus(["http://dead", "http://alive"], "one", transport=httpx.MockTransport(answer))
    try:
        async with asyncio.timeout(10):
            assert await asyncio.gather(bus.renew(["a"]), bus.renew(["b"])) == [[], []]
    finally:
        await bus.close()
    assert asked == 2


@pytest.mark.parametrize(
    "page",
    [
        httpx.Response(200, content=b"<html>Log in first</html>"),
        httpx.Response(200, content=encode([])),
        httpx.Response(302, headers={"location": "http://login"}),
    ],
    ids=["a page", "a list", "a login"],
)
async def test_what_answers_in_place_of_a_server_is_passed_over(page: httpx.Response) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "gateway":
            return page
        return httpx.Response(200, content=encode({"lost": []}))

    bus = HttpBus(["http://gateway", "http://alive"], "one", transport=httpx.MockTransport(answer))
    alone = HttpBus(["http://gateway"], "one", transport=httpx.MockTransport(answer))
    try:
        assert await bus.renew(["a"]) == []
        with pytest.raises(Away):
            await alone.renew(["a"])
    finally:
        await bus.close()
        await alone.close()
