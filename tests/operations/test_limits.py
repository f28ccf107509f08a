"""Limits: how many runs of a workflow go on at once, how fast they begin, who is next, and when a start is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, flow
from treadle.kernel.errors import InputInvalid, QueueFull, RunQueued, TreadleError
from treadle.process import process
from treadle.store.rows import Batch
from treadle.store.sql import SqlStore
from treadle.testing import VirtualClock, assert_replays

# It waits for `go`, and holds its place while it does.
GATE = """
dialect: process
name: gate
version: "1"
limits: {concurrency: 2}
steps:
  - await: go
"""


class Crash(BaseException):
    """The process is gone."""


def variant(name: str, limits: str) -> str:
    return GATE.replace("name: gate", f"name: {name}").replace("{concurrency: 2}", limits)


TEXTS = {
    "gate": GATE,
    "short": variant("short", "{concurrency: 1, queue: 2}"),
    "none": variant("none", "{concurrency: 1, queue: 0}"),
    "each": variant("each", '{concurrency: 1, per: "{{ input.customer }}", queue: 1}'),
    "pace": variant("pace", '{rate: "3/10s"}'),
    "both": variant("both", '{rate: "2/10s", concurrency: 3}'),
    "urgent": variant("urgent", "{concurrency: 1, priority: 7}"),
    "rests": variant("rests", "{concurrency: 1, while: running}"),
    "free": GATE.replace("name: gate", "name: free").replace("limits: {concurrency: 2}\n", ""),
    "bad": variant("bad", "{concurrency: 1}").replace("  - await: go\n", "  - await: go\n  - fail: no\n"),
    "work": """
metadata: {name: work, version: "1"}
executor: {spec: {limits: {concurrency: 1}}}
workflow:
  - step: only
    tool: {kind: flaky}
""",
    "twice": """
dialect: process
name: twice
version: "1"
steps:
  - await: go
  - call: {transport: flaky}
""",
    "parent": """
dialect: process
name: parent
version: "1"
steps:
  - child: {workflow: short, into: got}
