"""Somebody's module may take its time as it is imported, or never come back: the core does not wait for it."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from treadle import Engine
from treadle.definitions import dialects
from treadle.definitions.dialects import Dialects
from treadle.definitions.library import Library
from treadle.host.offers import DialectOffers
from treadle.kernel.errors import UnknownWorkflow

APP = """
from dataclasses import dataclass

import a_gate_of_the_test

from treadle import reactive as rx

a_gate_of_the_test.pass_through()


@rx.schema("t/Said@1")
@dataclass(frozen=True, slots=True)
class Said:
    who: str


@rx.schema("t/State@1")
@dataclass(frozen=True, slots=True)
class State:
    count: int = 0


@rx.workflow("t/Hears@1", state=State, events=[Said], key="who", effects=[])
def hears(state, event, ctx):
    return rx.Output(State((state or State()).count + 1))


app = rx.App("hearing", [hears])
"""

ORDER = Path(__file__).parents[2] / "examples" / "order.yaml"


class Gate:
    """Open, until the test closes it; says which threads came to it."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()
        self.threads: list[str] = []

    def pass_through(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.reached.set()
        assert self.is_open.wait(60), "the test opens it"

    def close(self) -> None:
        self.reached.clear()
        self.threads.clear()
        self.is_open.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    module = ModuleType("a_gate_of_the_test")
    module.pass_through = gate.pass_through  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_gate_of_the_test", module)
    yield gate
    gate.is_open.set()


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, 60)


async def something_else_goes_on(engine: Engine) -> None:
    """The core takes a command, decides it, and answers."""
    async with asyncio.timeout(60):
        await engine.look(lambda view: None)


def asked_by_a_guest(file: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What another process asks for that has this application: its deploys, and to apply it."""
    file.write_text(APP, "utf-8")
    guest = Library(Dialects())
    found = guest.load(f"{file}:app")
    deploys = [guest.deploy_of(one, validation="strict").to_value() for one in found]
    manifest = found[0].body["manifest"]
    return deploys, {"app": "hearing", "manifest": manifest, "proposal": None, "deploys": deploys}


@pytest.mark.parametrize("name", ["deploy", "apply"])
async def test_an_application_of_another_process_is_imported_beside_the_core(
    tmp_path: Path, gate: Gate, name: str
) -> None:
    deploys, apply = asked_by_a_guest(tmp_path / "app.py")
    asked = deploys[0] if name == "deploy" else apply
    gate.close()
    async with Engine(f"sqlite:///{tmp_path / 'it.db'}") as engine:
        asking = asyncio.ensure_future(
            engine.operate(name, asked, home="" if name == "deploy" else "hearing")
        )
        await reached(gate)
        await something_else_goes_on(engine)
        assert not asking.done()
        gate.is_open.set()
        await asking
        assert len(await engine.publish("t/Said@1", {"who": "ann"})) == 1
    assert gate.threads == ["treadle-beside"]


async def test_what_cannot_be_imported_is_refused_as_missing(tmp_path: Path, gate: Gate) -> None:
    _, apply = asked_by_a_guest(tmp_path / "app.py")
    (tmp_path / "app.py").write_text("raise SystemExit('not today')", "utf-8")
    async with Engine(f"sqlite:///{tmp_path / 'it.db'}") as engine:
        with pytest.raises(UnknownWorkflow) as refused:
            await engine.operate("apply", apply, home="hearing")
        assert refused.value.code == "CODE_MISSING"
        await something_else_goes_on(engine)


async def test_a_dialect_is_imported_beside_the_core(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> Any:
        if name == "treadle.dialects.playbook":
            gate.pass_through()
        return importlib.import_module(name)

    store = f"sqlite:///{tmp_path / 'it.db'}"
    async with Engine(store) as engine:
        (order,) = engine.deploy(str(ORDER))
        deploy = engine.library.deploy_of(order, validation="strict").to_value()
    monkeypatch.setattr(dialects, "import_module", import_module)
    gate.close()
    async with Engine(store) as engine:
        asking = asyncio.ensure_future(engine.operate("deploy", deploy))
        await reached(gate)
        await something_else_goes_on(engine)
        assert not asking.done()
        gate.is_open.set()
        assert (await asking)["status"] == "available"
    assert gate.threads == ["treadle-beside"]


async def test_a_collection_imports_applications_beside_the_core(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = DialectOffers.pins

    def importing(offers: DialectOffers) -> Any:
        gate.pass_through()
        return made(offers)

    monkeypatch.setattr(DialectOffers, "pins", importing)
    gate.close()
    async with Engine(f"sqlite:///{tmp_path / 'it.db'}") as engine:
        asking = asyncio.ensure_future(engine.gc())
        await reached(gate)
        await something_else_goes_on(engine)
        gate.is_open.set()
        assert (await asking)["runs"] == 0
    assert [name.rpartition("_")[0] for name in gate.threads] == ["treadle-long-reader"]
