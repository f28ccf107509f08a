"""Compensation: what a run registered is undone, in reverse order, before it ends badly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.engine import Engine
from treadle.kernel.errors import NotWaiting
from treadle.lang.definition import Definition
from treadle.lang.problems import Problem
from treadle.lang.text import parse
from treadle.process import process, result
from treadle.testing.clock import VirtualClock
from treadle.testing.driver import Driver
from treadle.testing.replaying import assert_replays
from treadle.tools.protocol import ToolCall

Started = Callable[..., Driver]

TRIP = """
steps:
  - id: flight
    call: {transport: a, payload: fly, into: flight}
    compensate: [{call: {transport: b, payload: {no: {$: result.flight}}}}]
  - call: {transport: a, payload: sleep, into: hotel, compensate: [{call: {transport: b, payload: {no: {$: result.hotel}}}}]}
  - compensate: [{set: {state.undone: {$: error.code}}}]
  - call: {transport: c, into: paid}
"""


def booked(started: Started, text: str = TRIP) -> Driver:
    """Flight and hotel are booked; the payment is in flight."""
    d = started(text)
    d.ok(d.open()[0], 1)
    d.ok(d.open()[0], 2)
    return d


def payloads(d: Driver) -> list[Any]:
    return [intent.params["payload"] for intent in d.open()]


def compensation(d: Driver) -> Any:
    assert d.run.error is not None
    return d.run.error["details"]["compensation"]


def test_a_run_that_fails_undoes_in_reverse_order_and_then_ends(started: Started) -> None:
    d = booked(started, TRIP.replace("into: paid}", "into: paid, on_failure: [{fail: no money}]}"))
    d.error(d.open()[0], "declined")
    assert (d.status, d.view()["state"]) == ("waiting", {"undone": "FAILED"})
    assert payloads(d) == [{"no": 2}]
    d.ok(d.open()[0])
    assert payloads(d) == [{"no": 1}]
    d.ok(d.open()[0])
    assert d.status == "failed"
    assert d.run.error is not None
    assert d.run.error["message"] == "no money"
    assert [place["step"] for place in compensation(d)["undone"]] == ["compensate", "hotel", "flight"]
    assert compensation(d)["errors"] == compensation(d)["left"] == []


def test_a_run_that_completes_undoes_nothing(started: Started) -> None:
    d = booked(started)
    d.ok(d.open()[0], 3)
    assert (d.status, d.view()["state"]) == ("completed", {})


def test_a_stalled_run_undoes_only_when_it_is_given_up_on(started: Started) -> None:
    d = booked(started)
    d.error(d.open()[0], "declined")
    assert (d.status, payloads(d)) == ("stalled", [])
    d.retry(fail="enough")
    assert payloads(d) == [{"no": 2}]
    with pytest.raises(NotWaiting, match="being undone"):
        d.retry()
    d.ok(d.open()[0])
    d.ok(d.open()[0])
    assert d.run.error is not None
    assert (d.status, d.run.error["message"]) == ("failed", "enough")


def test_a_cancelled_run_calls_its_work_off_and_undoes(started: Started) -> None:
    d = booked(started)
    d.cancel("changed my mind")
    assert payloads(d) == [{"no": 2}]
    d.ok(d.open()[0])
    d.ok(d.open()[0])
    assert d.run.error is not None
    assert (d.status, d.run.error["message"]) == ("cancelled", "changed my mind")


def test_cancelled_again_it_ends_at_once_and_says_what_is_left(started: Started) -> None:
    d = booked(started)
    d.cancel("a").cancel("b")
    assert d.status == "cancelled"
    assert [place["step"] for place in compensation(d)["left"]] == ["hotel", "flight"]


def test_an_undo_that_fails_stops_no_other_and_is_listed(started: Started) -> None:
    d = booked(started)
    d.cancel()
    d.error(d.open()[0], "hotel is closed")
    assert payloads(d) == [{"no": 1}]
    d.ok(d.open()[0])
    (failed,) = compensation(d)["errors"]
    assert (failed["step"], failed["error"]["message"]) == ("hotel", "hotel is closed")
    assert d.status == "cancelled"


def test_an_undo_that_cannot_be_evaluated_or_fails_by_itself_is_listed(started: Started) -> None:
    d = started(
        "steps: [{compensate: [{set: {state.x: {$: 1 + 'a'}}}]}, {compensate: [{fail: cannot}]}, {compensate: [{set: {state.y: 1}}]}, {fail: over}]"
    )
    assert (d.status, d.view()["state"]) == ("failed", {"y": 1})
    assert [entry["error"]["class"] for entry in compensation(d)["errors"]] == ["user", "expression"]


def test_an_undo_in_a_loop_sees_the_round_it_was_registered_in(started: Started) -> None:
    d = started(
        "steps: [{repeat: {each: n, in: [5, 6], do: [{call: {transport: a, into: r}, compensate: "
        "[{call: {transport: b, payload: [{$: n}, {$: n_index}, {$: result.r}]}}]}]}}, {fail: over}]"
    )
    d.ok(d.open()[0], "first")
    d.ok(d.open()[0], "second")
    assert payloads(d) == [[6, 1, "second"]]
    d.ok(d.open()[0])
    assert payloads(d) == [[5, 0, "first"]]


def test_branches_are_called_off_before_anything_is_undone(started: Started) -> None:
    d = started(
        "steps: [{compensate: [{call: {transport: b, payload: undo}}]}, "
        "{fork: {left: [{call: {transport: a, payload: left}}], right: [{call: {transport: c, payload: right, on_failure: [{fail: over}]}}]}}]"
    )
    _, right = d.open()
    d.error(right, "no")
    assert payloads(d) == ["undo"]


def test_an_undo_may_fork_wait_and_ask(started: Started) -> None:
    d = started(
        "tasks: {call_back: {roles: [clerk]}}\n"
        "steps: [{compensate: [{fork: {one: [{task: call_back}], two: [{wait: 1h}]}}]}, {fail: over}]"
    )
    assert d.status == "waiting"
    d.ok(next(intent for intent in d.open() if intent.kind == "task"), {"done": True})
    d.advance(3600)
    assert (d.status, len(compensation(d)["undone"])) == ("failed", 1)


def test_undos_are_cut_into_slices_like_any_work(started: Started) -> None:
    d = started(
        "steps: [{repeat: {each: n, in: {$: start.all}, do: [{compensate: [{set: {state.last: {$: n}}}]}]}}, {fail: over}]",
        {"all": list(range(300))},
    )
    assert (d.status, d.view()["state"], len(compensation(d)["undone"])) == ("failed", {"last": 0}, 300)


def test_another_run_that_was_started_goes_on_and_nobody_waits_for_it(started: Started) -> None:
    d = started(
        "steps: [{compensate: [{call: {transport: b, payload: undo}}]}, "
        "{fork: {left: [{continue_with: {workflow: Other}}], right: [{fail: over}]}}]"
    )
    begun = next(intent for intent in d.open() if intent.kind == "start")
    d.ok(begun, {"run": "x"})
    d.ok(d.open()[0])
    assert d.status == "failed"


@pytest.mark.parametrize(
    "steps",
    [
        "steps: [{compensate: [{complete: 1}]}]",
        "steps: [{compensate: [{compensate: [{wait: 1s}]}]}]",
        "steps: [{call: {transport: a}, compensate: [{call: {transport: b, compensate: [{wait: 1s}]}}]}]",
    ],
)
def test_what_an_undo_cannot_do_is_said_by_check(
    problems_of: Callable[[str], list[Problem]], steps: str
) -> None:
    assert [problem.code for problem in problems_of(steps)] == ["BAD_COMPENSATE"]


def test_ids_of_steps_are_unique(problems_of: Callable[[str], list[Problem]]) -> None:
    codes = [p.code for p in problems_of("steps: [{id: x, wait: 1s}, {id: x, wait: 2s}]")]
    assert codes == ["DUPLICATE_ID"]


def test_text_builder_and_exports_give_one_digest(compiled: Callable[[str], Definition]) -> None:
    @process("wf")
    def trip(p: Any) -> None:
        p.named("flight").call(
            "a", payload="fly", into="flight", compensate=lambda p: p.call("b", payload={"no": result.flight})
        )
        p.call(
            "a", payload="sleep", into="hotel", compensate=lambda p: p.call("b", payload={"no": result.hotel})
        )
        p.compensate(lambda p: p.set("state.undone", {"$": "error.code"}))
        p.call("c", into="paid")

    text = compiled(TRIP)
    assert trip.definition.digest == text.digest
    for format in ("yaml", "json"):
        again, _ = DIALECT.compile(parse(DIALECT.export(text, format)), transports=["a", "b", "c"])
        assert again is not None
        assert again.digest == text.digest
    made: dict[str, Any] = {}
    exec(DIALECT.export(text, "python"), made)
    assert made["wf"].definition.digest == text.digest


def test_errors_name_their_step_by_its_label_with_the_path_beside(started: Started) -> None:
    d = started("steps: [{id: charge, call: {transport: a}}]")
    d.error(d.open()[0], "no")
    assert d.run.error is not None
    assert (d.run.error["where"], d.run.error["details"]["step"]) == ("steps[0]", "charge")
    d = started("steps: [{call: {transport: a, into: quote}}]")
    d.error(d.open()[0], "no")
    assert d.run.error is not None
    assert d.run.error["details"]["step"] == "quote"


ENGINE = """
dialect: process
name: Trip
version: 1.0.0
steps:
  - call: {transport: effect, payload: fly, into: flight}
    compensate: [{call: {transport: effect, payload: no flight}}]
  - call: {transport: effect, payload: sleep, into: hotel}
    compensate:
      - call: {transport: effect, payload: no hotel}
      - wait: 1h
      - call: {transport: effect, payload: told}
  - fail: over
