"""Messages between processes: what they may say, how they are read, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import pytest
from msgspec.structs import replace

from treadle.arguments import for_operation
from treadle.host.acting import stamped
from treadle.kernel.errors import (
    InputInvalid,
    NotCanonical,
    NotWaiting,
    StoreFull,
    TreadleError,
    Unsupported,
    ValueRefused,
    VersionMismatch,
)
from treadle.kernel.limits import Limits
from treadle.kernel.model import (
    Cancel,
    Continue,
    Domain,
    Frame,
    Patch,
    Receipt,
    Reset,
    Retry,
    Signal,
    Started,
)
from treadle.kernel.values import digest_bytes, encode
from treadle.runtime import collecting, commands, keeping, payloads, tasks, traced
from treadle.runtime.commands import (
    AuditEntry,
    Deliver,
    Inspect,
    Operate,
    Own,
    Sent,
    message_from_bytes,
    message_to_bytes,
    reply_from_bytes,
    reply_to_bytes,
)
from treadle.runtime.desk import Desk, Handing, NoOperations
from treadle.runtime.fetching import NotAtHand
from treadle.runtime.own_changes import OwnChange
from treadle.runtime.ports import NewRun
from treadle.runtime.recovery import offers
from treadle.runtime.registry import Registry
from treadle.runtime.shards import Held
from treadle.store.protocol import Reads
from treadle.store.rows import Batch

from .test_core import Bench, FailingStore, awaits, work

HOUR_NS = 3_600 * 10**9
PAYLOAD = b"a payload"

ENTRY = AuditEntry("ann", "run.signal", "r", token="t-1", server="s", request="q")

COMMANDS: list[Deliver | Operate] = [
    Deliver(
        "r",
        Started(definition="sha256:1", input={"a": [1, b"x"]}, seed=b"s"),
        create=NewRun("toy", "flow", None, "sha256:1", {"k": 1}),
        blobs={digest_bytes(PAYLOAD): PAYLOAD},
    ),
    Deliver("r", Signal(name="go", data=1, key="k"), submission=("run:r", "signal:k"), expected_version=3),
    Deliver("r", Signal(name="go"), entry=ENTRY),
    Deliver("r", Cancel(reason="enough")),
    Deliver("r", Patch(data={"a": None}, by="ann")),
    Deliver("r", Retry(how={"from": "x"})),
    Deliver("r", Reset(by="ann")),
    Deliver("cell", Domain(schema="s", value={"a": 1}, submission="k")),
    Deliver("r", Receipt(intent="i", status="error", error={"code": "X"}, signature=b"mine")),
    Operate("r", "task", {"name": "claim", "task": "t"}, entry=ENTRY),
    Operate("", "deploy", {}),
    Operate("", payloads.KEEP, {"digest": digest_bytes(PAYLOAD), "payload": PAYLOAD}),
    Operate("r", "deadletter", {"op": "keep", "id": "l", "row": {"run": "r", "sample": "…"}}),
    Operate("", traced.KIND, {"marks": [["s", 1, 2]]}),
    *offers({"i": "r", "j": "q"}, Held(1, [0])),
    Operate("app", "publish", {"app": "app", "schema": "s", "value": {"a": [b"x"]}, "submission": None}),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: getattr(c, "name", type(c).__name__))
def test_a_command_is_the_same_on_the_other_side(command: Deliver | Operate) -> None:
    found = message_from_bytes(message_to_bytes(command), "guest:1")
    assert type(found) is type(command)
    assert found == replace(command, inbox="guest:1"), "and nothing else of it is set"
    assert message_to_bytes(found) == message_to_bytes(command)


@pytest.mark.parametrize("data", [{}, {"note": "long " * 200}], ids=["short", "long"])
def test_what_is_written_otherwise_than_we_write_it_is_refused(data: dict[str, Any]) -> None:
    """A length in one byte more than it needs, a float of 32 bits."""
    message = message_to_bytes(
        Operate("r", "task", {"name": "complete", "sum": 1, "data": data}, entry=ENTRY)
    )
    reply = reply_to_bytes({"run": "r", "sum": 1, "data": data}, None)
    assert message_from_bytes(message, "guest:1")
    assert reply_from_bytes(reply)[1] is None
    for read, body in (
        (lambda body: message_from_bytes(body, "guest:1"), message),
        (reply_from_bytes, reply),
    ):
        for ours, other in ((b"csum\x01", b"x\x03sum\x01"), (b"csum\x01", b"csum\xfa\x3f\x80\x00\x00")):
            assert body.count(ours) == 1
            with pytest.raises(NotCanonical):
                read(body.replace(ours, other))


def test_every_event_from_outside_and_every_field_of_what_is_sent_is_among_them() -> None:
    events = {type(command.event) for command in COMMANDS if isinstance(command, Deliver)}
    assert events == set(commands._FROM_OUTSIDE)
    said = {
        name
        for command in COMMANDS
        if isinstance(command, Deliver)
        for name in Sent.__struct_fields__
        if getattr(command, name) != getattr(Deliver("", None), name)
    }
    assert said == set(Sent.__struct_fields__) - {"reply"}, "where to report is between runs alone"


# What a command is besides what is sent: of the process that has it.
OF_THE_PROCESS = {*Deliver.__struct_fields__, *Operate.__struct_fields__, "own", "provided"} - {
    *Sent.__struct_fields__,
    *("home", "name", "body"),
}


def test_bytes_have_room_for_what_is_sent_and_for_nothing_else() -> None:
    assert set(commands._Delivery.__struct_fields__) == set(Sent.__struct_fields__)
    assert {"ack", "inbox", "derived", "message", "asked", "fetched"} < OF_THE_PROCESS
    for name in sorted(OF_THE_PROCESS):
        for value in (True, None, "guest:2", ["x"]):
            for said in ({**SIGNAL, name: value}, {"operate": {"name": "x", "body": {}, name: value}}):
                for key in ("guest:1", "end:i:1"):
                    with pytest.raises(TreadleError):
                        message_from_bytes(encode(said), key)


def test_a_message_cannot_say_that_its_sender_need_not_be_checked() -> None:
    """Neither under a name of the engine's own, nor by an event that the engine says itself."""
    entry = {"user": "treadle:core", "action": "run.signal"}
    for said in (
        {**SIGNAL, "entry": entry},
        {**SIGNAL, "entry": {**entry, "user": "ann", "trusted": True}},
        {"operate": {"name": "x", "body": {}, "entry": entry}},
        {"run": "r", "event": {"kind": "receipt", "intent": "i", "verified": True}},
        {"run": "r", "event": {"kind": "started", "definition": "d", "seed": b"s", "place": "held"}},
    ):
        with pytest.raises(TreadleError):
            message_from_bytes(encode(said), "guest:1")


