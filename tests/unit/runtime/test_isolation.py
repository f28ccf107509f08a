"""One command that is wrong, or meets a bug, is turned away; the core goes on with all the others."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Signal
from treadle.runtime.commands import CheckpointSaved, Deliver, FrameSent, message_to_bytes, reply_from_bytes
from treadle.runtime.desk import Desk
from treadle.runtime.effects import Effects
from treadle.runtime.own_changes import OwnChange
from treadle.store.rows import Batch
from treadle.testing import toy

from .test_core import Bench, awaits, work


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("treadle.core").disabled = True
    yield
    logging.getLogger("treadle.core").disabled = False


class Poisoned(Bench):
    """A bench whose store cannot take anything of runs that are named in `poison`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.poison: set[str] = set()
        commit = self.store.commit

        def refusing(batch: Batch) -> None:
            rows = {row.no: row.id for row in batch.runs_new.values()}
            touched = {no for no, *_ in batch.records} | {no for no, _ in batch.checkpoints.values()}
            for no in touched:
                found = self.real.run_by_no(no)
                if (rows.get(no) or (found.id if found else "")) in self.poison:
                    raise OverflowError("Python int too large to convert to SQLite INTEGER")
            commit(batch)

        self.store.commit = refusing  # type: ignore[method-assign]


def test_of_several_commands_in_one_commit_the_wrong_one_is_refused() -> None:
    bench = Poisoned()
    bench.poison = {"bad"}
    for run in ("one", "bad", "two"):
        bench.start(run, [work()])
    bench.settle()
    refused = bench.answers["start bad"]
    assert isinstance(refused, TreadleError)
    assert "too large" in refused.message
    assert bench.status("one") == bench.status("two") == "running"
    assert bench.real.run("bad") is None
    assert [d["code"] for d in bench.real.diagnostics("bad")] == ["refused"]
    bench.finish()
    bench.settle()
    assert bench.status("one") == bench.status("two") == "completed"


def test_a_bug_in_what_follows_a_step_stops_one_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Effects.apply

    def broken(effects: Effects, hot: Any, step: Any, item: Deliver) -> None:
        if hot.state.id == "bad":
            raise AttributeError("a bug")
        apply(effects, hot, step, item)

    bench = Bench()
    for run in ("bad", "good"):
        bench.start(run, [work(), awaits()])
    bench.settle()
    monkeypatch.setattr(Effects, "apply", broken)
    bench.finish()
    bench.core.submit(bench.item("bad", Signal(name="go"), ack="signal"))
    bench.settle()
    assert bench.status("good") == "waiting"
    assert bench.status("bad") == "running", "a receipt cannot be refused: the run is left as it is"
    assert "run.unreadable" in [d["code"] for d in bench.real.diagnostics("bad")]
    assert isinstance(bench.answers["signal"], TreadleError)
    monkeypatch.undo()
    again = bench.reborn()
    again.settle()
    again.finish()
    again.settle()
    assert again.status("bad") == "waiting", "its work is still open, and done where the bug is not"


def test_a_message_that_cannot_be_dealt_with_is_not_read_for_ever() -> None:
    bench = Poisoned()
    bench.start("bad", [awaits()])
    bench.settle()
    bench.poison = {"bad"}
    bench.real.post([("guest:1", message_to_bytes(Deliver("bad", Signal(name="go"))))])
    bench.core._intake.look()
    bench.start("good", [work()])
    bench.settle()
    assert bench.real.inbox(10) == []
    assert [d["code"] for d in bench.real.diagnostics("bad")] == ["refused"]
    value, error = reply_from_bytes(bench.real.replies(["guest:1"])["guest:1"])
    assert value is None
    assert isinstance(error, TreadleError)
    assert bench.status("good") == "running"


def test_progress_and_changes_that_cannot_be_stored_are_turned_away() -> None:
    bench = Poisoned()
    for run in ("bad", "good"):
        bench.start(run, [work()])
    bench.settle()
    bench.poison = {"bad"}
    intents = {found.run: found.intent.id for found in bench.works}
    for run in ("bad", "good"):
        bench.core.submit(CheckpointSaved(run, intents[run], {"a": 1}, [], {}, bench.ack(f"save {run}")))
    bench.settle()
    assert isinstance(bench.answers["save bad"], TreadleError)
    assert bench.answers["save good"] == {}

    def change(desk: Desk) -> str:
        row = desk.store.run("bad")
        assert row is not None
        desk.batch.checkpoints["x"] = (row.no, b"")
        return "done"

    bench.core.change(OwnChange(change, bench.ack("write")))
    bench.core.change(OwnChange(lambda desk: "done", bench.ack("other")))
    bench.settle()
    assert isinstance(bench.answers["write"], TreadleError)
    assert bench.answers["other"] == "done"


