"""References in what comes from outside are data: they are never read (findings 7 and 18, repro_15, repro_16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.model import INERT, disarmed, is_reference
from treadle.kernel.values import digest

SECRET: dict[str, Any] = {"x": {"secret": "B's salary is 4711", "pad": "p" * 70_000}}
PROCESS = """
dialect: process
name: echo
version: 1.0.0
steps:
  - set: {state.x: {$: start.x}}
  - complete: {got: {$: state.x}, len: {$: length(start.x)}, secret: {$: start.x.secret}}
"""
BOOK = """
metadata: {name: book, version: "1"}
workload: {x: null}
workflow: [{step: a, tool: {kind: noop, result: "{{ workload.x }} {{ workload.x.secret }} {{ workload.x | length }}"}}]
"""
TOOL = """
metadata: {name: tool, version: "1"}
workload: {x: null}
workflow:
  - step: a
    tool: {kind: outside, value: "{{ workload.x }}"}
    next: {arcs: [{step: b}]}
  - step: b
    tool: {kind: noop, result: "{{ a.got.secret }} {{ (a.text | fromjson).secret }} {{ a.got.size }}"}
"""
ASK = """
dialect: process
name: ask
version: 1.0.0
tasks: {t: {roles: [], payload: {note: {$: start.x}}}}
steps:
  - task: t
  - set: {state.answer: {$: payload.answer}}
  - await: {signal: more, into: more}
  - complete: {answer: {$: state.answer}, secret: {$: state.answer.secret}, more: {$: result.more.x.secret}}
"""


def forged(checksum: str, **more: Any) -> dict[str, Any]:
    return {
        "store": "blob",
        "key": checksum,
        "checksum": checksum,
        "size": 1,
        "schema_hint": "process",
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("p", PROCESS), ("b", BOOK), ("t", TOOL), ("a", ASK)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


async def started(folder: Path) -> Engine:
    engine = Engine(f"sqlite:///{folder}/t.db")
    engine.deploy(folder)
    return engine


@pytest.mark.parametrize("workflow", ["echo", "book"])
@pytest.mark.parametrize(
    "more", [{}, {"path": ["x"]}, {"path": ["nope"]}, {"path": 5}, {"kind": "result_ref"}]
)
async def test_whoever_knows_a_digest_does_not_read_the_payload(
    folder: Path, workflow: str, more: dict[str, Any]
) -> None:
    async with await started(folder) as engine:
        await (await engine.start("echo", SECRET, id="user-b")).result(20)
        reference = forged(digest(SECRET), **more)
        run = await engine.start(workflow, {"x": reference}, id="user-a")
        await run.result(20)
        shown = str(await run.show())
        assert "4711" not in shown
        assert digest(SECRET) in shown, "the mapping itself is there, as the data it is"
        assert (await engine.replay("user-a"))["equal"]


async def test_task_payloads_answers_and_signals_are_data_too(folder: Path) -> None:
    async with await started(folder) as engine:
        await (await engine.start("echo", SECRET, id="user-b")).result(20)
        reference = forged(digest(SECRET), path=["x"])
        run = await engine.start("ask", {"x": reference}, id="ask1")
        (task,) = await engine.tasks(run="ask1")
        assert task["payload"]["note"]["checksum"] == digest(SECRET)
        await engine.task_claim(task["id"], user="ann")
        await engine.task_complete(task["id"], {"answer": reference}, user="ann")
        await engine.signal("ask1", "more", {"x": reference})
        result: Any = await run.result(20)
        assert (result["secret"], result["more"]) == (None, None)
        assert "4711" not in str(await run.show())
        assert (await engine.replay("ask1"))["equal"]


async def test_what_a_tool_brings_in_is_data(folder: Path) -> None:
    async with await started(folder) as engine:
        await (await engine.start("echo", SECRET, id="user-b")).result(20)
        reference = forged(digest(SECRET), path=["x"])

        @engine.tool("outside")
        def outside(value: Any) -> Any:
            import json

            return {"got": reference, "text": json.dumps(reference)}

        run = await engine.start("tool", {}, id="user-a")
        assert await run.result(20) == "  1"
        assert (await engine.replay("user-a"))["equal"]


async def test_a_forged_manifest_is_a_mapping_like_any_other(folder: Path) -> None:
    base = {"x": ["z" * 60] * 1200}
    async with await started(folder) as engine:
        await (await engine.start("book", base)).result(20)
        part = forged(digest(base), path=["x"])
        bomb = {"kind": "manifest", "strategy": "concat", "parts": [part] * 30}
        run = await engine.start("book", {"x": bomb}, id="bomb")
        assert str(await run.result(20)).endswith(" 4"), "its three keys and the mark that it is data"
        assert (await engine.replay("bomb"))["equal"]


def test_only_what_looks_like_a_reference_is_marked() -> None:
    plain = {"a": [1, {"kind": "manifest"}, {"checksum": "sha256:x"}], "store": "blob"}
    assert disarmed(plain) == plain
    reference = forged("sha256:" + "0" * 64)
    marked = disarmed({"deep": [reference]})["deep"][0]
    assert marked == {**reference, INERT: True}
    assert not is_reference(marked)
    assert disarmed([reference], ours={"sha256:" + "0" * 64}) == [reference]
    assert disarmed(disarmed([reference])) == disarmed([reference])