def test_a_change_is_no_command_and_a_question_changes_nothing() -> None:
    bench = Bench()
    before = len(bench.store.batches)
    bench.core.submit(OwnChange(lambda desk: desk.diagnose("", "x", {}), bench.ack("change")))  # type: ignore[arg-type]
    bench.core.submit(Inspect(lambda view: view.store.run("none"), bench.ack("question")))
    bench.core.submit(Inspect(lambda view: view.batch, bench.ack("too far")))  # type: ignore[attr-defined]
    bench.settle()
    assert isinstance(bench.answers["change"], TreadleError), (
        "what the core asks of itself cannot be handed in"
    )
    assert bench.answers["question"] is None
    assert isinstance(bench.answers["too far"], TreadleError), "who looks sees no commit"
    assert len(bench.store.batches) == before, "nothing was committed"


SIGNAL: dict[str, Any] = {"run": "r", "event": {"kind": "signal", "name": "go"}}

WRONG: dict[str, Any] = {
    "no mapping": [1],
    "nothing": {},
    "no event": {"run": "r"},
    "a kind that is none": {"run": "r", "event": {"kind": "nonsense"}},
    "no kind": {"run": "r", "event": {"name": "go"}},
    "a field that is none": {"run": "r", "event": {"kind": "signal", "name": "go", "loud": True}},
    "a field of another type": {"run": "r", "event": {"kind": "signal", "name": 5}},
    "a key that is none": {**SIGNAL, "own": True},
    "notes": {**SIGNAL, "notes": {"own": True}},
    "derived": {**SIGNAL, "derived": True},
    "a run that is no text": {**SIGNAL, "run": 5},
    "a version that is no number": {**SIGNAL, "expected_version": "1"},
    "a payload under a wrong name": {**SIGNAL, "blobs": {"sha256:0": b"x"}},
    "an address to report to": {**SIGNAL, "reply": ["r", "i"]},
    "a name of the engine's own": {"run": "r", "event": {"kind": "cancel", "by": "treadle:parent"}},
    "what only a run tells itself": {"run": "r", "event": {"kind": "continue"}},
    "what only a worker tells": {"run": "r", "event": {"kind": "frame", "intent": "i", "seq": 1}},
    "an operation without a body": {"operate": {"home": "", "name": "x"}},
    "an operation and more": {"operate": {"name": "x", "body": {}}, "own": True},
    "an operation as 0.1.0 wrote it, and more": {"run": "", "op": {"name": "x", "body": {}}, "own": True},
    "an operation, and a run": {"run": "r", "op": {"name": "x", "body": {}}},
    "two operations": {"operate": {"name": "x", "body": {}}, "op": {"name": "y", "body": {}}},
    "an operation with more in it": {"operate": {"name": "x", "body": {}, "own": True}},
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_what_a_message_may_not_say_is_refused(value: Any) -> None:
    with pytest.raises(TreadleError):
        message_from_bytes(encode(value), "guest:1")


def test_what_is_no_message_is_refused_answered_and_gone() -> None:
    bench = Bench()
    bench.start("run", [awaits()])
    bench.settle()
    bench.real.post([("guest:1", b"\xff\x00"), ("guest:2", encode(WRONG["notes"]))])
    bench.core._intake.look()
    bench.settle()
    assert bench.real.inbox(10) == []
    replies = bench.real.replies(["guest:1", "guest:2"])
    assert all(isinstance(reply_from_bytes(body)[1], TreadleError) for body in replies.values())
    assert len(replies) == 2
    assert bench.kinds("run") == ["started"]


def test_what_the_engine_tells_a_run_by_itself_cannot_be_handed_in() -> None:
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    own = Own("run", Receipt(intent=bench.works[0].intent.id), ack=bench.ack("own"))
    bench.core.submit(own)
    bench.settle()
    assert isinstance(bench.answers["own"], TreadleError)
    assert bench.kinds("run") == ["started"]


@pytest.mark.parametrize("event", [Continue(more=1), Frame(intent="i", seq=1)], ids=lambda e: e.kind)
def test_messages_between_runs_are_read_by_their_own_rules(event: Any) -> None:
    """The limits are for other processes: a run's own message may say what only the engine says."""
    body = message_to_bytes(Deliver("r", event, reply=("p", "i")))
    found = message_from_bytes(body, "end:i:1")
    assert isinstance(found, Deliver)
    assert (found.event, found.reply) == (event, ("p", "i"))


def test_the_rows_of_0_1_0_are_read() -> None:
    operation = encode({"run": "", "op": {"name": "task", "body": {"task": "t"}}})
    assert message_from_bytes(operation, "guest:1") == Operate("", "task", {"task": "t"}, inbox="guest:1")
    event = encode({"run": "r", "event": {"kind": "signal", "name": "go"}, "submission": ["run:r", "k"]})
    found = message_from_bytes(event, "guest:2")
    assert isinstance(found, Deliver)
    assert (found.event, found.submission) == (Signal(name="go"), ("run:r", "k"))


@pytest.mark.parametrize("data", [{"note": "fine"}, {"parts": [1, {"a": 2}]}], ids=["slight", "nested"])
def test_what_goes_into_an_operation_is_no_longer_the_callers(data: dict[str, Any]) -> None:
    taken = for_operation(data)
    was = encode(data)
    data["more"] = 1
    data.get("parts", []).append(2)
    assert encode(taken) == was


def test_what_is_no_value_is_refused_where_an_operation_is_written() -> None:
    for data in ({"n": 2**70}, {"text": "\ud800"}):
        body = {"name": "complete", "task": "t", "user": "ann", "data": for_operation(data)}
        with pytest.raises(ValueRefused):
            stamped(Operate("", "task", body))


def test_an_operation_is_written_with_who_asks() -> None:
    asked = stamped(Operate("r", "task", {"name": "claim", "task": "t", "user": "ann"}))
    assert isinstance(asked, Operate)
    found = message_from_bytes(asked.written, "guest:1")
    assert isinstance(found, Operate)
    assert found.entry is not None
    assert (found.home, found.body, found.entry) == (asked.home, asked.body, asked.entry)


# --- answers -------------------------------------------------------------------------------------------------


def test_an_answer_with_tuples_is_one_with_lists() -> None:
    assert reply_from_bytes(reply_to_bytes({"found": (1, (2,))}, None)) == ({"found": [1, [2]]}, None)


def test_a_refusal_is_the_same_on_the_other_side() -> None:
    for error in (
        VersionMismatch("no", details={"found": 1}),
        NotWaiting("closed", code="TASK_CLOSED", where="here"),
        InputInvalid("x"),
    ):
        value, found = reply_from_bytes(reply_to_bytes(None, error))
        assert value is None
        assert found is not None
        assert type(found) is type(error)
        assert found.to_value() == error.to_value()


class Counting(FailingStore):
    """Counts the messages that are read."""

    read = 0

    def inbox(self, limit: int, shards: Collection[int] | None = None) -> list[tuple[str, bytes]]:
        found = self._store.inbox(limit, shards)
        self.read += len(found)
        return found


def test_however_long_the_line_of_messages_is_each_is_read_a_few_times_only() -> None:
    bench = Bench(limits=Limits(inbox_per_turn=10, batch_records=4), wrap=Counting)
    count = 400
    for number in range(count):
        bench.start(f"r{number}", [awaits()])
    bench.settle()
    go = [Deliver(f"r{number}", Signal(name="go")) for number in range(count)]
    bench.real.post([(f"guest:{n}", message_to_bytes(item)) for n, item in enumerate(go)])
    bench.core._intake.look()
    bench.settle()
    assert bench.real.inbox(1) == []
    assert cast("Counting", bench.store).read < 4 * count


def test_messages_that_cannot_be_decided_now_do_not_keep_others_from_being_read() -> None:
    """Of a run that takes no events until its code is there, or until it is let in."""
    bench = Bench(limits=Limits(inbox_per_turn=10))
    for run in ("barred", "other"):
        bench.start(run, [awaits()])
    bench.settle()
    bench.core._mail.bar_run("barred")
    to_it = [(f"guest:{n:02}", message_to_bytes(Deliver("barred", Signal(name="x")))) for n in range(30)]
    bench.real.post([*to_it, ("guest:99", message_to_bytes(Deliver("other", Signal(name="go"))))])
    bench.core._intake.look()
    for _ in range(20):
        bench.core.turn()
    assert bench.status("other") == "completed"
    assert len(bench.real.inbox(99)) == len(to_it)


class Halfway(NoOperations):
    """A fork that comes to nothing at its very end."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def perform(self, desk: Handing, asked: Operate) -> Any:
        if asked.name != commands.FORK:
            return super().perform(desk, asked)
        keeping.perform_fork(desk, asked.body)
        raise self._failure


@pytest.mark.parametrize(
    "failure",
    [Unsupported("not today"), NotAtHand("what is never there", lambda: None)],
    ids=["refused", "code that does not come"],
)
def test_nothing_follows_from_what_is_refused_halfway(failure: Exception) -> None:
    bench = Bench(operations=Halfway(failure))
    bench.start("run", [work(), awaits()])
    bench.settle()
    bench.works.clear()
    body = keeping.fork_asked("run", at=None, definition=None, new_id="fork", by=None)
    bench.core.submit(Operate("fork", commands.FORK, body, bench.ack("fork")))
    bench.settle()
    bench.settle()
    assert isinstance(bench.answers["fork"], TreadleError)
    assert bench.real.run("fork") is None
    assert bench.works == [], "work of a run that there is not"


def completion(task: str, **more: Any) -> Operate:
    actor = tasks.Actor("ann", ("admin",))
    done = tasks.Operation(name="complete", task=task, actor=actor, data={"by": "ann"}, **more)
    return Operate("run", "task", done.to_value())


def asked(bench: Bench, *commands: Deliver | Operate) -> dict[str, Any]:
    """Posts commands as guests do, lets the core decide, and reads their answers."""
    keys = [f"guest:{number}" for number in range(len(commands))]
    bench.real.post([(key, message_to_bytes(c)) for key, c in zip(keys, commands, strict=True)])
    bench.core._intake.look()
    bench.settle()
    assert bench.real.inbox(10) == []
    found = bench.real.replies(keys)
    answers = {key: reply_from_bytes(found[key]) for key in keys}
    bench.real.forget_replies(keys)
    return {key: error.code if error is not None else value for key, (value, error) in answers.items()}


def test_an_answer_is_in_the_commit_that_decided_and_takes_the_message_with_it() -> None:
    """Also where an operation (a completion) is decided by an event, and others are queued behind it."""
    bench = Bench()
    for run in ("run", "other"):
        bench.start(run, [{"do": "task"}])
    bench.settle()
    ids = {task.run_id: task.id for task in bench.real.tasks()}
    claim = tasks.Operation(name="claim", task=ids["other"], actor=tasks.Actor("bob", ("admin",)))
    bench.store.batches.clear()
    found = asked(bench, completion(ids["run"]), Operate("other", "task", claim.to_value()))
    assert found["guest:0"]["status"] == "completed"
    assert found["guest:1"]["assignee"] == "bob"
    for batch in bench.store.batches:
        assert [row[0] for row in batch.replies] == batch.inbox_done
        if "guest:0" in batch.inbox_done:
            assert batch.records, "the receipt is in the same commit"


@pytest.mark.parametrize("failures", [1, 3])
def test_a_commit_that_fails_takes_its_answers_with_it(failures: int) -> None:
    bench = Bench()
    bench.start("run", [{"do": "task"}, awaits()])
    bench.settle()
    (task,) = bench.real.tasks()
    bench.store.failing = [StoreFull() for _ in range(failures)]
    found = asked(
        bench, completion(task.id), Deliver("run", Signal(name="other")), Deliver("nobody", Signal(name="go"))
    )
    assert found["guest:0"]["run"] == "run"
    assert found["guest:1"]["run"] == "run"
    assert found["guest:2"] == "RUN_NOT_FOUND"
    assert sorted(bench.kinds("run")) == ["receipt", "signal", "started"], "each once"


def test_a_completion_is_answered_with_its_own_refusal() -> None:
    bench = Bench()
    bench.start("run", [{"do": "task"}])
    bench.settle()
    (task,) = bench.real.tasks()
    assert asked(bench, completion(task.id, expected_version=9)) == {"guest:0": "VERSION_MISMATCH"}
    assert asked(bench, completion(task.id))["guest:0"]["status"] == "completed"
    assert asked(bench, completion(task.id))["guest:0"]["stale"]


def test_a_caller_here_is_told_when_the_commit_of_its_refusal_fails() -> None:
    bench = Bench()
    claim = tasks.Operation(name="claim", task="none", actor=tasks.Actor("ann", ("admin",)))
    bench.store.failing = [StoreFull()]
    bench.core.submit(Operate("", "task", claim.to_value(), bench.ack("claim")))
    bench.core.submit(Deliver("nobody", Signal(name="x"), ack=bench.ack("signal")))
    bench.settle()
    assert bench.answers["claim"].code in ("STORE_FULL", "TASK_NOT_FOUND")
    assert isinstance(bench.answers["signal"], TreadleError)


async def test_answers_that_nobody_comes_for_go_by_their_age() -> None:
    bench = Bench()
    now = bench.now_ns()
    day = collecting.REPLIES_KEPT_NS
    bench.real.commit(Batch(replies=[("guest:old", now - day - HOUR_NS, b"1"), ("guest:new", now, b"2")]))

    async def operate(name: str, body: dict[str, Any], *, home: str = "") -> Any:
        bench.answers.pop("write", None)
        bench.core.change(OwnChange(lambda desk: collecting.perform(desk, body), bench.ack("write")))
        bench.settle()
        return bench.answers["write"]

    async def read(question: Callable[[Reads, Registry], Any]) -> Any:
        return question(bench.real, bench.core.desk.registry)

    collection = collecting.Collection(operate, read, [""], clock=bench.now_ns, now_ns=None)
    await collection.preview()
    assert len(bench.real.replies(["guest:old", "guest:new"])) == 2
    await collection.collect()
    assert bench.real.replies(["guest:old", "guest:new"]) == {"guest:new": b"2"}


def test_a_run_that_is_collected_is_not_brought_back_by_what_comes_late() -> None:
    """A late receipt that is ready together with the collection leaves no row of a run that is gone."""
    bench = Bench()
    bench.start("run", [work()])
    bench.settle()
    receipt = Receipt(intent=bench.works[0].intent.id, value=1)
    bench.core.submit(Deliver("run", receipt))
    bench.settle()
    row = bench.real.run("run")
    assert row is not None
    asked = {"step": "runs", "now_ns": 2**62, "ruled": False, "runs": [[row.no, row.id, row.seq, []]]}
    bench.core.change(OwnChange(lambda desk: collecting.perform(desk, asked), bench.ack("gc")))
    bench.core.submit(Deliver("run", receipt, ack=bench.ack("late")))
    bench.settle()
    bench.core.submit(Deliver("run", receipt, ack=bench.ack("later")))
    bench.settle()
    assert bench.answers["gc"] == 1
    assert bench.real.run("run") is None
    assert [bench.answers[name].code for name in ("late", "later")] == ["RUN_NOT_FOUND"] * 2
    assert bench.real.frames(1) == []


def test_a_message_that_somebody_waits_for_is_decided_although_a_commit_fails_meanwhile() -> None:
    """It is durable with the commit that sent it: who waits for its answer goes on waiting, and gets it."""
    bench = Bench(limits=Limits(batch_records=1))
    for run in ("a", "b", "c"):
        bench.start(run, [awaits()])
    bench.settle()

    def tell(desk: Desk) -> None:
        for run in ("a", "b", "c"):
            item = bench.item(run, Signal(name="go"), ack=f"told {run}", message=f"tell:{run}")
            item.derived = True
            desk.post(item)

    bench.core.change(OwnChange(tell, None))
    while not bench.real.has_message("tell:c"):
        bench.core.turn()
    bench.store.failing = [StoreFull(), StoreFull()]
    bench.settle()
    assert [bench.status(run) for run in ("a", "b", "c")] == ["completed"] * 3
    assert [bench.answers[f"told {run}"]["seq"] for run in ("a", "b", "c")] == [2, 2, 2]
    assert bench.real.inbox(9) == []