def test_what_cannot_even_be_taken_in_is_turned_away() -> None:
    bench = Bench()
    bench.core.submit(Deliver([], Signal(name="go"), ack=bench.ack("list")))  # type: ignore[arg-type]
    bench.core.submit(Deliver(5, Signal(name="go"), ack=bench.ack("int")))  # type: ignore[arg-type]
    bench.core.submit(Deliver("r", Signal(name="go"), ack=bench.ack("blobs"), blobs=None))  # type: ignore[arg-type]
    bench.core.submit(FrameSent([], "i", 1, "t", {}))  # type: ignore[arg-type]
    bench.start("good", [work()])
    bench.settle()
    assert bench.status("good") == "running"
    assert all(isinstance(bench.answers[name], TreadleError) for name in ("list", "int", "blobs"))


def test_a_failure_that_is_nobodys_stops_the_core() -> None:
    bench = Bench()

    def broken(now_ns: int) -> None:
        raise KeyError("the store's own")

    bench.core._intake.gather = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyError):
        bench.core.turn()


# --- the Python interface --------------------------------------------------------------------------------

Call = Callable[[Engine], Awaitable[Any]]

WRONG: dict[str, Call] = {
    "id=5": lambda e: e.start("toy", {"do": ["work"]}, id=5),  # type: ignore[arg-type]
    "id=bytes": lambda e: e.start("toy", {"do": ["work"]}, id=b"x"),  # type: ignore[arg-type]
    "id empty": lambda e: e.start("toy", {"do": ["work"]}, id=""),
    "model=5": lambda e: e.start("toy", {"do": ["work"]}, model=5),  # type: ignore[arg-type]
    "config=5": lambda e: e.start("toy", {"do": ["work"]}, config=5),  # type: ignore[arg-type]
    "secrets": lambda e: e.start("toy", {"do": ["work"]}, secrets="/nonexistent"),
    "reference=5": lambda e: e.start("toy", {"do": ["work"]}, reference=5),  # type: ignore[arg-type]
    "key": lambda e: e.start("toy", {"do": ["work"]}, key=object()),
    "input": lambda e: e.start("toy", object()),
    "signal to 5": lambda e: e.signal(5, "go"),  # type: ignore[arg-type]
    "signal named 5": lambda e: e.signal("there", 5),  # type: ignore[arg-type]
    "signal's key": lambda e: e.signal("there", "go", key=5),  # type: ignore[arg-type]
    "version": lambda e: e.signal("there", "go", expected_version="x"),  # type: ignore[arg-type]
    "cancel 5": lambda e: e.cancel(5),  # type: ignore[arg-type]
    "reason": lambda e: e.cancel("there", 5),  # type: ignore[arg-type]
    "patch": lambda e: e.patch("there", 5),  # type: ignore[arg-type]
    "retry": lambda e: e.retry(None),  # type: ignore[arg-type]
    "roles=5": lambda e: e.task_claim("x", user="ann", roles=5),
    "roles as text": lambda e: e.task_claim("x", user="ann", roles="admin"),
    "user": lambda e: e.task_claim("x", user=5),  # type: ignore[arg-type]
    "limit": lambda e: e.list(limit="x"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
async def test_a_wrong_argument_refuses_one_call_and_stops_nothing(call: Call) -> None:
    engine = Engine("memory:")
    toy.install(engine)
    engine.deploy(toy.TOY)
    async with engine:
        await engine.start("toy", {"do": ["signal:go"]}, id="there")
        with pytest.raises(TreadleError) as caught:
            await call(engine)
        assert caught.value.cls in ("user", "authorization")
        assert [row["id"] for row in await engine.list()] == ["there"]
        await engine.signal("there", "go", 1)
        assert await (await engine.run("there")).result(timeout=30) == [1]
