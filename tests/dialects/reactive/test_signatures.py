"""Receipts are signed with the node's key and verified when they are admitted (REACTIVE.md §4, 26)."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle import reactive as rx
from treadle.host.signing import node_signer
from treadle.kernel.model import Receipt
from treadle.kernel.values import encode
from treadle.runtime.commands import Deliver, reply_from_bytes
from treadle.store.open import open_sqlite


@rx.schema("com.sign/Asked@1")
@dataclass(frozen=True, slots=True)
class Asked:
    id: str


@rx.schema("com.sign/Params@1")
@dataclass(frozen=True, slots=True)
class Params:
    id: str


@rx.schema("com.sign/Answer@1")
@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@rx.schema("com.sign/Cell@1")
@dataclass(frozen=True, slots=True)
class Cell:
    id: str
    text: str | None = None
    signed: bool = False


def make(gate: asyncio.Event) -> rx.App:
    ask = rx.effect("sign/ask@1", params=Params, receipt=Answer)

    @rx.workflow("com.sign/cell@1", state=Cell, events=[Asked], key="id", effects=[ask])
    def cell(state: Cell | None, event: object, ctx: rx.Context) -> rx.Output[Cell]:
        match event:
            case Asked(id=id):
                return rx.Output(Cell(id), effects=[ask(Params(id), ref="ask")])
            case rx.Receipt(status="ok") as receipt:
                envelope = receipt.envelope()
                assert state is not None
                return rx.Output(Cell(state.id, receipt.value.text, len(envelope["signature"]) == 32))
        return rx.Output(state)

    @ask.executor
    async def answer(call: rx.Call[Params]) -> Answer:
        await gate.wait()
        return Answer("true")

    return rx.App("sign", [cell])


@pytest.mark.at_home("forges a message in the file")
async def test_a_receipt_without_the_nodes_signature_settles_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()
    store = tmp_path / "t.db"
    engine = Engine(f"sqlite:///{store}")
    engine.deploy(make(gate))
    async with engine:
        await engine.publish(Asked("c1"))
        run = await engine.cell("com.sign/cell@1", "c1")
        assert run is not None
        (wait,) = (await run.show())["waiting_for"]

        forged = Receipt(intent=wait["id"], value={"text": "false"})
        signed = Receipt(intent=wait["id"], value={"text": "false"}, signature=b"x" * 32)
        other = node_signer(None)
        stranger = Receipt(intent=wait["id"], value={"text": "false"}, signature=other.sign(forged))
        for receipt in (forged, signed, stranger):
            answer = await engine.ask(lambda ack, r=receipt: Deliver(run.id, r, ack=ack))
            assert answer["stale"] is True
        async with Engine(f"sqlite:///{store}", work=False) as guest:
            answer = await guest.ask(lambda ack: Deliver(run.id, forged, ack=ack))
            assert answer["stale"] is True, "nor if it comes from another process"
            for word in ("own", "notes"):
                value = {
                    "run": run.id,
                    "event": {"kind": "receipt", "intent": wait["id"]},
                    word: {"own": True},
                }
                assert await refusal_of(store, f"guest:{word}", value) == "INPUT_INVALID"
        shown = await run.show()
        assert shown["status"] == "waiting", "the intent is still open"
        codes = [found["code"] for found in await engine.diagnostics(run.id)]
        assert codes == ["receipt.unsigned"] * 4

        gate.set()
        shown = await run.settled(timeout=10)
        assert shown["state"]["text"] == "true"
        assert shown["state"]["signed"] is True
        assert await engine.replay(run.id) == {"id": run.id, "equal": True}
    key = tmp_path / "t.db-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32


async def refusal_of(store: Path, key: str, value: dict[str, Any]) -> str:
    """What whoever posts this is told by the owner."""
    writes = open_sqlite(store)
    writes.post([(key, encode(value))])
    async with asyncio.timeout(30):
        while True:
            if body := writes.replies([key]).get(key):
                break
            await asyncio.sleep(0.01)
    writes.close()
    error = reply_from_bytes(body)[1]
    assert error is not None
    return error.code


def test_the_key_outlives_the_process(tmp_path: Path) -> None:
    receipt = Receipt(intent="i", value={"a": 1})
    signature = node_signer(tmp_path / "t.db").sign(receipt)
    again = node_signer(tmp_path / "t.db")
    assert again.verify(Receipt(intent="i", value={"a": 1}, signature=signature))
    assert not again.verify(Receipt(intent="i", value={"a": 2}, signature=signature))
    assert not again.verify(Receipt(intent="j", value={"a": 1}, signature=signature))
    assert not again.verify(Receipt(intent="i", status="error", value={"a": 1}, signature=signature))