""",
}


class Flaky:
    """A tool that fails while it is told to, and ends only while it may."""

    def __init__(self) -> None:
        self.fails = True
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def call(self) -> dict[str, bool]:
        await self.may_end.wait()
        if self.fails:
            raise ValueError("not today")
        return {"done": True}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
async def engine(clock: VirtualClock, flaky: Flaky, tmp_path: Path) -> AsyncIterator[Engine]:
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    engine = clock.engine(f"sqlite:///{tmp_path}/l.db")
    engine.tool("flaky")(flaky.call)

    @engine.transport("flaky")
    async def transport(payload: Any) -> dict[str, bool]:
        return await flaky.call()

    async with engine:
        engine.deploy(str(tmp_path))
        yield engine
        await assert_replays(engine)


async def shown(engine: Engine, id: str) -> dict[str, Any]:
    return await (await engine.run(id)).show()


async def statuses(engine: Engine) -> dict[str, str]:
    return {row["id"]: row["status"] for row in reversed(await engine.list(limit=1000))}


async def begun(engine: Engine, *ids: str) -> list[str]:
    """Those of them that are not in line any more."""
    found = await statuses(engine)
    return [id for id in ids if found[id] != "queued"]


async def test_never_more_runs_go_on_than_the_limit_and_the_next_begins_when_one_ends(
    clock: VirtualClock, engine: Engine
) -> None:
    ids = [f"r{n}" for n in range(5)]
    for id in ids:
        await engine.start("gate", id=id)
    assert await begun(engine, *ids) == ["r0", "r1"]
    for done, now in (("r1", ["r0", "r1", "r2"]), ("r0", ["r0", "r1", "r2", "r3"])):
        await engine.signal(done, "go")
        await clock.settle()
        assert await begun(engine, *ids) == now
    for id in ("r2", "r3"):
        await engine.signal(id, "go")
        await clock.settle()
    await engine.signal("r4", "go")
    await clock.settle()
    assert set((await statuses(engine)).values()) == {"completed"}
    assert await engine.read(lambda reads: reads.crowds()) == {}


async def test_a_run_in_line_shows_its_place_and_since_when(clock: VirtualClock, engine: Engine) -> None:
    for n in range(4):
        await engine.start("gate", id=f"r{n}")
    run = await shown(engine, "r3")
    assert (run["status"], run["queued"]["position"]) == ("queued", 2)
    assert run["queued"]["since"] == run["started_at"]
    assert [wait["kind"] for wait in run["waiting_for"]] == ["place"]
    assert "queued" not in await shown(engine, "r0")
    assert [row["id"] for row in await engine.list(status=["queued"])] == ["r3", "r2"]
    await engine.cancel("r0")
    await clock.settle()
    assert (await shown(engine, "r3"))["queued"]["position"] == 1


async def test_a_full_line_refuses_a_start_and_writes_no_run(clock: VirtualClock, engine: Engine) -> None:
    for n in range(3):
        await engine.start("short", id=f"r{n}")
    with pytest.raises(QueueFull) as refused:
        await engine.start("short", id="r3")
    assert refused.value.details == {"workflow": "short", "key": "", "waiting": 2, "queue": 2}
    assert "r3" not in await statuses(engine)
    await engine.signal("r0", "go")
    await clock.settle()
    assert (await shown(engine, (await engine.start("short", id="r3")).id))["status"] == "queued"
    await engine.start("none", id="n0")
    with pytest.raises(QueueFull):
        await engine.start("none", id="n1")


async def test_a_start_again_is_the_same_run_also_while_it_waits(engine: Engine) -> None:
    for n in range(3):
        await engine.start("gate", id=f"r{n}")
    assert (await engine.start("gate", id="r2")).existing
    assert len(await statuses(engine)) == 3
    await engine.cancel("r2")


async def test_each_key_has_a_line_of_its_own(clock: VirtualClock, engine: Engine) -> None:
    for customer in ("a", "b", "c"):
        for n in range(2):
            await engine.start("each", {"customer": customer}, id=f"{customer}{n}")
    assert [id for id, status in (await statuses(engine)).items() if status == "queued"] == ["a1", "b1", "c1"]
    with pytest.raises(QueueFull) as refused:
        await engine.start("each", {"customer": "b"}, id="b2")
    assert refused.value.details["key"] == "b"
    await engine.signal("b0", "go")
    await clock.settle()
    assert await begun(engine, "a1", "b1", "c1") == ["b1"]
    with pytest.raises(InputInvalid, match=r"limits\.per"):
        await engine.start("each", {"who": "a"}, id="x")
    assert "x" not in await statuses(engine)


async def test_a_rate_is_exact(clock: VirtualClock, engine: Engine) -> None:
    ids = [f"r{n}" for n in range(8)]
    for id in ids[:2]:
        await engine.start("pace", id=id)
    await clock.advance(4)
    for id in ids[2:]:
        await engine.start("pace", id=id)
    assert await begun(engine, *ids) == ids[:3]
    # In any ten seconds three begin: two at 0, one at 4, two at 10, one at 14, two at 20.
    for seconds, count in ((5.999, 3), (0.001, 5), (3.999, 5), (0.001, 6), (5.999, 6), (0.001, 8)):
        await clock.advance(seconds)
        assert await begun(engine, *ids) == ids[:count]


async def test_a_rate_and_a_concurrency_both_hold(clock: VirtualClock, engine: Engine) -> None:
    ids = [f"r{n}" for n in range(5)]
    for id in ids:
        await engine.start("both", id=id)
    assert await begun(engine, *ids) == ids[:2]
    await clock.advance(10)
    assert await begun(engine, *ids) == ids[:3]
    await clock.advance(100)
    assert await begun(engine, *ids) == ids[:3]
    await engine.signal("r0", "go")
    await clock.settle()
    assert await begun(engine, *ids) == ids[:4]


async def test_the_more_urgent_comes_first_then_who_came_first(clock: VirtualClock, engine: Engine) -> None:
    for id, priority in (("run", None), ("a", 0), ("b", 100), ("c", -100), ("d", 100), ("e", 0)):
        await engine.start("short" if id == "run" else "urgent", id=f"u-{id}", priority=priority)
    await engine.cancel("u-run")
    order = ["u-a", "u-b", "u-d", "u-e", "u-c"]
    for at, id in enumerate(order):
        assert await begun(engine, *order) == order[: at + 1]
        await engine.cancel(id)
        await clock.settle()
    await engine.start("urgent", id="x")
    await engine.start("urgent", id="y", priority=6)
    await engine.start("urgent", id="z")
    assert (await shown(engine, "z"))["queued"]["position"] == 1
    with pytest.raises(TreadleError) as refused:
        await engine.start("urgent", id="w", priority=101)
    assert refused.value.code == "LIMITS_INVALID"


@pytest.mark.parametrize("how", ["cancel", "fail"])
async def test_a_run_that_ends_in_any_way_gives_its_place_back(
    clock: VirtualClock, engine: Engine, how: str
) -> None:
    await engine.start("bad", id="one")
    await engine.start("bad", id="two")
    assert await begun(engine, "one", "two") == ["one"]
    await (engine.cancel("one") if how == "cancel" else engine.signal("one", "go"))
    await clock.settle()
    assert await begun(engine, "one", "two") == ["one", "two"]


async def test_a_run_in_line_can_be_cancelled_and_keeps_its_signals_and_takes_nothing_else(
    clock: VirtualClock, engine: Engine
) -> None:
    for n in range(4):
        await engine.start("short" if n < 3 else "free", id=f"r{n}")
    await engine.signal("r1", "go")
    with pytest.raises(RunQueued):
        await engine.patch("r1", {"x": 1})
    with pytest.raises(TreadleError):
        await engine.retry("r1")
    await engine.cancel("r2", "not needed")
    run = await shown(engine, "r2")
    assert (run["status"], run["error"]["message"]) == ("cancelled", "not needed")
    await engine.signal("r0", "go")
    await clock.settle()
    assert (await statuses(engine))["r1"] == "completed"


async def test_a_retry_of_an_ended_run_waits_for_a_place_too(
    clock: VirtualClock, engine: Engine, flaky: Flaky
) -> None:
    for id in ("one", "two"):
        await engine.start("work", id=id)
        await clock.settle()
    assert await statuses(engine) == {"one": "failed", "two": "failed"}
    assert await engine.read(lambda reads: reads.crowds()) == {}
    flaky.fails = False
    flaky.may_end.clear()
    await engine.start("work", id="holder")
    for id in ("one", "two"):
        await engine.retry(id)
    run = await shown(engine, "two")
    assert (run["status"], run["queued"]["position"], run["error"]) == ("queued", 2, None)
    await engine.cancel("two")
    with pytest.raises(RunQueued):
        await engine.retry("one")
    flaky.may_end.set()
    await clock.settle()
    assert await statuses(engine) == {"one": "completed", "two": "cancelled", "holder": "completed"}
    assert await engine.read(lambda reads: reads.crowds()) == {}
    with pytest.raises(TreadleError) as refused:
        await engine.retry("one")
    assert refused.value.code == "NOTHING_TO_RETRY"


async def test_a_fork_of_a_run_that_goes_on_waits_for_a_place_too(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.start("short", id="one")
    await engine.start("short", id="two")
    await engine.fork("one", new_id="again")
    await engine.fork("two", new_id="later")
    assert {id for id, status in (await statuses(engine)).items() if status == "queued"} == {
        "two",
        "again",
        "later",
    }
    for id in ("one", "two", "again", "later"):
        assert (await statuses(engine))[id] == "waiting"
        await engine.signal(id, "go")
        await clock.settle()
    assert set((await statuses(engine)).values()) == {"completed"}


async def test_a_workflow_without_limits_writes_neither_a_row_nor_a_record_more(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.start("free", id="f")
    await engine.start("gate", id="g")
    free, gate = await shown(engine, "f"), await shown(engine, "g")
    # One that finds a place free has no record more, either.
    assert free["version_no"] == gate["version_no"] == 1
    assert list(await engine.read(lambda reads: reads.crowds())) == [("gate", "")]


async def test_a_child_waits_in_line_and_where_that_is_full_its_parent_is_told(
    clock: VirtualClock, engine: Engine
) -> None:
    for n in range(5):
        await engine.start("parent", id=f"p{n}")
    await clock.settle()
    found = await statuses(engine)
    # One goes on, two wait, and two found the line full.
    assert sorted(status for id, status in found.items() if "." in id) == ["queued", "queued", "waiting"]
    told = {n: (await shown(engine, f"p{n}")) for n in range(5)}
    assert [told[n]["status"] for n in range(5)] == ["waiting", "waiting", "waiting", "stalled", "stalled"]
    assert told[1]["waiting_for"][0]["status"] == "queued"
    assert told[3]["error"]["code"] == "QUEUE_FULL"


WHERE = {
    "process.yaml": (variant("wrong", "{concurrency: none}"), 5),
    "playbook.yaml": (TEXTS["work"].replace("{concurrency: 1}", "{rate: often}"), 3),
}


@pytest.mark.parametrize("file", WHERE)
def test_limits_that_a_definition_gets_wrong_are_a_problem_at_their_line(file: str, tmp_path: Path) -> None:
    text, line = WHERE[file]
    (tmp_path / file).write_text(text)
    found = [
        problem for problem in Engine("memory:").check(str(tmp_path / file)) if problem.severity == "error"
    ]
    assert [(problem.code, problem.line) for problem in found] == [("LIMITS_INVALID", line)]


AGENT = """
id: triage
name: triage
limits: {concurrency: 1}
entry: only
nodes: {only: {name: only, instruction: say hello}}
edges: []
"""


async def test_every_dialect_that_is_started_has_limits(clock: VirtualClock, tmp_path: Path) -> None:
    @flow.workflow(limits={"concurrency": 1})
    async def durable(ctx: flow.Context) -> str:
        return str(await ctx.signal("go"))

    @process("built", version="1", limits={"concurrency": 1})
    def built(p: Any) -> None:
        p.await_signal("go")

    (tmp_path / "triage.yaml").write_text(AGENT)
    async with clock.engine("memory:", work=False) as engine:
        for workflow in (durable, built, engine.load(str(tmp_path / "triage.yaml"))[0]):
            for n in range(2):
                await engine.start(workflow, id=f"{workflow.name}-{n}")
        found = await statuses(engine)
        assert [id for id, status in found.items() if status == "queued"] == [
            "durable-1",
            "built-1",
            "triage-1",
        ]
        for n in (1, 0):
            await engine.cancel(f"triage-{n}")
        for n in range(2):
            for name in ("durable", "built"):
                await engine.signal(f"{name}-{n}", "go", "done")
            await clock.settle()
        assert {id: status for id, status in (await statuses(engine)).items() if id[:2] != "tr"} == {
            "durable-0": "completed",
            "durable-1": "completed",
            "built-0": "completed",
            "built-1": "completed",
        }
        await assert_replays(engine)
    with pytest.raises(TreadleError, match=r"limits\.concurrency"):
        flow.workflow(limits={"concurrency": 0})(durable.function)


async def test_what_operators_say_wins_over_the_definition_until_it_is_removed(
    clock: VirtualClock, engine: Engine
) -> None:
    ids = [f"r{n}" for n in range(6)]
    for id in ids[:4]:
        await engine.start("gate", id=id)
    row = await engine.limit_set("gate", concurrency=3, queue=1)
    assert (row["limits"], row["origin"]) == ({"concurrency": 3, "queue": 1}, "operator")
    await clock.settle()
    assert await begun(engine, *ids[:4]) == ids[:3]
    with pytest.raises(QueueFull):
        await engine.start("gate", id="r4")
    row = await engine.limit_remove("gate")
    assert row == {
        "workflow": "gate",
        "limits": {"concurrency": 2},
        "origin": "definition",
        "running": 3,
        "queued": 1,
        "lines": [{"key": "", "running": 3, "queued": 1}],
    }
    await engine.start("gate", id="r4")
    # Those who are in are not put out; nobody comes in before there is room.
    await engine.cancel("r0")
    await clock.settle()
    assert await begun(engine, *ids[:4]) == ids[:3]
    with pytest.raises(TreadleError) as refused:
        await engine.limit_remove("gate")
    assert refused.value.code == "LIMIT_NOT_FOUND"


async def test_a_workflow_that_says_nothing_can_be_limited(clock: VirtualClock, engine: Engine) -> None:
    await engine.start("free", id="before")
    await engine.limit_set("free", concurrency=1)
    for n in range(2):
        await engine.start("free", id=f"r{n}")
    assert await begun(engine, "before", "r0", "r1") == ["before", "r0"]
    await engine.limit_remove("free")
    # Who waits goes by what it was told when it came; who comes now is not limited.
    await engine.start("free", id="r2")
    assert await begun(engine, "r1", "r2") == ["r2"]
    await engine.cancel("r0")
    await clock.settle()
    assert await begun(engine, "r1") == ["r1"]
    with pytest.raises(TreadleError):
        await engine.limit_set("free", concurrency=0)
    with pytest.raises(TreadleError, match="the name of a pool"):
        await engine.limit_set("pool:G P U", concurrency=1)


async def test_lines_are_the_same_after_a_restart_at_any_commit(
    clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pace.yaml").write_text(variant("pace", '{concurrency: 2, rate: "2/10s"}'))
    store = f"sqlite:///{tmp_path}/c.db"
    async with clock.engine(store) as engine:
        engine.deploy(str(tmp_path / "pace.yaml"))
    ids = [f"r{n}" for n in range(6)]
    whole, crashes = SqlStore.commit, 0
    for after_it in (False, True):
        for at in range(1, 5):
            left = at

            def commit(self: SqlStore, batch: Batch, after_it: bool = after_it) -> None:
                nonlocal left, crashes
                left -= 1
                if left == 0:
                    if after_it:
                        whole(self, batch)
                    crashes += 1
                    raise Crash
                whole(self, batch)

            monkeypatch.setattr(SqlStore, "commit", commit)
            with contextlib.suppress(Crash, TreadleError):
                async with Engine(store, clock=clock) as dying:
                    for id in ids:
                        await dying.start("pace", id=id)
                    for row in await dying.list(status="waiting"):
                        await dying.signal(row["id"], "go")
                    assert left > 0
            monkeypatch.setattr(SqlStore, "commit", whole)
            async with Engine(store, clock=clock) as looking:
                held = [row for row in await looking.list() if row["status"] == "waiting"]
                crowds = await looking.read(lambda reads: reads.crowds())
                assert len(held) == sum(crowd.held for crowd in crowds.values()) <= 2
    assert crashes >= 6
    async with clock.engine(store) as engine:
        for id in ids:
            await engine.start("pace", id=id)
        for _ in range(12):
            for row in await engine.list(status="waiting"):
                await engine.signal(row["id"], "go")
            await clock.advance(10)
        assert set((await statuses(engine)).values()) == {"completed"}
        assert await engine.read(lambda reads: reads.crowds()) == {}
        await assert_replays(engine)


async def test_a_run_that_waits_gives_its_place_back_where_the_limit_says_so(
    engine: Engine, clock: VirtualClock
) -> None:
    for n in range(3):
        await engine.start("rests", id=f"r{n}")
    await clock.settle()
    assert {(await shown(engine, f"r{n}"))["status"] for n in range(3)} == {"waiting"}
    row = await engine.limit("rests")
    assert (row["running"], row["queued"]) == (0, 0)
    for n in range(3):
        await engine.signal(f"r{n}", "go")
    await clock.settle()
    assert {(await shown(engine, f"r{n}"))["status"] for n in range(3)} == {"completed"}
    assert await engine.read(lambda reads: reads.crowds()) == {}


async def test_who_goes_on_after_waiting_counts_again_and_is_not_held_up(
    engine: Engine, clock: VirtualClock, flaky: Flaky
) -> None:
    await engine.limit_set("twice", concurrency=1, **{"while": "running"})
    for id in ("a", "b"):
        await engine.start("twice", id=id)
    await clock.settle()
    assert {(await shown(engine, id))["status"] for id in ("a", "b")} == {"waiting"}
    flaky.fails = False
    flaky.may_end.clear()
    await engine.signal("a", "go")
    await engine.signal("b", "go")
    await engine.start("twice", id="c")
    row = await engine.limit("twice")
    assert (row["running"], row["queued"]) == (2, 1), "both go on, and nobody begins"
    flaky.may_end.set()
    await clock.settle()
    assert (await shown(engine, "c"))["status"] == "waiting"
    assert {(await shown(engine, id))["status"] for id in ("a", "b")} == {"completed"}
