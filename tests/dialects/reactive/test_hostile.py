"""Ordinary mistakes of authors, and ordinary code in an unlucky place: each costs its own step at most."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.errors import DecisionRefused, DefinitionError, TreadleError


@rx.schema("h/Go@1")
@dataclass(frozen=True)
class Go:
    k: str
    words: dict[str, int] = field(default_factory=dict)


@rx.schema("h/Out@1")
@dataclass(frozen=True)
class Out:
    n: int


@rx.schema("h/Box@1")
@dataclass
class Box:
    words: dict[str, int] = field(default_factory=dict)
    note: str = ""


work = rx.effect("h/work@1", params=Out, receipt=Box)
AUTHORS_ORDER = {"zz": 1, "y": 2, "a": 3}


def app_of(step: Any, **more: Any) -> tuple[rx.App, rx.Workflow]:
    given = {"state": Box, "events": [Go], "key": "k", "effects": [work, rx.timer], **more}
    flow = rx.workflow("h/flow@1", **given)(step)
    return rx.App("h", [flow]), flow


def url(path: Any) -> str:
    return f"sqlite:///{path}/t.db"


async def until(engine: Engine, question: Any) -> Any:
    async with asyncio.timeout(20):
        with engine.watch("") as watch:
            while not (found := await question()):
                await watch.changed(poll_s=0.02)
    return found


async def settled(engine: Engine, flow: Any, key: str) -> dict[str, Any]:
    """The cell's document, once it has something to say."""

    async def ask() -> Any:
        cell = await engine.cell(flow, key)
        shown = await cell.show() if cell is not None else None
        return shown if shown and shown["status"] != "waiting" else None

    return await until(engine, ask)


@pytest.mark.parametrize("where", ["event", "receipt", "state"])
def test_maps_reach_a_step_in_the_order_of_their_replay(where):
    def step(state, event, ctx):
        if isinstance(event, rx.Receipt):
            return rx.Output(Box({}, ",".join(event.value.words)))
        if where == "receipt":
            return rx.Output(Box(), effects=[work(Out(1))])
        if where == "event":
            return rx.Output(Box({}, ",".join(event.words)))
        return rx.Output(Box(dict(event.words), ",".join(state.words) if state else ""))

    app, flow = app_of(step)
    world = rx.testing.World(app)
    world.send(Go("a", AUTHORS_ORDER))
    if where == "receipt":
        world.ok(world.open()[0], Box(AUTHORS_ORDER))
    if where == "state":
        world.send(Go("a", AUTHORS_ORDER))
    assert world.state(flow, "a").note == "a,y,zz"
    world.assert_replays()


@pytest.mark.house
@pytest.mark.parametrize("ends", [asyncio.CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt])
async def test_whatever_a_step_ends_with_is_its_own_failure(tmp_path, ends):
    @work.executor
    async def do(call):
        return Box()

    def step(state, event, ctx):
        if isinstance(event, rx.Receipt) or event.k == "at once":
            raise ends("boom")
        return rx.Output(Box(), effects=[work(Out(1))] if event.k == "later" else [])

    app, flow = app_of(step)
    engine = Engine(url(tmp_path))
    engine.deploy(app)
    async with engine:
        with pytest.raises(TreadleError) as refused:
            await engine.publish(Go("at once"))
        assert refused.value.code == "STEP_FAILED"
        await engine.publish(Go("later"))
        shown = await settled(engine, flow, "later")
        assert (shown["status"], shown["error"]["code"]) == ("failed", "STEP_FAILED")
        assert (await engine.replay(shown["id"]))["equal"]
        assert await engine.publish(Go("other")) == ["h/flow@1/other"]


def test_terminal_and_constructors_fail_like_steps():
    @rx.schema("h/Picky@1")
    @dataclass(frozen=True)
    class Picky:
        k: str

        def __post_init__(self) -> None:
            if self.k == "no":
                raise SystemExit("not this one")

    def never(state):
        raise SystemExit("never")

    app, _ = app_of(lambda state, event: rx.Output(Box()), events=[Picky], terminal=never)
    world = rx.testing.World(app)
    for key in ("no", "yes"):
        with pytest.raises(TreadleError) as refused:
            world.send("h/Picky@1", {"k": key})
        assert refused.value.code == "STEP_FAILED"


