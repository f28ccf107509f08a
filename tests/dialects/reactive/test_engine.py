"""The same application on the real engine: store, core, worker (seed §4, §7; design §7.6, §7.7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from reactive_shop import (
    Booked,
    ChargeReceipt,
    MailParams,
    Note,
    Order,
    OrderCancelled,
    OrderCreated,
    OrderSettled,
    app,
    charge,
    ledger,
    mail,
    notes,
    order,
)
from tests.backdoor import change

from treadle import Engine
from treadle import reactive as rx
from treadle.apps import cells
from treadle.apps.snapshots import StoreBlobs
from treadle.dialects.reactive.index import CellIndex
from treadle.kernel.errors import BlobMissing, InputInvalid, TreadleError
from treadle.kernel.values import decode, encode
from treadle.testing import assert_replays

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house


@pytest.fixture(autouse=True)
def _executors():
    """Executors live on the effects, which the tests of this folder share."""
    before = charge.run, mail.run

    @charge.executor
    async def do_charge(call: rx.Call[Any]) -> ChargeReceipt:
        await call.progress("authorised", percent=50)
        return ChargeReceipt(f"p-{call.params.order_id}")

    @mail.executor
    async def send(call: rx.Call[MailParams]) -> None:
        return None

    yield
    charge.run, mail.run = before


def url(path: Path) -> str:
    return f"sqlite:///{path}/t.db"


async def until(engine: Engine, question: Any) -> Any:
    """Waits until a question has an answer."""
    async with asyncio.timeout(20):
        with engine.watch("") as watch:
            while not (found := await question()):
                await watch.changed(poll_s=0.02)
    return found


def status_is(engine: Engine, workflow: Any, key: Any, *wanted: str) -> Any:
    async def ask() -> Any:
        cell = await engine.cell(workflow, key)
        return cell is not None and (await cell.show())["status"] in wanted

    return ask


async def test_choreography_runs_to_its_end_and_replays(tmp_path):
    engine = Engine(url(tmp_path))
    engine.deploy(app())
    async with engine:
        assert await engine.publish(OrderCreated("o-1", 500)) == ["com.acme/order@1/o-1"]
        assert await engine.publish("com.acme/OrderCreated@1", {"order_id": "o-2", "amount_cents": 7})
        for key in ("o-1", "o-2"):
            await until(engine, status_is(engine, notes, key, "completed"))
        books = await engine.cell(ledger)
        assert (await books.show())["state"]["total_cents"] == 507
        cell = await engine.cell(order, "o-1")
        assert cell.id == "com.acme/order@1/o-1"
        shown = await cell.show()
        assert (shown["status"], shown["key"], shown["state"]["pc"]) == ("completed", "o-1", "done")
        journal = await cell.journal()
        assert [r["kind"] for r in journal] == ["started", "receipt"]
        assert journal[1]["event"]["by"].endswith("do_charge")
        told = [e["type"] async for e in cell.events(follow=False)]
        assert told == ["received", "effect", "authorised", "receipt", "event"]
        for row in await engine.list(limit=100):
            assert (await engine.replay(row["id"]))["equal"], row["id"]
        assert [c["key"] for c in await engine.cells(order)] == ["o-1", "o-2"]
        assert await engine.cell(order, "nope") is None


async def test_a_refusal_is_raised_by_publish_and_leaves_no_trace(tmp_path):
    @rx.workflow("t/no@1", state=Note, events=[Booked], key="order_id", effects=[])
    def no(state, event, ctx):
        raise ValueError("not today")

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [no]))
    async with engine:
        for _ in range(2):
            with pytest.raises(TreadleError, match="not today"):
                await engine.publish(Booked("a"), submission_id="s")
        assert await engine.cell(no, "a") is None
        assert [row["id"] for row in await engine.list()] == ["x"]
        with pytest.raises(InputInvalid):
            await engine.publish("com.acme/Booked@1", {"order_id": 1})
        with pytest.raises(InputInvalid):
            await engine.publish("com.acme/Nobody@1", {})


@pytest.mark.at_home("writes into the file what another member would have committed")
async def test_who_publishes_what_another_member_is_just_answering_gets_its_answer(tmp_path, monkeypatch):
    @rx.workflow("t/one@1", state=Note, events=[Booked], key="order_id", effects=[])
    def one(state, event, ctx):
        return rx.Output(state)

    @rx.workflow("t/two@1", state=Note, events=[Booked], key="order_id", effects=[])
    def two(state, event, ctx):
        return rx.Output(state)

    publish = cells.publish

    def publish_too_late(desk, app, asked):
        found = publish(desk, app, asked)
        monkeypatch.undo()
        with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as rival, rival:
            answer = encode({"runs": ["t/one@1/a", "t/two@1/a"]})
            rival.execute("INSERT INTO submissions VALUES ('app:x', 's', 0, ?)", (answer,))
        return found

    monkeypatch.setattr(cells, "publish", publish_too_late)
    engine = Engine(url(tmp_path))
    engine.deploy(rx.App("x", [one, two]))
    async with engine:
        assert await engine.publish(Booked("a"), submission_id="s") == ["t/one@1/a", "t/two@1/a"]
        assert await engine.cell(one, "a") is None, "nothing was decided here: that is the rival's"


async def test_submissions_are_taken_once_also_after_a_restart(tmp_path):
    for _ in range(2):
        engine = Engine(url(tmp_path), work=False)
        engine.deploy(app())
        async with engine:
            for _ in range(2):
                runs = await engine.publish(OrderCreated("o-1", 5), submission_id="s1")
                assert runs == ["com.acme/order@1/o-1"]
            await engine.publish(OrderCreated("other", 5), submission_id="s1")
            assert [row["id"] for row in await engine.list()] == ["com.acme/order@1/o-1", "shop"]
            assert len(await (await engine.cell(order, "o-1")).journal()) == 1


async def test_fan_out_is_accepted_as_one_and_each_delivery_stands_alone(tmp_path):
    def hearer(name: str, fails: bool) -> rx.Workflow:
        @rx.workflow(name, state=Note, events=[Booked], key="order_id", effects=[])
        def hear(state, event, ctx):
            if fails:
                raise ValueError("deaf")
            return rx.Output(Note(event.order_id))

        return hear

    one, two, three = hearer("t/one@1", False), hearer("t/two@1", True), hearer("t/three@1", False)
    engine = Engine("memory:")
    engine.deploy(rx.App("x", [one, two, three]))
    async with engine:
        for _ in range(2):
            with pytest.raises(TreadleError, match="deaf"):
                await engine.publish(Booked("a"), submission_id="s")
        assert await engine.cell(one, "a") is not None
        assert await engine.cell(two, "a") is None
        assert len(await (await engine.cell(three, "a")).journal()) == 1


@pytest.mark.at_home("there nobody is a guest")
@pytest.mark.parametrize("submission", ["s", None])
async def test_fan_out_by_a_guest_is_one_operation_with_one_answer(tmp_path, submission):
    taken: list[str] = []

    def hearer(name: str) -> rx.Workflow:
        @rx.workflow(name, state=Note, events=[Booked], key="order_id", effects=[])
        def hear(state, event, ctx):
            if event.order_id == "deaf" and name == "t/two@1":
                raise ValueError("deaf")
            return rx.Output(Note(event.order_id))

        return hear

    app = rx.App("x", [hearer("t/one@1"), hearer("t/two@1")])
    owner = Engine(url(tmp_path))
    owner.deploy(app)
    async with owner:
        guest = Engine(url(tmp_path))
        guest.load(app)
        async with guest:
            assert (owner.owns, guest.owns) == (True, False)
            perform = owner.applications.perform
            owner.applications.perform = lambda desk, asked: taken.append(asked.name) or perform(desk, asked)
            for engine in (guest, owner):
                assert await engine.publish(Booked("a"), submission_id=submission) == [
                    "t/one@1/a",
                    "t/two@1/a",
                ]
            with pytest.raises(TreadleError, match="deaf") as refused:
                await guest.publish(Booked("deaf"), submission_id=submission and "other")
            assert [told["error"] is None for told in refused.value.details["deliveries"]] == [True, False]
            assert taken.count("publish") == 3
            records = await (await guest.cell("t/one@1", "a")).journal()
            assert len(records) == (1 if submission else 2)
            assert await guest.read(lambda reads: reads.inbox(9)) == []


async def test_an_event_nobody_takes_is_in_the_applications_own_run():
    engine = Engine("memory:")
    engine.deploy(rx.App("x", [notes], subscriptions=[]))
    async with engine:
        assert await engine.publish(Booked("a")) == []
        run = await engine.run("x")
        assert (await run.journal())[-1]["event"]["schema"] == "com.acme/Booked@1"
        await engine.apply(rx.App("x", [notes, ledger], subscriptions=[]))
        assert await engine.publish(Booked("b")) == []
        assert (await run.journal())[-1]["event"]["value"] == {"order_id": "b"}
        assert (await engine.replay("x"))["equal"]


async def test_what_executors_raise_becomes_receipts(tmp_path):
    ways = iter([RuntimeError("no route"), TimeoutError(), {"payment_id": 5}, ChargeReceipt("p")])

    @charge.executor
    async def do_charge(call: rx.Call[Any]) -> Any:
        way = next(ways)
        if isinstance(way, Exception):
            raise way
        return way

    seen: dict[int, Any] = {}

    @rx.workflow("t/pay@1", state=Order, events=[OrderCreated], key="order_id", effects=[charge])
    def pay(state, event, ctx):
        state = state or Order(event.order_id, 0, attempt=0)
        seen[state.attempt] = event
        if state.attempt == 4:
            return rx.Output(state)
        again = charge({"order_id": "x", "amount_cents": 1}, ref=str(state.attempt))
        return rx.Output(replace(state, attempt=state.attempt + 1), effects=[again])

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [pay]))
    async with engine:
        await engine.publish(OrderCreated("a", 1))
        await until(engine, status_is(engine, pay, "a", "running"))
        assert (await engine.replay("t/pay@1/a"))["equal"]
    error, timeout, rejected, ok = (seen[n] for n in (1, 2, 3, 4))
    assert (error.status, error.error["class"], error.error["message"]) == (
        "error",
        "transport",
        "RuntimeError: no route",
    )
    assert (timeout.status, timeout.error["class"]) == ("timeout", "timeout")
    assert isinstance(rejected, rx.Rejected)
    assert rejected.code == "receipt.invalid_payload"
    assert ok.value == ChargeReceipt("p")


@pytest.mark.parametrize("fits", [True, False])
async def test_large_events_and_receipts_travel_by_reference(fits):
    big = "x" * 100_000
    grow = rx.effect("t/grow@1", params=str, receipt=str)

    @grow.executor
    async def do_grow(call: rx.Call[str]) -> Any:
        return big if fits else [big]

    seen: dict[int, Any] = {}

    @rx.workflow("t/big@1", state=Note, events=[Booked], effects=[grow], terminal=lambda n: n.sent)
    def large(state, event, ctx):
        seen[ctx.seq] = event
        if isinstance(event, Booked):
            return rx.Output(Note("a"), effects=[grow("small", ref="g")])
        return rx.Output(Note("a", True))

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [large]))
    async with engine:
        await engine.publish(Booked(big))
        await until(engine, status_is(engine, large, None, "completed"))
        journal = await (await engine.cell(large)).journal()
        assert journal[0]["event"]["input"]["value"]["size"] > 100_000, "a reference"
        assert (await engine.replay("t/big@1"))["equal"]
    assert seen[1] == Booked(big)
    if fits:
        assert seen[2].value == big
    else:
        assert isinstance(seen[2], rx.Rejected)
        assert seen[2].payload_size > 100_000


async def test_a_crash_between_the_step_and_the_work_repeats_the_work_not_the_step(tmp_path):
    engine = Engine(url(tmp_path), work=False)
    engine.deploy(app())
    async with engine:
        await engine.publish(OrderCreated("o-1", 5))
    engine = Engine(url(tmp_path))
    engine.deploy(app())
    async with engine:
        await until(engine, status_is(engine, notes, "o-1", "completed"))
        assert len(await (await engine.cell(order, "o-1")).journal()) == 2


async def test_a_failed_receiver_of_a_derived_event_does_not_undo_the_emitter():
    @rx.workflow("t/bad@1", state=Note, events=[Booked], key="order_id", effects=[])
    def bad(state, event, ctx):
        raise ValueError("cannot")

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [ledger, bad]))
    async with engine:
        await engine.publish(OrderSettled("a", 5))
        await until(engine, status_is(engine, bad, "a", "failed"))
        assert (await (await engine.cell(ledger)).show())["state"]["total_cents"] == 5
        assert (await engine.replay("t/bad@1/a"))["equal"]
        with pytest.raises(TreadleError, match="has failed"):
            await engine.publish(Booked("a"))
        await engine.reset("t/bad@1/a")
        with pytest.raises(TreadleError, match="cannot"):
            await engine.publish(Booked("a"))


async def test_secrets_reach_the_executor_and_nothing_else(tmp_path):
    got: list[Any] = []

    @rx.schema("t/Login@1")
    @dataclass(frozen=True)
    class Login:
        password: rx.Secret

    login = rx.effect("t/login@1", params=Login, receipt=str)

    @login.executor
    async def do_login(call: rx.Call[Login]) -> str:
        got.append(call.params.password)
        return f"logged in with {call.params.password}"

    @rx.workflow("t/auth@1", state=Note, events=[Booked], key="order_id", effects=[login])
    def auth(state, event, ctx):
        if isinstance(event, Booked):
            return rx.Output(Note(event.order_id), effects=[login(Login(rx.secret("db")))])
        return rx.Output(Note(event.value, True))

    engine = Engine(url(tmp_path), secrets={"db": "hunter2hunter2"})
    engine.deploy(rx.App("x", [auth]))
    async with engine:
        await engine.publish(Booked("a"))
        await until(engine, status_is(engine, auth, "a", "running"))
        state = (await (await engine.cell(auth, "a")).show())["state"]
    assert got == ["hunter2hunter2"]
    assert state["order_id"] == "logged in with [redacted:db]"
    assert b"hunter2" not in b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())


async def test_frames_are_delivered_where_they_are_wanted():
    @charge.executor
    async def do_charge(call: rx.Call[Any]) -> ChargeReceipt:
        await call.progress("half", percent=50)
        await call.progress("most", percent=90)
        return ChargeReceipt("p")

    seen: list[Any] = []

    @rx.workflow("t/watch@1", state=Note, events=[Booked], key="order_id", effects=[charge], frames=True)
    def watch(state, event, ctx):
        seen.append(event)
        if isinstance(event, Booked):
            return rx.Output(Note("a"), effects=[charge({"order_id": "x", "amount_cents": 1}, ref="c")])
        return rx.Output(Note("a", isinstance(event, rx.Receipt)))

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [watch]))
    async with engine:
        await engine.publish(Booked("a"))
        await until(engine, status_is(engine, watch, "a", "running"))
        assert (await engine.replay("t/watch@1/a"))["equal"]
    frames = dict.fromkeys(
        (f.ref, f.seq, f.kind, f.value["percent"]) for f in seen if isinstance(f, rx.Frame)
    )
    assert list(frames) == [("c", 1, "half", 50), ("c", 2, "most", 90)]


async def test_fifty_cells_with_equal_params_get_their_own_answers():
    same = rx.effect("t/same@1", params=str, receipt=int)
    waiting: list[tuple[int, asyncio.Future[int]]] = []

    @same.executor
    async def answer(call: rx.Call[str]) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append((call.key, future))
        return await future

    @rx.schema("t/Begin@1")
    @dataclass(frozen=True)
    class Begin:
        k: int

    @rx.schema("t/Got@1")
    @dataclass(frozen=True)
    class Got:
        answer: int | None = None

    @rx.workflow(
        "t/many@1",
        state=Got,
        events=[Begin],
        key="k",
        effects=[same],
        terminal=lambda s: s.answer is not None,
    )
    def many(state, event, ctx):
        if isinstance(event, Begin):
            return rx.Output(Got(), effects=[same("equal", ref="r")])
        return rx.Output(Got(event.value))

    engine = Engine("memory:")
    engine.deploy(rx.App("x", [many]))
    async with engine:
        await asyncio.gather(*(engine.publish(Begin(k)) for k in range(50)))
        await until(engine, lambda: asyncio.sleep(0, len(waiting) == 50))
        random.Random(5).shuffle(waiting)
        for key, future in waiting:
            future.set_result(key * 7)
        for k in range(50):
            await until(engine, status_is(engine, many, k, "completed"))
            assert (await (await engine.cell(many, k)).show())["state"] == {"answer": k * 7}


@pytest.mark.at_home("looks into the file from beside")
async def test_no_executor_sees_an_effect_before_its_step_is_durable(tmp_path):
    seen: list[int] = []

    @charge.executor
    async def do_charge(call: rx.Call[Any]) -> ChargeReceipt:
        other = sqlite3.connect(f"file:{tmp_path}/t.db?mode=ro", uri=True)
        (count,) = other.execute(
            "SELECT count(*) FROM runs WHERE id = ?", (f"{call.workflow}/{call.key}",)
        ).fetchone()
        other.close()
        seen.append(count)
        return ChargeReceipt("p")

    engine = Engine(url(tmp_path))
    engine.deploy(only_orders())
    async with engine:
        await asyncio.gather(*(engine.publish(OrderCreated(f"o-{n}", 1)) for n in range(20)))
        for n in range(20):
            await until(engine, status_is(engine, order, f"o-{n}", "completed"))
    assert seen == [1] * 20


async def test_tools_and_blobs_are_effects_too(tmp_path):
    shout = rx.tool("shout")

    @rx.schema("t/Kept@1")
    @dataclass(frozen=True)
    class Kept:
        text: str
        blob: str | None = None

    @rx.workflow(
        "t/tools@1",
        state=Kept,
        events=[Booked],
        key="order_id",
        effects=[shout, rx.blob_put, rx.blob_get],
        terminal=lambda kept: kept.text.endswith("!!"),
    )
    def tools(state, event, ctx):
        match event:
            case Booked(text):
                return rx.Output(Kept(text), effects=[shout({"text": text}, ref="shout")])
            case rx.Receipt(ref="shout", status="ok", value=text):
                return rx.Output(Kept(text), effects=[rx.blob_put(text.encode(), ref="put")])
            case rx.Receipt(ref="put", status="ok", value=stored):
                return rx.Output(Kept(state.text, stored.blob_ref), effects=[rx.blob_get(stored, ref="get")])
            case rx.Receipt(ref="get", status="ok", value=data):
                return rx.Output(Kept(data.decode() + "!", state.blob))
            case rx.Receipt():
                return rx.Output(Kept(f"{event.status} {event.error}"))

    engine = Engine(url(tmp_path))

    @engine.tool("shout")
    def do_shout(text: str) -> str:
        return text.upper() + "!"

    engine.deploy(rx.App("x", [tools]))
    async with engine:
        await engine.publish(Booked("hi"))
        await until(engine, status_is(engine, tools, "hi", "completed", "running"))
        state = (await (await engine.cell(tools, "hi")).show())["state"]
        assert state["text"] == "HI!!"
        assert state["blob"].startswith("sha256:")
        assert (await engine.replay("t/tools@1/hi"))["equal"]


@pytest.mark.at_home("there nobody is a guest, and the cells go on between the two snapshots")
async def test_a_guest_publishes_through_the_owner(tmp_path):
    owner = Engine(url(tmp_path), work=False)
    owner.deploy(app())
    async with owner:
        guest = Engine(url(tmp_path))
        guest.load(app())
        async with guest:
            assert (owner.owns, guest.owns) == (True, False)
            for _ in range(2):
                runs = await guest.publish(OrderCreated("o-1", 5), submission_id="s1")
                assert runs == ["com.acme/order@1/o-1"]
            records = await (await guest.cell(order, "o-1")).journal()
            assert [record["kind"] for record in records if record["kind"] != "receipt"] == ["started"]
            with pytest.raises(InputInvalid):
                await guest.publish("com.acme/OrderCreated@1", {})
            assert (await guest.snapshot())["shop"]["roots"] == (await owner.snapshot())["shop"]["roots"]


async def test_a_refusal_says_who_took_the_event_to_owner_and_guest_alike(tmp_path, in_house):
    """REACTIVE.md §8.6: the real answer, per cell where some took it, and the same again for the same id."""

    def flow(name: str, takes: bool) -> rx.Workflow:
        def step(state, event):
            if not takes:
                raise ValueError("not today")
            return rx.Output(event)

        return rx.workflow(name, state=Booked, events=[Booked], key="order_id", effects=[])(step)

    def fan() -> rx.App:
        return rx.App("fan", [flow("t/no@1", False), flow("t/yes@1", True)])

    expected = [("t/no@1/a", "STEP_FAILED"), ("t/yes@1/a", None)]
    told: list[Any] = []
    async with Engine(url(tmp_path)) as owner, Engine(url(tmp_path)) as guest:
        await asyncio.to_thread(owner.deploy, fan())
        guest.load(fan())
        assert in_house or (owner.owns, guest.owns) == (True, False)
        for engine, submission in ((owner, "s1"), (owner, "s1"), (guest, "s1"), (guest, "s2"), (guest, "s2")):
            with pytest.raises(TreadleError, match="not today") as caught:
                await engine.publish(Booked("a"), submission_id=submission)
            deliveries = caught.value.details["deliveries"]
            assert [(d["run"], d["error"] and d["error"]["code"]) for d in deliveries] == expected
            told.append((caught.value.code, caught.value.message))
        assert len({*told}) == 1
        assert await guest.cell("t/no@1", "a") is None
        yes = await guest.cell("t/yes@1", "a")
        assert len(await yes.journal()) == 2, "once for each submission"
        await assert_replays(owner)


# --- versions --------------------------------------------------------------------------------------------


@rx.workflow(
    "com.acme/order@1",
    state=Order,
    events=[OrderCreated, OrderCancelled],
    key="order_id",
    effects=[],
    terminal=lambda o: True,
)
def order_v2(o, event, ctx):
    if o is None and isinstance(event, OrderCreated):
        return rx.Output(Order(event.order_id, event.amount_cents, "done"))
    return rx.Output(None if isinstance(event, OrderCancelled) else o)


def only_orders() -> rx.App:
    return rx.App("shop", [order])


def orders_v2() -> rx.App:
    return rx.App("shop", [order_v2])


async def test_apply_is_refused_until_all_is_quiet_and_then_moves_the_cells(tmp_path):
    engine = Engine(url(tmp_path), work=False)
    engine.deploy(only_orders())
    async with engine:
        await engine.publish(OrderCreated("a", 1))
        with pytest.raises(TreadleError) as caught:
            await engine.apply(orders_v2())
        (blocker,) = caught.value.details["blockers"]
        assert (blocker["run"], blocker["status"]) == ("com.acme/order@1/a", "waiting")
        assert len(blocker["intents"]) == 1
        report = await engine.shadow(orders_v2())
        assert report["effects"] == []
        assert [c["after"]["pc"] for c in report["changes"]] == [{"$tag": "done"}]
        await engine.publish(OrderCreated("b", 1))
        assert len(await engine.list()) == 3, "the old code still runs"
    engine = Engine(url(tmp_path))
    engine.deploy(only_orders())
    async with engine:
        assert (await engine.apply(orders_v2(), wait=True))["manifest"] == orders_v2().digest
        await engine.publish(OrderCreated("a", 1))
        kinds = [r["kind"] for r in await (await engine.cell(order_v2, "a")).journal()]
        assert kinds == ["started", "receipt", "apply", "event"]
        assert (await engine.replay("com.acme/order@1/a"))["equal"]
    engine = Engine(url(tmp_path))
    engine.deploy(orders_v2())
    async with engine:
        for key in ("a", "b"):
            assert (await (await engine.cell(order_v2, key)).show())["status"] == "completed"
        await engine.publish(OrderCreated("b", 1))
        with pytest.raises(TreadleError) as caught:
            await engine.replay("com.acme/order@1/a")
        assert caught.value.code == "CODE_MISSING"


async def test_other_code_than_the_active_one_must_be_applied_first(tmp_path):
    engine = Engine(url(tmp_path), work=False)
    engine.deploy(only_orders())
    async with engine:
        await engine.publish(OrderCreated("a", 1))
    engine = Engine(url(tmp_path), work=False)
    engine.deploy(orders_v2())
    async with engine:
        with pytest.raises(TreadleError, match="apply it first"):
            await engine.publish(OrderCreated("b", 1))


async def test_new_code_is_applied_by_a_process_that_never_had_the_old(tmp_path):
    engine = Engine(url(tmp_path))
    engine.deploy(only_orders())
    async with engine:
        for n in range(3):
            await engine.publish(OrderCreated(f"o-{n}", n))
            await until(engine, status_is(engine, order, f"o-{n}", "completed"))
            await engine.publish(OrderCreated(f"o-{n}", n))
    engine = Engine(url(tmp_path))
    async with engine:
        await engine.apply(orders_v2())
        await engine.publish(OrderCreated("o-1", 1))
        assert [c["key"] for c in await engine.cells(order_v2)] == ["o-0", "o-1", "o-2"]
        snapshots = await engine.read(lambda reads: reads.snapshot_seqs(reads.run("com.acme/order@1/o-1").no))
        assert snapshots == [5], "a resting cell keeps its last snapshot only"


async def test_what_blocks_is_found_without_the_code_it_runs_under(tmp_path):
    engine = Engine(url(tmp_path))
    engine.deploy(app())
    async with engine:
        await engine.publish(OrderCreated("o", 1))
        await until(engine, status_is(engine, notes, "o", "completed"))
    engine = Engine(url(tmp_path))
    async with engine:
        with pytest.raises(TreadleError) as caught:
            await engine.apply(orders_v2())
        (blocker,) = caught.value.details["blockers"]
        assert (blocker["run"], blocker["reason"]) == ("com.acme/ledger@1", "is not terminal")


async def test_proposals_are_durable(tmp_path):
    engine = Engine(url(tmp_path))
    engine.deploy(only_orders())
    async with engine:
        await engine.publish(OrderCreated("a", 1))
        number = await engine.propose(orders_v2())
        with pytest.raises(TreadleError):
            await engine.approve(number)
        assert set(await engine.shadow(number)) >= {"effects", "pending", "statuses", "allowlists", "changes"}
        await engine.approve(number)
    engine = Engine(url(tmp_path))
    engine.deploy(only_orders())
    engine.load(orders_v2())
    async with engine:
        assert [(p["id"], p["status"]) for p in await engine.proposals("shop")] == [(1, "approved")]
        await engine.apply(1, app="shop", wait=True)
        assert (await engine.proposals("shop"))[0]["status"] == "applied"
        with pytest.raises(TreadleError):
            await engine.apply(1, app="shop")


async def test_snapshots_are_pinned_by_content_and_survive_collection(tmp_path):
    engine = Engine(url(tmp_path), work=False)
    engine.deploy(only_orders())

    async def root() -> str:
        return str((await engine.snapshot())["shop"]["roots"]["com.acme/order@1"])

    async with engine:
        for n in range(70):
            await engine.publish(OrderCreated(f"o-{n}", n))
        first = await root()
        assert await root() == first
        await engine.publish(OrderCancelled("o-1"))
        second = await root()
        assert second != first
        (changed,) = await engine.applications.compare(first, second)
        assert (changed["key"], changed["after"]) == ("o-1", None)
        await engine.gc()
        index = await change(engine, lambda desk: CellIndex(StoreBlobs(desk)))
        kept = await change(engine, lambda desk: {decode(e.key): e.size for e in index.entries(second)})
        assert kept == {cell["key"]: cell["size"] for cell in await engine.cells(order)}
        assert len(kept) == 69
        with pytest.raises(BlobMissing):
            await change(engine, lambda desk: list(index.entries(first)))


@pytest.mark.at_home("a guest is a second process on one file")
async def test_each_of_several_who_propose_at_once_is_told_the_number_of_its_own(tmp_path):
    async with Engine(url(tmp_path)) as engine, Engine(url(tmp_path)) as guest:
        for one in (engine, guest):
            one.deploy(app())
        await engine.publish(Booked("first"))
        told = await asyncio.gather(*(one.propose(app()) for one in (engine, guest, engine, guest)))
        assert sorted(told) == [1, 2, 3, 4]
        assert [p["id"] for p in await guest.proposals("shop")] == [1, 2, 3, 4]
        await assert_replays(engine)
