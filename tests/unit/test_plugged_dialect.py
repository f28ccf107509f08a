"""A dialect of somebody else's is plugged in whole: machine, performers, operations, what they keep, its words for what
happened, its view, its hint for payloads. Nothing of the house is changed for it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.backdoor import change

from treadle import Engine
from treadle.host.offers import Offer
from treadle.kernel.errors import TreadleError
from treadle.kernel.machine import Machine, Traits
from treadle.kernel.model import Context, Decision, Started, is_reference
from treadle.kernel.values import Value, digest_bytes, encode
from treadle.lang.definition import Definition
from treadle.runtime.commands import Operate
from treadle.runtime.desk import Handing
from treadle.runtime.finding import Pins
from treadle.store.protocol import Reads
from treadle.store.rows import DefinitionRow
from treadle.testing import assert_replays, toy
from treadle.work.job import Done, Job

KEPT = encode("kept on account of a tally")
TALLY = "tally"
BIG = "b" * 200_000


class AbacusMachine(toy.ToyMachine):
    dialect = "abacus"
    traits = Traits(large_input=True, large_data=True, narrated=True)

    def start(self, definition: Any, event: Started, ctx: Context) -> Decision:
        input = ctx.blob(event.input) if is_reference(event.input) else event.input
        return super().start(definition, msgspec.structs.replace(event, input=input), ctx)

    def view(self, definition: Any, state: Value) -> dict[str, Any]:
        return {"state": {"beads": len(state["seen"])}, "waiting_for": [{"kind": "bead"}]}


class AbacusDialect(toy.ToyDialect):
    name = "abacus"

    def __init__(self) -> None:
        self.machine: Machine = AbacusMachine()


class Tallies:
    """Its operations. What is made of `threads` is where its code was loaded."""

    threads: list[str]

    def __init__(self) -> None:
        self.learnt: list[str] = []

    def perform(self, desk: Handing, asked: Operate) -> object:
        total = (desk.store.document(TALLY, "all") or {"total": 0})["total"] + asked.body["beads"]
        desk.belongs("")
        desk.batch.documents.append((TALLY, "all", desk.clock.now_ns(), encode({"total": total})))
        return total

    def check_owner(self, reads: Reads, row: DefinitionRow) -> None:
        if row.name == "taken":
            raise TreadleError("it is somebody else's", code="TAKEN", cls="user")

    def learn(self, row: DefinitionRow, fetched: Collection[str]) -> None:
        self.learnt.append(row.name)


def reached(reads: Reads) -> Iterator[str]:
    if reads.documents(TALLY):
        yield digest_bytes(KEPT)


ABACUS = Definition("abacus", "abacus", "1", {"abacus": 1})


async def perform(job: Job) -> Done:
    return Done(value=7)


class Plugged:
    def __init__(self, engine: Engine) -> None:
        self.tallies, self.threads = Tallies(), list[str]()
        engine.dialects["abacus"] = AbacusDialect()
        engine.worker.register("work", perform, dialect="abacus")
        engine.offers.add(
            Offer("abacus", frozenset({"tally.add"}), self.make, lambda: Pins((TALLY,), reached))
        )

    def make(self) -> Tallies:
        self.threads.append(threading.current_thread().name)
        return self.tallies


async def test_it_is_performed_told_and_shown_in_its_own_words(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        Plugged(engine)
        run = await engine.start(ABACUS, {"do": ["work", "signal:go"]}, id="a")
        while (await run.show())["status"] != "waiting":
            await engine.read(lambda reads: reads.last_run_no())
        shown = await run.show()
        assert shown["state"] == {"beads": 1}
        assert {"kind": "bead"}.items() <= shown["waiting_for"][-1].items()
        await engine.signal("a", "go", "more")
        assert await run.result(timeout=60) == [7, "more"]
        told = [event["type"] async for event in run.events(follow=False)]
        assert {"toy.asked", "toy.done"} <= set(told), "what its machine says happened"
        assert {"received", "effect", "receipt"} <= set(told), (
            "what the house tells of a machine that asks for it"
        )
        await assert_replays(engine)


async def test_people_see_what_is_behind_its_references(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        Plugged(engine)
        run = await engine.start(ABACUS, {"do": ["signal:go"], "pad": BIG}, id="a")
        await engine.signal("a", "go", BIG)
        assert await run.result(timeout=60) == [BIG]
        (first, *_, last) = await engine.read(lambda reads: reads.journal(1))
        assert max(len(first.body), len(last.body)) < 10_000, "the journal has references"
        assert (await run.show())["input"]["pad"] == BIG
        await assert_replays(engine)


async def test_its_operations_are_performed_and_their_code_is_loaded_beside_the_core(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        plugged = Plugged(engine)
        assert [await engine.operate("tally.add", {"beads": n}) for n in (3, 4)] == [3, 7]
        assert plugged.threads == ["treadle-beside"]
        async with Engine(engine.store_url) as guest:
            assert await guest.operate("tally.add", {"beads": 1}) == 8, "whoever owns the store performs it"
        with pytest.raises(TreadleError, match=r"no operation 'tally\.sub' is known"):
            await engine.operate("tally.sub", {})


async def test_it_is_asked_when_its_definitions_are_deployed(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        plugged = Plugged(engine)
        for name in ("abacus", "taken"):
            definition = Definition("abacus", name, "1", {"abacus": 1})
            deploy = engine.library.deploy_of(definition, validation="strict").to_value()
            if name == "taken":
                with pytest.raises(TreadleError, match="somebody else's"):
                    await engine.operate("deploy", deploy)
            else:
                assert (await engine.operate("deploy", deploy))["status"] == "available"
        assert plugged.tallies.learnt == ["abacus"]


async def test_what_its_documents_keep_is_not_collected(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        Plugged(engine)
        await engine.operate("tally.add", {"beads": 3})
        await change(engine, lambda desk: desk.batch.blobs.update({digest_bytes(KEPT): KEPT}))
        assert (await engine.gc())["blobs"] == 0
        await change(engine, lambda desk: desk.batch.documents.append((TALLY, "all", 0, None)))
        assert (await engine.gc())["blobs"] == 1


def test_no_two_dialects_offer_operations_of_one_name() -> None:
    engine = Engine("memory:")
    with pytest.raises(TreadleError, match="there already: apply"):
        engine.offers.add(Offer("abacus", frozenset({"apply", "tally.add"}), Tallies))