@pytest.mark.house
async def test_what_a_step_changes_of_its_event_is_not_in_the_record(tmp_path):
    @work.executor
    async def do(call):
        await call.progress("part", {"list": [1], "b": 1, "a": 2})
        raise TreadleError("bad", details={"x": {"y": 1}})

    def step(state, event, ctx):
        if isinstance(event, Go):
            return rx.Output(Box(), effects=[work(Out(1))])
        if isinstance(event, rx.Frame):
            event.value["list"].append(2)
            return rx.Output(Box(note=",".join(event.value)))
        event.error["details"]["x"]["y"] += 1
        return rx.Output(Box({"y": event.error["details"]["x"]["y"]}, state.note))

    app, flow = app_of(step, frames=True)
    engine = Engine(url(tmp_path))
    engine.deploy(app)
    async with engine:
        await engine.publish(Go("a"))
        shown = await settled(engine, flow, "a")
        assert shown["state"] == {"words": {"y": 2}, "note": "a,b,list"}
        assert (await engine.replay(shown["id"]))["equal"]
        journal = await (await engine.cell(flow, "a")).journal()
        assert journal[1]["event"]["value"] == {"list": [1], "b": 1, "a": 2}
        assert journal[2]["event"]["error"]["details"] == {"x": {"y": 1}}


def test_annotations_do_not_count_as_events():
    def step(state, event, ctx):
        return rx.Output(Box(), events=[Out(n) for n in range(int(event.k))], annotations={"a": 1})

    app, _ = app_of(step)
    world = rx.testing.World(app)
    world.send(Go("256"))
    world.assert_replays()
    with pytest.raises(TreadleError, match="257 events"):
        world.send(Go("257"))


@rx.schema("h/Token@1")
@dataclass(frozen=True)
class Token:
    token: rx.Secret


@rx.schema("h/Basic@1")
@dataclass(frozen=True)
class Basic:
    user: str
    password: rx.Secret


@rx.schema("h/Login@1")
@dataclass(frozen=True)
class Login:
    auth: Token | Basic
    others: list[Token | Basic]


async def test_secrets_inside_a_union_are_revealed_to_executors():
    login = rx.effect("h/login@1", params=Login, receipt=Box)
    seen: list[Any] = []

    @login.executor
    async def do(call):
        seen.append(call.params)
        return Box()

    def step(state, event, ctx):
        if isinstance(event, rx.Receipt):
            return rx.Output(Box(note="done"))
        secret = rx.secret("api")
        return rx.Output(Box(), effects=[login(Login(Token(secret), [Basic("ann", secret)]))])

    app, flow = app_of(step, effects=[login])
    engine = Engine("memory:", secrets={"api": "hunter2hunter2"})
    engine.deploy(app)
    async with engine:
        await engine.publish(Go("a"))
        await settled(engine, flow, "a")
    assert seen == [Login(Token("hunter2hunter2"), [Basic("ann", "hunter2hunter2")])]


def test_a_key_cannot_be_absent():
    @rx.schema("h/Loose@1")
    @dataclass(frozen=True)
    class Loose:
        k: str | None

    with pytest.raises(DefinitionError) as refused:
        app_of(lambda state, event: rx.Output(Box()), events=[Loose])
    assert refused.value.code == "KEY_FIELD"


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (lambda: rx.Output(Box(), effects=[work(Out(1), idempotency_key=7)]), "idempotency_key is text"),
        (lambda: rx.Output(Box(), effects=[work(Out(1), ref=7)]), "ref is text"),
        (lambda: rx.Output(Box(), effects=[rx.timer(True)]), "a timer takes"),
        (lambda: rx.Output(Box(), effects=[rx.timer(-5)]), "a timer takes"),
        (lambda: rx.Output(Box(), effects=[rx.timer(1.5)]), "a timer takes"),
        (lambda: rx.Output(Box(), effects=[rx.emit("sys/timer.set@1", {})]), "a timer takes"),
        (lambda: rx.Output(Box(), effects=None), "effects is a list, not NoneType"),
        (lambda: rx.Output(Box(), events=(e for e in ())), "events is a list, not generator"),
    ],
)
def test_a_wrong_output_is_refused_by_name(output, says):
    app, flow = app_of(lambda state, event: output())
    world = rx.testing.World(app)
    with pytest.raises(DecisionRefused, match=says):
        world.send(Go("a"))
    assert world.state(flow, "a") is None


CHUNK = {"seq": 99, "at": "yesterday", "record": -5, "type": "pdf"}


