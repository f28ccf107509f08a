"""Subjects of an engine, each without one."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.host.house_methods import HouseMethods
from treadle.host.reach import Reaches
from treadle.host.schedule_methods import ScheduleMethods
from treadle.host.task_methods import TaskMethods
from treadle.kernel.errors import TreadleError, ValueRefused
from treadle.testing import VirtualClock


class Asked:
    """A host that writes down what it is asked for, and answers with what it was given."""

    def __init__(self, *, home: str | None = None, answer: Any = None) -> None:
        self.asks = self.reading = self.seat = self.watching = self
        # As one of several members: at which run a task is decided.
        self.member = home
        self.answer = answer
        self.operations: list[tuple[str, dict[str, Any], str]] = []

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        self.operations.append((name, body, home))
        return self.answer or {}

    def watch(self, run: str) -> None: ...

    async def read(self, question: Any, *, long: bool = False) -> Any:
        return self.member


def of(kind: type[Reaches], host: Asked) -> Any:
    handed: Any = dict.fromkeys(("store_url", "library", "dialects", "secrets", "offers"))
    return kind(host, **handed, clock=VirtualClock())  # type: ignore[arg-type]


async def test_an_inbox_needs_no_engine() -> None:
    host = Asked(answer={"id": "t"})
    inbox = of(TaskMethods, host)
    assert await inbox.task_complete("t", {"ok": True}, user="ann", roles=["clerk"]) == {"id": "t"}
    ((name, body, home),) = host.operations
    assert (name, body["name"], body["data"], home) == ("task", "complete", {"ok": True}, "")


async def test_of_several_members_a_task_is_decided_where_its_run_is() -> None:
    host = Asked(home="run-7")
    await of(TaskMethods, host).task_claim("t", user="ann")
    assert [home for _, _, home in host.operations] == ["run-7"]


async def test_what_cannot_be_is_refused_before_anybody_is_asked() -> None:
    host = Asked()
    with pytest.raises(TreadleError):
        await of(TaskMethods, host).task_claim("t", user="")
    with pytest.raises(ValueRefused):
        await of(ScheduleMethods, host).schedule_pause(7)
    with pytest.raises(TreadleError):
        await of(HouseMethods, host).retention_set("", "7d")
    assert host.operations == []


async def test_a_paused_schedule_is_one_that_was_changed() -> None:
    host = Asked()
    await of(ScheduleMethods, host).schedule_pause("nightly")
    assert host.operations == [
        ("schedule", {"do": "change", "name": "nightly", "fields": {"paused": True}}, "")
    ]
