"""The inbox of human tasks: roles against operations, forms, due dates, escalation, history, search."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle.engine import Engine, Run
from treadle.kernel.errors import Forbidden, InputInvalid, NotWaiting, TreadleError
from treadle.process import payload, process, start, state, task
from treadle.testing.clock import VirtualClock
from treadle.testing.replaying import assert_replays

SCHEMA = {
    "type": "object",
    "required": ["ok"],
    "properties": {"ok": {"type": "boolean"}},
    "additionalProperties": False,
}


@process("Form", version="1.0.0")
def form(p: Any) -> None:
    p.reference(start.ref)
    p.ask(
        task(
            "fill",
            title="Fill it in",
            description="All of it.",
            roles=["clerk", "boss"],
            type="form",
            payload={"n": start.n},
            schema=SCHEMA,
            timeout="1d",
        )
    )
    p.complete(payload)


@process("Rework", version="1.0.0")
def rework(p: Any) -> None:
    p.set(state.round, 0)
    with p.until(payload.ok, max=5):
        p.set(state.round, state.round + 1)
        p.ask(task("fill", roles=["clerk"], payload={"round": state.round}))
    p.complete(state.round)


@process("Escalates", version="1.0.0")
def escalates(p: Any) -> None:
    p.ask(task("decide", roles=["clerk"], timeout="1h", escalate_to=["boss"]))
    p.complete(payload)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> AsyncIterator[Engine]:
    async with clock.engine("memory:") as engine:
        for definition in (form, rework, escalates):
            engine.deploy(definition)
        yield engine


async def asked(
    engine: Engine, clock: VirtualClock, name: str = "Form", ref: str = "R1"
) -> tuple[Run, dict[str, Any]]:
    run = await engine.start(name, {"n": 1, "ref": ref})
    await clock.settle()
    (row,) = await engine.tasks(run=run.id)
    return run, row


async def done(engine: Engine, id: str, answer: Any, user: str, *roles: str) -> dict[str, Any]:
    """Claims a task and completes it, as people do."""
    await engine.task_claim(id, user=user, roles=roles)
    return await engine.task_complete(id, answer, user=user, roles=roles)


# Who the actors are: (user, roles).
STRANGER = ("eve", ["visitor"])
NOBODY = (None, [])
HOLDER = ("bob", ["clerk"])
ASSIGNEE = ("ann", ["boss"])
ASSIGNEE_WITHOUT_ROLE = ("ann", [])
ADMIN = ("root", ["admin"])
EVERYONE = [STRANGER, NOBODY, HOLDER, ASSIGNEE, ASSIGNEE_WITHOUT_ROLE, ADMIN]

# What each may do to a task that is open, and to one that ann has claimed.
OPEN_MAY = {
    "claim": [HOLDER, ASSIGNEE, ADMIN],
    "release": [ADMIN],
    "assign": [ADMIN],
    "complete": [ADMIN],
    "comment": [HOLDER, ASSIGNEE, ADMIN],
}
CLAIMED_MAY = {
    "claim": [ASSIGNEE, ADMIN],
    "release": [ASSIGNEE, ASSIGNEE_WITHOUT_ROLE, ADMIN],
    "assign": [ASSIGNEE, ASSIGNEE_WITHOUT_ROLE, ADMIN],
    "complete": [ASSIGNEE, ASSIGNEE_WITHOUT_ROLE, ADMIN],
    "comment": [HOLDER, ASSIGNEE, ASSIGNEE_WITHOUT_ROLE, ADMIN],
}


async def operate(engine: Engine, operation: str, id: str, user: str | None, roles: list[str]) -> Any:
    who: dict[str, Any] = {"user": user, "roles": roles}
    match operation:
        case "claim":
            return await engine.task_claim(id, **who)
        case "release":
            return await engine.task_release(id, **who)
        case "assign":
            return await engine.task_assign(id, to="zoe", **who)
        case "comment":
            return await engine.task_comment(id, text="hm", **who)
        case _:
            return await engine.task_complete(id, {"ok": True}, **who)


@pytest.mark.house
@pytest.mark.parametrize("operation", list(OPEN_MAY))
@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("actor", EVERYONE, ids=lambda actor: f"{actor[0]}:{','.join(actor[1])}")
async def test_roles_against_operations(
    engine: Engine, clock: VirtualClock, operation: str, claimed: bool, actor: tuple[str | None, list[str]]
) -> None:
    run, row = await asked(engine, clock)
    if claimed:
        await engine.task_claim(row["id"], user="ann", roles=["boss"])
    before, shown = await engine.task(row["id"]), await run.show()
    if actor in (CLAIMED_MAY if claimed else OPEN_MAY)[operation]:
        await operate(engine, operation, row["id"], *actor)
        after = await engine.task(row["id"])
        expected = {
            "claim": ("claimed", actor[0]),
            "release": ("open", None),
            "assign": ("claimed", "zoe"),
            "complete": ("completed", before["assignee"]),
            "comment": (before["status"], before["assignee"]),
        }[operation]
        if operation == "complete" and not claimed:
            assert after["status"] == "completed"
        else:
            assert (after["status"], after["assignee"]) == expected
        assert after["history"][-1].get("by") == actor[0]
        if operation != "complete":
            assert await run.show() == shown, "not a commit of the run"
        assert await engine.diagnostics(run.id) == []
        return
    with pytest.raises(Forbidden) as caught:
        await operate(engine, operation, row["id"], *actor)
    assert caught.value.cls == "authorization"
    assert await engine.task(row["id"]) == before
    assert await run.show() == shown
    (line,) = await engine.diagnostics(run.id)
    assert (line["operation"], line["user"], line["task"]) == (operation, actor[0], row["id"])


@pytest.mark.house
async def test_an_answer_must_fit_the_form(engine: Engine, clock: VirtualClock) -> None:
    run, row = await asked(engine, clock)
    await engine.task_claim(row["id"], user="ann", roles=["clerk"])
    for answer in ({}, {"ok": "yes"}, {"ok": True, "more": 1}, None):
        with pytest.raises(InputInvalid) as caught:
            await engine.task_complete(row["id"], answer, user="ann", roles=["clerk"])
        assert caught.value.details["errors"]
    assert (await engine.task(row["id"]))["status"] == "claimed"
    await engine.task_complete(row["id"], {"ok": False}, user="ann", roles=["clerk"])
    assert await run.result(timeout=60) == {"ok": False}


@pytest.mark.house
async def test_a_row_says_everything(engine: Engine, clock: VirtualClock) -> None:
    run, row = await asked(engine, clock)
    assert row == {
        "id": (await run.show())["waiting_for"][0]["id"],
        "run": run.id,
        "workflow": "Form",
        "name": "fill",
        "title": "Fill it in",
        "description": "All of it.",
        "type": "form",
        "roles": ["clerk", "boss"],
        "payload": {"n": 1},
        "schema": SCHEMA,
        "reference": "R1",
        "status": "open",
        "assignee": None,
        "created_at": "2027-01-15T08:00:00.000000Z",
        "due": "2027-01-16T08:00:00.000000Z",
        "answer": None,
        "completed_by": None,
        "escalated_from": None,
        "escalated_to": None,
        "history": row["history"],
    }


@pytest.mark.house
async def test_history_is_complete(engine: Engine, clock: VirtualClock) -> None:
    _, row = await asked(engine, clock)
    id = row["id"]
    await engine.task_claim(id, user="ann", roles=["clerk"])
    await engine.task_release(id, user="ann", roles=["clerk"])
    await engine.task_claim(id, user="bob", roles=["boss"])
    await engine.task_comment(id, text="please", user="bob", roles=["boss"])
    await engine.task_assign(id, to="zoe", user="bob", roles=["boss"])
    await engine.task_complete(id, {"ok": True}, user="zoe")
    history = (await engine.task(id))["history"]
    assert [(entry["event"], entry.get("by")) for entry in history] == [
        ("created", None),
        ("claimed", "ann"),
        ("released", "ann"),
        ("claimed", "bob"),
        ("commented", "bob"),
        ("assigned", "bob"),
        ("completed", "zoe"),
    ]
    assert history[4]["text"] == "please"
    assert history[5]["to"] == "zoe"


@pytest.mark.house
async def test_a_closed_task_takes_nothing_more(engine: Engine, clock: VirtualClock) -> None:
    _, row = await asked(engine, clock)
    await done(engine, row["id"], {"ok": True}, "ann", "clerk")
    for operation in ("claim", "release", "assign"):
        with pytest.raises(NotWaiting):
            await operate(engine, operation, row["id"], "ann", ["clerk"])
    answer = await engine.task_complete(row["id"], {"ok": False}, user="ann", roles=["clerk"])
    assert answer["stale"] is True
    assert (await engine.task(row["id"]))["status"] == "completed"
    with pytest.raises(TreadleError) as caught:
        await engine.task_claim("nothing", user="ann", roles=["clerk"])
    assert caught.value.code == "TASK_NOT_FOUND"


@pytest.mark.house
async def test_search(engine: Engine, clock: VirtualClock) -> None:
    _, one = await asked(engine, clock, ref="A")
    other_run, other = await asked(engine, clock, ref="B")
    _, decide = await asked(engine, clock, name="Escalates")
    ids = lambda rows: {row["id"] for row in rows}  # noqa: E731
    await engine.task_claim(one["id"], user="ann", roles=["clerk"])
    assert ids(await engine.tasks()) == {one["id"], other["id"], decide["id"]}
    assert ids(await engine.tasks(role="boss")) == {one["id"], other["id"]}
    assert ids(await engine.tasks(role="clerk")) == {one["id"], other["id"], decide["id"]}
    assert ids(await engine.tasks(role="nobody")) == set()
    assert ids(await engine.tasks(assignee="ann")) == {one["id"]}
    assert ids(await engine.tasks(status=["open"])) == {other["id"], decide["id"]}
    assert ids(await engine.tasks(status=["claimed"], role="clerk")) == {one["id"]}
    assert ids(await engine.tasks(reference="B")) == {other["id"]}
    assert ids(await engine.tasks(run=other_run.id)) == {other["id"]}
    await done(engine, other["id"], {"ok": True}, "x", "boss")
    assert ids(await engine.tasks(reference="B")) == set()
    assert ids(await engine.tasks(reference="B", status=["completed"])) == {other["id"]}


@pytest.mark.house
async def test_reactivation_is_a_new_row(engine: Engine, clock: VirtualClock) -> None:
    run, first = await asked(engine, clock, name="Rework")
    await done(engine, first["id"], {"ok": False}, "ann", "clerk")
    await clock.settle()
    (second,) = await engine.tasks(run=run.id)
    assert second["id"] != first["id"]
    assert second["payload"] == {"round": 2}
    # The answer to the form that was sent back is stale, and does not touch the new one.
    stale = await engine.task_complete(first["id"], {"ok": True}, user="ann", roles=["clerk"])
    assert stale["stale"] is True
    assert (await engine.task(second["id"]))["status"] == "open"
    await done(engine, second["id"], {"ok": True}, "ann", "clerk")
    assert await run.result(timeout=60) == 2


@pytest.mark.house
async def test_escalation(engine: Engine, clock: VirtualClock) -> None:
    run, first = await asked(engine, clock, name="Escalates")
    await clock.advance(3600)
    assert (await engine.task(first["id"]))["status"] == "expired"
    (second,) = await engine.tasks(run=run.id)
    assert (second["roles"], second["status"], second["due"]) == (["boss"], "open", None)
    with pytest.raises(Forbidden):
        await engine.task_claim(second["id"], user="ann", roles=["clerk"])
    await done(engine, second["id"], "fine", "big", "boss")
    assert await run.result(timeout=60) == "fine"


@pytest.mark.house
async def test_a_row_has_its_title_and_description_and_once_completed_the_answer(
    engine: Engine, clock: VirtualClock
) -> None:
    run, row = await asked(engine, clock)
    assert (row["title"], row["description"]) == ("Fill it in", "All of it.")
    assert row["answer"] is row["completed_by"] is row["escalated_from"] is row["escalated_to"] is None
    await done(engine, row["id"], {"ok": True}, "ann", "clerk")
    after = await engine.task(row["id"])
    assert (after["answer"], after["completed_by"]) == ({"ok": True}, "ann")
    assert [sorted(entry) for entry in after["history"]] == [["at", "event"], *[["at", "by", "event"]] * 2]
    assert await run.result(timeout=60) == {"ok": True}


@pytest.mark.house
async def test_an_escalated_task_names_the_one_it_came_from_and_the_other_way_round(
    engine: Engine, clock: VirtualClock
) -> None:
    run, first = await asked(engine, clock, name="Escalates")
    await clock.advance(3600)
    (second,) = await engine.tasks(run=run.id)
    assert second["escalated_from"] == first["id"]
    assert (await engine.task(first["id"]))["escalated_to"] == second["id"]
    await done(engine, second["id"], "fine", "big", "boss")
    await assert_replays(engine)


@pytest.mark.house
async def test_a_task_that_expires_stalls_the_run(engine: Engine, clock: VirtualClock) -> None:
    run, first = await asked(engine, clock)
    await engine.task_claim(first["id"], user="ann", roles=["clerk"])
    await clock.advance(86400)
    assert (await engine.task(first["id"]))["status"] == "expired"
    shown = await run.show()
    assert (shown["status"], shown["error"]["class"]) == ("stalled", "timeout")
    await engine.retry(run.id)
    await clock.settle()
    (again,) = await engine.tasks(run=run.id)
    assert again["id"] != first["id"]


@pytest.mark.house
async def test_only_one_of_two_completions_counts(engine: Engine, clock: VirtualClock) -> None:
    import asyncio

    run, row = await asked(engine, clock)
    answers = await asyncio.gather(
        *(
            engine.task_complete(row["id"], {"ok": who == "ann"}, user=who, roles=["admin"])
            for who in ("ann", "bob")
        )
    )
    assert sorted(bool(answer.get("stale")) for answer in answers) == [False, True]
    await run.result(timeout=60)
    completed = [
        entry for entry in (await engine.task(row["id"]))["history"] if entry["event"] == "completed"
    ]
    assert len(completed) == 1


async def test_many_are_completed_by_few_commits_and_each_by_its_own_rights(
    engine: Engine, clock: VirtualClock
) -> None:
    runs = [await engine.start("Form", {"n": n, "ref": f"R{n}"}) for n in range(40)]
    await clock.settle()
    ids = [row["id"] for row in await engine.tasks(limit=100)]
    assert len(ids) == 40
    await engine.task_claim(ids[0], user="ann", roles=["clerk"])

    def complete(id: str, answer: Any, *roles: str) -> Any:
        return engine.task_complete(id, answer, user="ann", roles=roles)

    before = sum(engine.meter.commit_seconds.counts)
    answers = await asyncio.gather(
        *(complete(id, {"ok": True}, "admin") for id in ids[3:]),
        complete(ids[2], {"ok": "perhaps"}, "admin"),
        complete(ids[1], {"ok": True}, "clerk"),
        complete(ids[0], {"ok": True}, "clerk"),
        engine.task_assign(ids[0], to="bob", user="ann", roles=["clerk"]),
        return_exceptions=True,
    )
    *good, unfit, unclaimed, own, late = answers
    assert [type(one) for one in good] == [dict] * 37
    assert isinstance(unfit, InputInvalid)
    assert isinstance(unclaimed, Forbidden)
    assert isinstance(own, dict)
    assert "stale" not in own
    assert isinstance(late, NotWaiting), "what was asked first came first"
    assert sum(engine.meter.commit_seconds.counts) - before < 12, "each had a commit to itself"
    await clock.settle()
    left = {row["id"]: row["status"] for row in await engine.tasks(limit=100)}
    assert left == {ids[1]: "open", ids[2]: "open"}
    ended = [run.id for run in runs if (await run.show())["status"] == "completed"]
    assert len(ended) == 38
    await assert_replays(engine)
