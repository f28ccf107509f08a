"""Operations on cells and applications: what is refused changes nothing, and nobody goes round a rule."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.errors import DefinitionError, RunExists, TreadleError, Unsupported, ValueRefused
from treadle.store.sql import SqlStore


@rx.schema("s/Go@1")
@dataclass(frozen=True)
class Go:
    k: str
    n: int = 0


@rx.schema("s/Box@1")
@dataclass(frozen=True)
class Box:
    n: int = 0


work = rx.effect("s/work@1", params=Box, receipt=Box)


def app_of(*, bug: bool = False, version: int = 1, name: str = "s") -> tuple[rx.App, rx.Workflow]:
    """Ends at n=9; fails at its receipt with the bug; n=1 asks for work."""

    @rx.workflow(
        "s/flow@1",
        state=Box,
        events=[Go],
        key="k",
        effects=[work],
        terminal=lambda box: box.n == 9,
        version=version,
    )
    def flow(box, event, ctx):
        if isinstance(event, rx.Receipt):
            if bug:
                raise ValueError("a bug")
            return rx.Output(Box(9))
        return rx.Output(Box(event.n), effects=[work(Box(1))] if event.n == 1 else [])

    return rx.App(name, [flow]), flow


@pytest.fixture(autouse=True)
def _executor():
    @work.executor
    async def do(call: rx.Call[Box]) -> Box:
        return Box(1)

    yield
    work.run = None


def url(path: Path) -> str:
    return f"sqlite:///{path}/t.db"


async def until(engine: Engine, question: Any) -> Any:
    async with asyncio.timeout(20):
        with engine.watch("") as watch:
            while not (found := await question()):
                await watch.changed(poll_s=0.02)
    return found


async def show(engine: Engine, id: str) -> dict[str, Any]:
    return await (await engine.run(id)).show()


async def at_rest(engine: Engine, id: str) -> dict[str, Any]:
    async def ask() -> Any:
        shown = await show(engine, id)
        return shown if shown["status"] != "waiting" else None

    return await until(engine, ask)


def deployed(store: str, app: rx.App) -> Engine:
    engine = Engine(store)
    engine.deploy(app)
    return engine


@pytest.mark.at_home("a worker elsewhere gets its code when it is started")
async def test_work_that_waits_for_code_is_done_once_it_is_deployed(tmp_path):
    app, _ = app_of()
    calls: list[str] = []
    begun = asyncio.Event()

    @work.executor
    async def hangs(call):
        calls.append(call.intent_id)
        begun.set()
        await asyncio.Event().wait()

    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("a", 1))
        await begun.wait()

    @work.executor
    async def does(call):
        calls.append(call.intent_id)
        return Box(1)

    async with Engine(url(tmp_path)) as engine:

        async def parked() -> Any:
            return engine.worker.unknown

        await until(engine, parked)
        engine.deploy(app)
        assert (await at_rest(engine, "s/flow@1/a"))["status"] == "completed"
    assert calls == [calls[0]] * 2


@pytest.mark.house
async def test_nobody_moves_an_application_by_a_patch(tmp_path):
    app, _ = app_of()
    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("a", 2))
        before = await show(engine, "s")
        for data in ({"op": "apply", "manifest": "sha256:00"}, {"op": "propose", "manifest": "x"}, {"x": 1}):
            with pytest.raises(Unsupported):
                await engine.patch("s", data)
        with pytest.raises(TreadleError, match="own names"):
            await engine.patch("s", {"op": "apply", "manifest": "sha256:00"}, by="treadle:governor")
        with pytest.raises(Unsupported):
            await engine.cancel("s")
        assert await show(engine, "s") == before


@pytest.mark.house
async def test_a_cell_is_one_for_its_key(tmp_path):
    app, flow = app_of()
    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("a", 2))
        for refused in (
            engine.fork("s/flow@1/a", at=1),
            engine.start("s/flow@1", {"k": "b", "n": 1}, id="by-hand"),
            engine.start("s/flow@1", {"k": "b", "n": 1}, key="c"),
            engine.start("s", id="another"),
        ):
            with pytest.raises(Unsupported):
                await refused
        assert [cell["key"] for cell in await engine.cells(flow)] == ["a"]
        assert {row["id"] for row in await engine.list()} == {"s", "s/flow@1/a"}


@pytest.mark.house
async def test_a_run_of_another_dialect_is_not_taken_for_a_cell(tmp_path):
    app, _ = app_of()
    engine = deployed(url(tmp_path), app)
    playbook = tmp_path / "pb.yaml"
    playbook.write_text(
        "apiVersion: noetl.io/v10\nkind: Playbook\nmetadata: {name: waits, path: waits}\n"
        "workflow:\n  - step: start\n    tool: {kind: noop}\n",
        "utf-8",
    )
    (definition,) = engine.deploy(str(playbook))
    async with engine:
        run = await engine.start(definition.name, {}, id="s/flow@1/a")
        await run.result(timeout=20)
        before = await run.journal()
        with pytest.raises(RunExists):
            await engine.publish(Go("a", 2))
        assert await run.journal() == before
        assert (await engine.replay(run.id))["equal"]


@pytest.mark.house
async def test_a_refused_apply_changes_nothing(tmp_path):
    one, _ = app_of()
    two, _ = app_of(version=2)
    async with deployed(url(tmp_path), one) as engine:
        await engine.publish(Go("a", 2))
        before = await engine.definitions()
        with pytest.raises(TreadleError) as refused:
            await engine.apply(two)
        assert refused.value.code == "APPLY_BLOCKED"
        assert await engine.definitions() == before
        await engine.publish(Go("a", 9))
        assert (await engine.apply(two))["manifest"] == two.digest
        assert len(await engine.definitions()) == 2 * len(before)


@pytest.mark.house
async def test_a_failed_cell_is_reset_by_the_code_that_was_applied(tmp_path):
    broken, _ = app_of(bug=True)
    fixed, _ = app_of(version=2)
    async with deployed(url(tmp_path), broken) as engine:
        await engine.publish(Go("a", 1))
        assert (await at_rest(engine, "s/flow@1/a"))["status"] == "failed"
    async with deployed(url(tmp_path), fixed) as engine:
        await engine.apply(fixed)
    async with deployed(url(tmp_path), fixed) as engine:
        records = len(await (await engine.run("s/flow@1/a")).journal())
        with pytest.raises(TreadleError) as refused:
            await engine.publish(Go("a", 9))
        assert refused.value.code == "CELL_FAILED"
        assert len(await (await engine.run("s/flow@1/a")).journal()) == records
        await engine.reset("s/flow@1/a")
        await engine.publish(Go("a", 9))
        assert (await show(engine, "s/flow@1/a"))["status"] == "completed"


@pytest.mark.house
async def test_a_failed_cell_whose_state_does_not_fit_blocks_an_apply(tmp_path):
    broken, _ = app_of(bug=True)

    @rx.schema("s/Other@1")
    @dataclass(frozen=True)
    class Other:
        m: str

    @rx.workflow("s/flow@1", state=Other, events=[Go], key="k", effects=[])
    def flow(box, event, ctx):
        return rx.Output(Other("x"))

    async with deployed(url(tmp_path), broken) as engine:
        await engine.publish(Go("a", 1))
        assert (await at_rest(engine, "s/flow@1/a"))["status"] == "failed"
        with pytest.raises(TreadleError) as refused:
            await engine.apply(rx.App("s", [flow]))
        assert "does not fit" in refused.value.details["blockers"][0]["reason"]


@pytest.mark.house
async def test_steering_a_cell_that_does_not_need_it_is_refused(tmp_path):
    app, _ = app_of()
    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("done", 9))
        await engine.publish(Go("idle", 2))
        journals = [await (await engine.run(f"s/flow@1/{key}")).journal() for key in ("done", "idle")]
        assert (await engine.cancel("s/flow@1/done"))["stale"]
        for asked, code in (
            (engine.reset("s/flow@1/idle"), "NOT_STALLED"),
            (engine.retry("s/flow@1/done"), "NOT_STALLED"),
            (engine.retry("s/flow@1/idle", skip=True), "NOT_STALLED"),
            (engine.signal("s/flow@1/idle", "go"), "UNSUPPORTED"),
        ):
            with pytest.raises(TreadleError) as refused:
                await asked
            assert refused.value.code == code
        assert journals == [await (await engine.run(f"s/flow@1/{key}")).journal() for key in ("done", "idle")]


@pytest.mark.house
async def test_a_submission_keeps_its_answer_whatever_is_published_with_it():
    @rx.schema("s/Both@1")
    @dataclass(frozen=True)
    class Both:
        k: str

    def step(box, event, ctx):
        if isinstance(event, Go) or event.k == "half":
            raise ValueError("not this one")
        return rx.Output(Box(1))

    one = rx.workflow("s/one@1", state=Box, events=[Go, Both], key="k", effects=[])(step)
    two = rx.workflow("s/two@1", state=Box, events=[Both], key="k", effects=[])(
        lambda box, event: rx.Output(Box(1))
    )
    async with Engine("memory:") as engine:
        engine.deploy(rx.App("s", [one, two]))
        for submission, first, then in (("s1", Go("a"), Both("a")), ("s2", Both("half"), Go("b"))):
            for event in (first, then, first):
                with pytest.raises(TreadleError) as refused:
                    await engine.publish(event, submission_id=submission)
                assert refused.value.code == "STEP_FAILED", (submission, event)


@pytest.mark.house
async def test_one_cell_that_cannot_be_loaded_does_not_hide_the_others(tmp_path):
    moods = ["one"]

    @rx.workflow("s/moody@1", state=Box, events=[Go], key="k", effects=[])
    def moody(box, event, ctx):
        return rx.Output(Box(len(moods) if event.k == "bad" else 5))

    async with deployed(url(tmp_path), rx.App("m", [moody])) as engine:
        await engine.publish(Go("bad"))
        await engine.publish(Go("good"))
        moods.append("two")
        cells = {cell["key"]: cell for cell in await engine.cells(moody)}
        assert cells["good"]["status"] == "running"
        assert cells["bad"]["error"]["code"] == "REPLAY_DIFFERS"


APP = """
from dataclasses import dataclass
from treadle import reactive as rx