@pytest.mark.parametrize("frames", [False, True])
async def test_progress_carries_any_value_and_keeps_its_number(frames):
    @work.executor
    async def do(call):
        await call.progress("chunk", CHUNK)
        await call.progress("count", 5)
        await call.progress("second", a=1)
        return Box()

    def step(state, event, ctx):
        if isinstance(event, Go):
            return rx.Output(Box(), effects=[work(Out(1))])
        if isinstance(event, rx.Frame):
            return rx.Output(Box(note=f"{state.note}{event.kind}={event.value!r};"))
        return rx.Output(Box({"done": 1}, state.note))

    app, flow = app_of(step, frames=frames)
    engine = Engine("memory:")
    engine.deploy(app)
    seen: list[Any] = []
    engine.observe(seen.append)
    async with engine:
        await engine.publish(Go("a"))
        shown = await settled(engine, flow, "a")
        everything = await engine.events_after(shown["id"], 0)
    told = [event for event in seen if event["type"] in ("chunk", "count", "second")]
    assert shown["state"]["words"] == {"done": 1}, shown
    if frames:
        canonical = dict(sorted(CHUNK.items(), key=lambda item: (len(item[0]), item[0])))
        assert shown["state"]["note"] == f"chunk={canonical!r};count=5;second={{'a': 1}};"
        return
    assert [event["seq"] for event in everything] == [1, 2, 3, 4, 5, 6]
    events = everything[2:5]
    assert [event["seq"] for event in told] == [3, 4, 5]
    assert [event["type"] for event in events] == ["chunk", "count", "second"]
    assert [events[0]["value"], events[1]["value"], events[2]["a"]] == [CHUNK, 5, 1]


def test_a_frame_is_the_same_value_in_a_world():
    def step(state, event, ctx):
        if isinstance(event, rx.Frame):
            return rx.Output(Box(note=repr(event.value)))
        return rx.Output(Box(), effects=[work(Out(1))])

    app, flow = app_of(step, frames=True)
    world = rx.testing.World(app)
    world.send(Go("a"))
    world.frame(world.open()[0], "count", 5)
    assert world.state(flow, "a").note == "5"


@rx.schema("h/Big@1")
@dataclass(frozen=True)
class Big:
    k: str
    body: bytes


def fan_out(count: int) -> tuple[rx.App, list[rx.Workflow]]:
    def listener(number: int) -> rx.Workflow:
        given: dict[str, Any] = {"state": Box, "events": [Big], "key": "k", "effects": []}
        return rx.workflow(f"h/l{number}@1", **given)(
            lambda state, event: rx.Output(Box({"bytes": len(event.body)}))
        )

    @rx.workflow("h/source@1", state=Box, events=[Go], key="k", effects=[])
    def source(state, event, ctx):
        return rx.Output(Box(), events=[Out(1), Big("x", b"z" * 1_000_000)])

    listeners = [listener(number) for number in range(count)]
    return rx.App("h", [source, *listeners]), listeners


@pytest.mark.house
async def test_a_large_event_reaches_all_who_subscribe(tmp_path):
    app, listeners = fan_out(20)
    world = rx.testing.World(app)
    world.send(Go("a"))
    assert {world.state(one, "x").words["bytes"] for one in listeners} == {1_000_000}
    world.assert_replays()
    engine = Engine(url(tmp_path))
    engine.deploy(app)
    async with engine:
        await engine.publish(Go("a"))
        for one in (listeners[0], listeners[-1]):
            shown = await settled(engine, one, "x")
            assert shown["state"]["words"] == {"bytes": 1_000_000}
        assert (await engine.replay("h/source@1/a"))["equal"]


SETS = """
from dataclasses import dataclass
from treadle import reactive as rx

@rx.schema("z/Tags@1")
@dataclass(frozen=True)
class Tags:
    k: str
    tags: frozenset[str]
    more: set[tuple[str, ...]]

@rx.schema("z/Seen@1")
@dataclass(frozen=True)
class Seen:
    tags: set[str]
    note: str = ""

@rx.workflow("z/flow@1", state=Seen, events=[Tags], key="k", effects=[])
def flow(seen, event, ctx):
    first = seen.tags.pop() if seen else ""
    words = [*event.tags, *event.tags.union({"m"}), *(event.tags | {"m"}), *map(repr, event.more), repr(event.tags), first]
    return rx.Output(Seen(set(event.tags), " ".join(words)))

world = rx.testing.World(rx.App("z", [flow]))
for _ in range(2):
    world.send(Tags("a", frozenset("xyzuvw"), {("b", "c"), ("a",), ("c", "d", "e")}))
world.assert_replays()
print(world.state(flow, "a").note)
"""


def test_sets_are_walked_over_in_one_order_in_every_process(tmp_path):
    file = tmp_path / "sets.py"
    file.write_text(SETS, "utf-8")
    notes = {
        subprocess.run(
            [sys.executable, str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert notes == {
        "u v w x y z m u v w x y z m u v w x y z ('a',) ('b', 'c') ('c', 'd', 'e') frozenset({'u', 'v', 'w', 'x', 'y', 'z'}) u\n"
    }
