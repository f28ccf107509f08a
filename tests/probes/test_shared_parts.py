"""Values that hold one part again and again. In memory they are small; written out they are more than any machine
holds. Whoever hands one in is told so at once, and the engine goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import Skill
from treadle.kernel.errors import TreadleError, ValueRefused
from treadle.kernel.model import make_reference
from treadle.kernel.values import encode
from treadle.lang.handed import check_written, from_caller
from treadle.runtime.payloads import put_back
from treadle.testing import ScriptedModel, assert_replays

DEADLINE_S = 60.0


def doubled(times: int) -> list[Any]:
    value: list[Any] = [1]
    for _ in range(times):
        value = [value, value]
    return value


def mapped(times: int) -> dict[str, Any]:
    value: dict[str, Any] = {"n": 1}
    for _ in range(times):
        value = {"left": value, "right": (value, value)}
    return value


def repeated() -> list[str]:
    return ["x" * 1_000_000] * 1_000


class Odd(list[Any]):
    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


BOMBS: dict[str, Callable[[], Any]] = {
    "lists in lists": lambda: doubled(40),
    "mappings and tuples": lambda: mapped(40),
    "one text": repeated,
    "bytes": lambda: {"a": [b"x" * 1_000_000] * 100_000},
    "one wide list": lambda: [[0] * 1_000] * 100_000,
    "behind much else": lambda: [*range(50_000), doubled(60)],
    "in a class of its own": lambda: Odd([doubled(40), doubled(40)]),
}
HARMLESS: dict[str, Callable[[], Any]] = {
    "many numbers": lambda: [*range(100_000)],
    "shared a little": lambda: [["x" * 1_000] * 10] * 10,
    "many rows with one name": lambda: [{"country": "Norway", "n": n} for n in range(50_000)],
    "one large text": lambda: "x" * 17_000_000,
    "one large text a few times": lambda: ["x" * 1_000_000] * 60,
    "doubled ten times": lambda: doubled(10),
}


@pytest.mark.parametrize("what", BOMBS)
def test_what_is_absurdly_larger_written_out_is_refused(what: str) -> None:
    with pytest.raises(ValueRefused, match="the same parts again and again"):
        from_caller(BOMBS[what]())


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_merely_large_is_not(what: str) -> None:
    value = HARMLESS[what]()
    check_written(value)
    assert encode(from_caller(value)) == encode(value)


def test_what_is_inside_itself_is_refused_for_its_depth() -> None:
    one: list[Any] = []
    one.append(one)
    with pytest.raises(ValueRefused, match="nested deeper"):
        from_caller(one)


FLOWS = {
    "tool": "metadata: {name: tool, version: '1'}\nworkflow: [{step: a, tool: {kind: bomb}}]\n",
    "awaited": "metadata: {name: awaited, version: '1'}\nworkflow: [{step: a, tool: {kind: awaited}}]\n",
    "frame": "metadata: {name: frame, version: '1'}\nworkflow: [{step: a, tool: {kind: frame}}]\n",
    "called": "dialect: process\nname: called\n"
    "steps: [{call: {transport: called, on_failure: [{fail: {message: x, code: {$: error.code}}}]}}]\n",
    "node": "id: node\nname: N\nentry: a\nnodes: {a: {name: A, run: called}}\nedges: []\n",
    "skilled": "id: skilled\nname: S\nentry: a\nnodes: {a: {name: A, instruction: x, skills: [s]}}\nedges: []\n",
}


async def test_whoever_hands_one_in_is_told_and_the_engine_goes_on(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 't.db'}")

    @engine.tool("bomb")
    def bomb() -> Any:
        return repeated()

    @engine.tool("awaited")
    async def awaited() -> Any:
        return repeated()

    @engine.tool("frame")
    async def frame(call: Any = None) -> Any:
        await call.progress("seen", repeated())

    @engine.transport("called")
    def called(payload: Any) -> Any:
        return repeated()

    skill = Skill(id="s")

    @skill.tool("grow")
    def grow(input: Any, ctx: Any) -> Any:
        return repeated()

    engine.register(skill)
    model = ScriptedModel({"run": {"a": [{"tool_calls": [{"tool": "grow", "input": {}}], "data": {"n": 1}}]}})
    for name, text in FLOWS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        engine.deploy(tmp_path / f"{name}.yaml")
    async with engine:
        told: dict[str, str] = {}
        for name in FLOWS:
            run = await engine.start(name, None, id=name, model=model if name == "skilled" else None)
            shown = await run.settled(timeout=DEADLINE_S)
            told[name] = shown["status"]
            assert "INTERNAL" not in str(shown)
        assert told == {**dict.fromkeys(FLOWS, "failed"), "skilled": "completed"}
        doors: list[Callable[[], Awaitable[Any]]] = [
            lambda: engine.start("tool", {"a": repeated()}),
            lambda: engine.signal("tool", "x", repeated()),
            lambda: engine.patch("tool", {"a": repeated()}),
            lambda: engine.retry("tool", input=repeated()),
        ]
        for door in doors:
            with pytest.raises(TreadleError, match="again and again"):
                await door()
        await assert_replays(engine)


def test_a_payload_that_refers_to_another_many_times_is_put_together_once() -> None:
    """`show` of a run whose state holds the same payload again and again took minutes, and its reader with it."""
    names = [f"sha256:{number:064x}" for number in range(60)]
    payloads: dict[str, Any] = {names[0]: "x" * 100_000}
    for below, name in pairwise(names):
        reference = make_reference(checksum=below, size=1, schema_hint="process")
        payloads[name] = [reference, reference]
    loaded: list[str] = []

    def load(checksum: str) -> Any:
        loaded.append(checksum)
        return payloads[checksum]

    value = put_back(load, make_reference(checksum=names[-1], size=1, schema_hint="process"))
    assert sorted(loaded) == sorted(payloads)
    for _ in range(59):
        first, last = value
        value = first
    assert value == payloads[names[0]]
    assert last == value
