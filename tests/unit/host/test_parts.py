"""The parts that stand between an event loop and its core, each by itself."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from treadle import Engine
from treadle.bus.local import LocalBus
from treadle.host.news import Watching
from treadle.host.passage import Asks, CorePort, HomeLoop, LoopAck, Seat, ThreadAck
from treadle.kernel.errors import EngineStopped, StoreUnavailable, Unsupported
from treadle.runtime.commands import Inspect, Operate
from treadle.runtime.ports import News, SystemClock
from treadle.testing.bus_conformance import works


class Nothing:
    """A store without events, as those see it who watch."""

    core = None
    is_told = True
    shares = False

    async def events_after(self, run: str, after: int, record: int = 1) -> list[dict[str, Any]]:
        return []

    async def runs_beyond(self, event_no: int) -> list[str]:
        return []

    async def moved_since(self, since: tuple[int, int]) -> Any:
        return since, []

    def moved_now(self, limit_s: float) -> tuple[int, int]:
        return 0, 0


class Counting(HomeLoop):
    """Counts how often something goes to the loop."""

    hops = 0

    def hop(self, call: Any, argument: Any) -> None:
        self.hops += 1
        super().hop(call, argument)


def port_of(home: HomeLoop, watching: Watching, bus: LocalBus, **more: Any) -> CorePort:
    return CorePort(home, bus, watching, more.get("withhold"))


def watching_of(home: HomeLoop) -> Watching:
    return Watching(Nothing(), Nothing(), home.check)


async def test_an_engine_answers_on_the_loop_that_opened_it_and_on_no_other() -> None:
    home = HomeLoop()
    assert home.open() is home.check() is asyncio.get_running_loop()
    with pytest.raises(Unsupported, match="open already"):
        home.open()

    async def elsewhere() -> None:
        home.check()

    with pytest.raises(Unsupported) as refused:
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert refused.value.code == "ENGINE_ELSEWHERE"
    home.close()
    await asyncio.to_thread(asyncio.run, elsewhere())
    home.open()


def test_a_forked_child_is_told_that_what_is_open_is_its_parents() -> None:
    async def fork() -> int:
        home, closed = HomeLoop(), HomeLoop()
        home.open()
        if (child := os.fork()) == 0:
            os._exit(0 if home.is_forked and not closed.is_forked else 1)
        assert not home.is_forked
        return child

    assert os.waitpid(asyncio.run(fork()), 0)[1] == 0


async def test_all_answers_and_all_news_of_a_commit_go_to_the_loop_in_one_hop_each() -> None:
    home = Counting()
    loop = home.open()
    watching = watching_of(home)
    port = port_of(home, watching, LocalBus(SystemClock()))
    asked = [loop.create_future() for _ in range(3)]
    at_once: asyncio.Future[int] = loop.create_future()
    port.answer([*((LoopAck(one), 7, None) for one in asked), (ThreadAck(at_once), 8, None)])
    assert at_once.result() == 8, "a thread that waits is answered on the spot"
    assert await asyncio.gather(*asked) == [7, 7, 7]
    assert home.hops == 1
    port.publish_news([News("r", "running", False, [], 1)])
    assert home.hops == 1, "nobody watches"
    with watching.watch("r") as watch:
        port.publish_news([News("r", "running", False, [], 1), News("s", "running", False, [], 2)])
        await watch.changed(poll_s=60)
    assert home.hops == 2


async def test_what_a_member_holds_back_does_not_go_out() -> None:
    home, bus = HomeLoop(), LocalBus(SystemClock())
    port_of(home, watching_of(home), bus).dispatch(works("a"))
    port_of(home, watching_of(home), bus, withhold=lambda found: found[1:]).dispatch(works("b", "c"))
    assert sorted(work.intent.id for work, _ in bus.works()) == ["a", "c"]


async def test_who_asks_without_a_core_is_told_at_once() -> None:
    home = HomeLoop()
    home.open()
    asks = Asks(home, Seat(), readonly=False)
    with pytest.raises(EngineStopped):
        await asks.operate("any", {})
    asks.fail(OSError("the disk is full"))
    with pytest.raises(OSError, match="disk is full"):
        await asks.operate("any", {})
    asks.begin()
    with pytest.raises(EngineStopped):
        asks.submit(Operate("", "any", {}, None))
    with pytest.raises(Unsupported, match="only looks"):
        await Asks(home, Seat(), readonly=True).operate("any", {})


async def test_who_asks_when_the_next_core_is_there_is_answered_by_that_one() -> None:
    """Word of the end of the one before is on its way to the loop still. To be told of that, and have it done as well, would be
    wrong."""
    async with Engine("memory:") as engine:
        asking = asyncio.ensure_future(engine.look(lambda view: 7))
        engine._host._interrupted(StoreUnavailable("the server went away"))
        assert await asking == 7


def test_a_thread_that_is_not_answered_in_time_is_told_whom_it_waited_for() -> None:
    """It may be asked of another process, which is stopped."""
    taken: list[Any] = []
    seat: Any = SimpleNamespace(
        thread=SimpleNamespace(submit=taken.append), waits_for=lambda: "process 7 does not answer"
    )
    asks = Asks(HomeLoop(), seat, readonly=False)
    with pytest.raises(StoreUnavailable, match=r"within 0\.01 s: process 7 .* may be done yet"):
        asks.ask_blocking(lambda ack: Inspect(bool, ack), timeout_s=0.01)
    taken[0].ack({"done": True}, None)
    assert not asks._unanswered