"""


EFFECTS = ["fly", "sleep", "no hotel", "told", "no flight"]


@pytest.mark.house
@pytest.mark.parametrize("allowed", range(len(EFFECTS)))
async def test_stopped_between_any_two_commits_every_undo_is_done_once_and_in_order(
    tmp_path: Path, allowed: int
) -> None:
    """The first engine may do so many calls; it goes away in the next one, or in the wait before it."""
    path = tmp_path / "trip.yaml"
    path.write_text(ENGINE)
    clock = VirtualClock()
    done: dict[str | None, str] = {}
    stopped = asyncio.Event()

    def opened(most: int) -> Engine:
        engine = clock.engine(f"sqlite:///{tmp_path / 'trip.db'}")

        @engine.transport("effect")
        async def effect(payload: Any, call: ToolCall) -> str:
            if len(done) >= most:
                stopped.set()
                await asyncio.Event().wait()
            done[call.idempotency_key] = payload
            return "ok"

        return engine

    async with opened(allowed) as engine, asyncio.timeout(20):
        engine.deploy(str(path))
        run = await engine.start("Trip", {}, id="t")
        with engine.watch("") as watch:
            while not stopped.is_set() and [w["kind"] for w in (await run.show())["waiting_for"]] != [
                "timer"
            ]:
                await watch.changed(0.02)
    async with opened(10**6) as engine:
        await clock.advance(3600)
        run = await engine.run("t")
        shown = await run.show()
        undone = shown["error"]["details"]["compensation"]["undone"]
        assert (shown["status"], [place["step"] for place in undone]) == ("failed", ["hotel", "flight"])
        await assert_replays(engine)
    assert list(done.values()) == EFFECTS