@rx.schema("g/Go@1")
@dataclass(frozen=True)
class Go:
    k: str
    n: int = 0

@rx.workflow("g/flow@1", state=Go, events=[Go], key="k", effects=[], terminal=lambda go: go.n == 9, version={version})
def flow(go, event, ctx):
    return rx.Output(event)

app = rx.App("g", [flow])
"""


async def test_an_owner_without_the_code_loads_what_a_guest_gives_it(tmp_path, in_house):
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for version, file in enumerate(files, 1):
        file.write_text(APP.format(version=version), "utf-8")
    async with Engine(url(tmp_path)) as owner, Engine(url(tmp_path)) as guest:
        assert in_house or (owner.owns, guest.owns) == (True, False)
        await asyncio.to_thread(guest.deploy, f"{files[0]}:app")
        await guest.publish("g/Go@1", {"k": "a", "n": 9})

        async def there() -> Any:
            return [row for row in await owner.list() if row["id"] == "g/flow@1/a"]

        await until(owner, there)
        await guest.apply(f"{files[1]}:app")
        names = [row["name"] for row in await owner.definitions()]
        assert names.count("g") == 2


async def test_an_owner_that_cannot_get_the_code_says_so(tmp_path):
    app, _ = app_of()
    async with Engine(url(tmp_path)), Engine(url(tmp_path)) as guest:
        await asyncio.to_thread(guest.deploy, app)
        with pytest.raises(TreadleError) as refused:
            await guest.publish(Go("a", 9))
        assert refused.value.code == "CODE_MISSING"


@pytest.mark.house
async def test_events_tell_what_came_to_a_cell_and_what_it_asked_for(tmp_path):
    app, flow = app_of(bug=True)
    seen: list[dict[str, Any]] = []
    engine = deployed(url(tmp_path), app)
    engine.observe(seen.append)
    async with engine:
        await engine.publish(Go("a", 2))
        await engine.publish(Go("a", 1))
        await at_rest(engine, "s/flow@1/a")
        await engine.reset("s/flow@1/a")
        events = await engine.events_after("s/flow@1/a", 0)
        cell = await engine.cell(flow, "a")
        opened = (await cell.journal())[1]["opened"][0]["id"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    told = [{k: v for k, v in event.items() if k not in ("seq", "at", "error")} for event in events]
    assert told == [
        {
            "record": 1,
            "type": "received",
            "schema": "s/Go@1",
            "value": {"k": "a", "n": 2},
            "status": "running",
        },
        {
            "record": 2,
            "type": "received",
            "schema": "s/Go@1",
            "value": {"k": "a", "n": 1},
            "status": "waiting",
        },
        {"record": 2, "type": "effect", "effect": "s/work@1", "intent": opened, "ref": None},
        {"record": 3, "type": "receipt", "intent": opened, "receipt": "ok", "status": "failed"},
        {"record": 3, "type": "failed"},
        {"record": 4, "type": "reset", "status": "running"},
    ]
    assert events[4]["error"]["code"] == "STEP_FAILED"
    assert [event for event in seen if event["type"] != "manifest"] == [
        {**event, "run": "s/flow@1/a"} for event in events
    ]


@pytest.mark.house
async def test_a_workflow_is_in_one_application_of_a_store(tmp_path):
    one, flow = app_of()
    two, _ = app_of(name="two")
    async with deployed(url(tmp_path), one) as engine:
        with pytest.raises(DefinitionError) as refused:
            engine.deploy(two)
        assert refused.value.code == "NAME_TAKEN"
        assert await engine.publish(Go("a", 9)) == ["s/flow@1/a"]
        assert len(await engine.cells(flow)) == 1
    with pytest.raises(DefinitionError) as refused:
        async with deployed(url(tmp_path), two):
            raise AssertionError("it must not start")
    assert refused.value.code == "NAME_TAKEN"


async def test_applying_what_is_active_has_nothing_to_do(tmp_path):
    app, _ = app_of()
    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("a", 2))
        before = await (await engine.run("s")).journal()
        assert (await engine.apply(app))["manifest"] == app.digest
        assert await (await engine.run("s")).journal() == before


@pytest.mark.parametrize("given", [{"hot_runs": -1}, {"hot_runs": 0}, {"concurrency": 0}, {"threads": "x"}])
def test_numbers_of_an_engine_are_checked(given):
    with pytest.raises(ValueRefused, match="whole number"):
        Engine("memory:", **given)


@pytest.mark.parametrize("size", ["-3", "abc", "0"])
def test_the_size_of_the_cache_is_checked(monkeypatch, size):
    monkeypatch.setenv("TREADLE_CELL_CACHE_SIZE", size)
    with pytest.raises(ValueRefused, match="TREADLE_CELL_CACHE_SIZE"):
        Engine("memory:")


@pytest.mark.house
async def test_a_guest_is_told_the_same_refusal_again(tmp_path):
    file = tmp_path / "one.py"
    file.write_text(
        APP.format(version=1).replace("return", "if event.n == 3: raise ValueError('no')\n    return"),
        "utf-8",
    )
    async with Engine(url(tmp_path)), Engine(url(tmp_path)) as guest:
        await asyncio.to_thread(guest.deploy, f"{file}:app")
        for submission, n in (("bad", 3), ("good", 9)):
            for _ in range(2):
                try:
                    answer: Any = await guest.publish(
                        "g/Go@1", {"k": submission, "n": n}, submission_id=submission
                    )
                except TreadleError as error:
                    answer = error.code
                assert answer == ("STEP_FAILED" if n == 3 else ["g/flow@1/good"])


async def test_lists_refuse_what_is_no_status_and_take_one_word(tmp_path):
    app, _ = app_of()
    async with deployed(url(tmp_path), app) as engine:
        await engine.publish(Go("a", 9))
        assert [row["id"] for row in await engine.list(status="completed")] == ["s/flow@1/a"]
        assert await engine.tasks(status="open") == []
        for refused in (
            engine.list(status=["nope"]),
            engine.list(since_ns="x"),
            engine.tasks(status="nope"),
            engine.gc(now_ns="2026-11-15"),
            engine.__aenter__(),
        ):
            with pytest.raises(TreadleError):
                await refused
        assert len(await engine.list()) == 2


async def test_nobody_is_not_somebody():
    async with Engine("memory:") as engine:
        for refused in (
            engine.task_claim("t", user=""),
            engine.task_assign("t", to=5, user="ann"),  # type: ignore[arg-type]
            engine.task_assign("t", to="", user="ann"),
        ):
            with pytest.raises(ValueRefused, match="name of somebody"):
                await refused


@pytest.mark.at_home("a commit in a file is held")
async def test_who_asked_while_another_process_applied_goes_on_under_the_new_code(tmp_path, monkeypatch):
    old, _ = app_of()

    @rx.workflow("s/flow@1", state=Box, events=[Go], key="k", effects=[], terminal=lambda box: box.n == 9)
    def flow(box, event, ctx):
        return rx.Output(Box(event.n))

    @rx.workflow("s/more@1", state=Box, events=[Go], key="k", effects=[], terminal=lambda box: True)
    def more(box, event, ctx):
        return rx.Output(Box(event.n))

    new = rx.App("s", [flow, more])
    begun, going_on = threading.Event(), threading.Event()
    going_on.set()
    commit = SqlStore.commit

    def held(store, batch):
        begun.set()
        assert going_on.wait(30)
        commit(store, batch)

    async with deployed(url(tmp_path), old) as engine:
        assert await engine.publish(Go("a", 9)) == ["s/flow@1/a"]
        deploys = [engine.library.deploy_of(one, validation="strict").to_value() for one in engine.load(new)]
        asked = {"app": "s", "manifest": new.digest, "proposal": None, "deploys": deploys}
        monkeypatch.setattr(SqlStore, "commit", held)
        begun.clear()
        going_on.clear()
        # As a guest asks for it: nobody here is told how it ends.
        applying = asyncio.create_task(engine.operate("apply", asked, home="s"))
        assert await asyncio.to_thread(begun.wait, 30)
        assert (await engine.applications.active("s")).digest == old.digest, "it is not applied yet"
        going_on.set()
        await applying
        assert sorted(await engine.publish(Go("b", 9))) == ["s/flow@1/b", "s/more@1/b"]
