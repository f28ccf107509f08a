"""The hand-over between threads: the core's own, and workers' that turn it for once (`host/thread.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from treadle.host.thread import AGAIN, CoreThread, Turning
from treadle.kernel.errors import StoreCorrupt, TreadleError
from treadle.kernel.model import Receipt, Signal, Started
from treadle.lang.definition import Definition
from treadle.runtime.commands import Deliver
from treadle.runtime.core import Core
from treadle.runtime.deploys import row_of
from treadle.runtime.desk import NoOperations
from treadle.runtime.ports import Ack, Audience, NewRun, News, SystemClock, Work
from treadle.runtime.registry import Registry, machines_of
from treadle.store.open import open_sqlite
from treadle.store.protocol import Store
from treadle.store.rows import Batch
from treadle.store.sql import SqlStore
from treadle.testing.sim.drill_machine import DrillMachine

if TYPE_CHECKING:
    from treadle.runtime.commands import Elsewhere


DRILL = Definition("drill", "drill", "1.0.0", {"drill": True})
PATIENCE_S = 30.0


class House:
    """A core on its own thread, and a test that plays the workers' threads. Also the core's port."""

    def __init__(self) -> None:
        self.works: SimpleQueue[Work] = SimpleQueue()
        self.ended: SimpleQueue[tuple[str, str]] = SimpleQueue()
        # Which thread was told of each commit: the one that turned the core.
        self.turned_by: list[str] = []
        self.stopped: SimpleQueue[BaseException | None] = SimpleQueue()
        self.store: SqlStore | None = None
        opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self.thread = CoreThread(
            self._open, self._core, self, None, on_open=opened.put, on_stop=self.stopped.put
        )
        self.thread.start()
        assert opened.get(timeout=PATIENCE_S) is None

    def _open(self) -> Store:
        self.store = open_sqlite(None)
        return self.store

    def _core(self, store: Store, elsewhere: Elsewhere) -> Core:
        store.commit(Batch(definitions=[row_of(DRILL)]))
        registry = Registry(machines_of({"drill": DrillMachine()}), store)
        entropy = Random(1).randbytes
        return Core(store, registry, self, clock=SystemClock(), entropy=entropy, operations=NoOperations())

    # --- the port ---

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        for ack, value, error in answers:
            ack(value, error)

    def dispatch(self, works: list[Work]) -> None:
        self.turned_by.append(threading.current_thread().name)
        for work in works:
            self.works.put(work)

    def revoke(self, intents: list[str]) -> None:
        """Nobody here can be stopped."""

    def publish_news(self, news: list[News]) -> None:
        self.turned_by.append(threading.current_thread().name)
        for item in news:
            if item.ended:
                self.ended.put((item.run, item.status))

    @property
    def audience(self) -> Audience:
        return Audience()

    def wants_news(self, run: str, ended: bool) -> bool:
        return ended

    # --- what tests do ---

    def start(self, run: str, *lanes: list[dict[str, Any]]) -> None:
        event = Started(definition=DRILL.digest, input={"lanes": list(lanes)}, seed=b"s")
        self.thread.submit(Deliver(run, event, create=NewRun("drill", "drill", "1.0.0", DRILL.digest)))

    def turn_with(self, item: Deliver) -> bool:
        """Comes with an event on the calling thread, as a worker does."""
        turning = self.thread.turning
        return turning is not None and turning.turn_with(item)

    def work(self) -> Work:
        return self.works.get(timeout=PATIENCE_S)

    def end(self) -> tuple[str, str]:
        return self.ended.get(timeout=PATIENCE_S)

    def idle(self) -> None:
        """Waits until the core's thread sleeps, so that the next one to come finds it idle."""
        core = self.thread.core
        assert core is not None
        until(lambda: not core.called and core.wait_ns() != 0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


def receipt(work: Work) -> Deliver:
    return Deliver(work.run, Receipt(intent=work.intent.id, value=work.intent.params.get("value")))


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.thread.stop()
    made.thread.join(PATIENCE_S)
    assert not made.thread.is_alive()


def test_an_idle_core_is_turned_on_the_thread_that_comes_with_an_event(house: House) -> None:
    house.start("run", [{"do": "work", "value": 1}])
    item = receipt(house.work())
    until(lambda: house.turn_with(item))
    assert house.end() == ("run", "completed")
    assert house.turned_by[-1] == threading.current_thread().name


def test_an_event_that_finds_the_core_busy_is_left_to_its_thread(house: House) -> None:
    house.start("run", [{"do": "work", "value": 1}])
    item = receipt(house.work())
    turning = house.thread.turning
    assert turning is not None
    with turning._lock:
        assert not house.turn_with(item), "somebody else turns it"
        house.thread.submit(item)
    assert house.end() == ("run", "completed")
    assert house.turned_by[-1] == "treadle-core"


def test_what_a_turn_elsewhere_leaves_to_do_is_done_by_the_cores_thread(house: House) -> None:
    """The core's thread sleeps for ever; a timer that another thread armed must wake it all the same."""
    house.start("run", [{"do": "work", "value": 1}, {"do": "timer", "ms": 20}])
    item = receipt(house.work())
    house.idle()
    until(lambda: house.turn_with(item))
    assert house.end() == ("run", "completed")
    assert house.turned_by[-1] == "treadle-core"


def test_a_core_that_breaks_on_a_workers_thread_is_over_for_everybody(house: House) -> None:
    house.start("run", [{"do": "work", "value": 1}])
    item = receipt(house.work())
    store = house.store
    assert store is not None

    def broken(batch: Batch) -> None:
        raise StoreCorrupt("as told")

    house.idle()
    store.commit = broken  # type: ignore[method-assign]
    core = house.thread.core
    assert core is not None
    core._publication.withdraw = _raise  # type: ignore[method-assign]
    until(lambda: house.turn_with(item))
    failure = house.stopped.get(timeout=PATIENCE_S)
    assert isinstance(failure, StoreCorrupt)


def _raise(error: TreadleError, **more: Any) -> None:
    raise error


def test_what_was_handed_in_before_the_end_is_finished(house: House) -> None:
    told: SimpleQueue[Any] = SimpleQueue()
    house.start("run", [{"do": "signal", "name": "go"}])
    signal = Signal(name="go", data={"token": 1})
    house.thread.submit(Deliver("run", signal, ack=lambda value, error: told.put(error or value)))
    house.thread.stop()
    assert told.get(timeout=PATIENCE_S)["status"] == "completed"
    assert not house.turn_with(Deliver("run", signal)), "a core that ends is not turned by others"


@pytest.mark.parametrize("has_work", [True, False])
def test_who_is_stopped_while_the_core_turns_does_not_sleep(house: House, has_work: bool) -> None:
    """The turn takes everything that is there, and the wake of whoever stops it with it."""
    store = open_sqlite(None)
    store.own()
    core = house._core(store, house.thread._asked)
    turning = Turning(core, poll_s=PATIENCE_S, renew=lambda: turning.stop())
    if has_work:
        event = Started(definition=DRILL.digest, input={"lanes": [[]]}, seed=b"s")
        core.submit(Deliver("run", event, create=NewRun("drill", "drill", "1.0.0", DRILL.digest)))
    assert all(wait is AGAIN for wait in turning.steps())
    assert house.ended.qsize() == has_work


def test_while_workers_poll_the_cores_thread_sleeps_on_unless_something_is_left_to_it(house: House) -> None:
    store = open_sqlite(None)
    store.own()
    core = house._core(store, house.thread._asked)
    polled: list[float] = []
    core.poll = lambda: polled.append(now)  # type: ignore[method-assign]
    now = 0.0
    tended: list[float] = []
    turning = Turning(core, poll_s=1.0, monotonic=lambda: now, tend=lambda: tended.append(now))

    def starts(run: str, *lane: dict[str, Any]) -> Deliver:
        event = Started(definition=DRILL.digest, input={"lanes": [list(lane)]}, seed=b"s")
        return Deliver(run, event, create=NewRun("drill", "drill", "1.0.0", DRILL.digest))

    steps = turning.steps()
    assert (next(steps), polled) == (1.0, [0.0])
    now = 1.0
    assert turning.turn_with(starts("a", {"do": "signal", "name": "go"}))
    assert polled == [0.0, 1.0], "whoever turns it polls when it is time"
    now = 1.1
    assert steps.send(None) == 2.0, "a worker has just done it"
    now = 3.1
    assert steps.send(None) == 1.0, "nobody does it any more"
    assert polled == [0.0, 1.0, 3.1]
    now = 3.2
    assert turning.turn_with(starts("b", {"do": "timer", "ms": 60_000}))
    wait_s = steps.send(None)
    assert wait_s == 1.0, "a time to wait for was left to it"
    now = 4.2
    assert turning.turn_with(Deliver("a", Signal(name="go", data={"token": 1})))
    turning.notice()
    assert steps.send(None) == 1.0, "something is there for it"
    assert polled[-1] == 4.2
    assert tended == polled
    turning.stop()
    with pytest.raises(StopIteration):
        steps.send(None)


def test_no_receipt_is_lost_or_settled_twice_however_threads_meet(house: House) -> None:
    """Several workers' threads, each of which turns the core if it can; every run is a chain of steps and short
    timers, so that each hand-over has something to lose."""
    runs, errors = 24, []
    chain: list[dict[str, Any]] = [{"do": "work", "value": 1}, {"do": "timer", "ms": 1}] * 4

    def worker(seed: int) -> None:
        chance = Random(seed)
        try:
            while len(finished) < runs:
                try:
                    # Not `get(timeout=…)`: of several who wait, one that is woken for nothing at its deadline waits for
                    # ever (CPython 3.11).
                    work = house.works.get_nowait()
                except Empty:
                    pause.wait(0.002)
                    continue
                if chance.random() < 0.2 or not house.turn_with(receipt(work)):
                    house.thread.submit(receipt(work))
        except BaseException as error:
            errors.append(error)

    finished: list[tuple[str, str]] = []
    pause = threading.Event()
    threads = [threading.Thread(target=worker, args=(seed,), daemon=True) for seed in range(4)]
    for number in range(runs):
        house.start(f"run-{number}", chain)
    for thread in threads:
        thread.start()
    while len(finished) < runs:
        finished.append(house.end())
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert sorted(finished) == sorted((f"run-{number}", "completed") for number in range(runs))
