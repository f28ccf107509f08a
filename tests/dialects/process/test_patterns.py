"""Patterns in the schemas of payloads and of people's answers: matched in bounded work, on the core's thread."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.engine import Engine
from treadle.kernel.errors import InputInvalid
from treadle.lang.text import parse
from treadle.process import payload, process, task

TEXT = "a" * 60 + "!"


def text(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"t": {"pattern": pattern}}}


@pytest.mark.parametrize(
    ("pattern", "told"), [("^(a+)+$", "does not match"), (r"^(a+)+\1$", "given up after too many steps")]
)
async def test_neither_a_payload_nor_an_answer_stops_the_engine(pattern: str, told: str) -> None:
    @process("Fill", version="1.0.0")
    def fill(p: Any) -> None:
        p.ask(task("fill", roles=["clerk"], schema=text(pattern)))
        p.complete(payload)

    @process("Begin", version="1.0.0", start=text(pattern))
    def begin(p: Any) -> None:
        p.complete(1)

    async with Engine("memory:") as engine:
        engine.deploy(fill)
        engine.deploy(begin)
        with pytest.raises(InputInvalid) as refused:
            await engine.start("Begin", {"t": TEXT})
        assert told in str(refused.value.details)
        run = await engine.start("Fill", {})
        await run.settled(until_wait=True, timeout=30)
        (row,) = await engine.tasks(run=run.id)
        await engine.task_claim(row["id"], user="ann", roles=["clerk"])
        with pytest.raises(InputInvalid, match=told):
            await engine.task_complete(row["id"], {"t": TEXT}, user="ann", roles=["clerk"])
        await engine.task_complete(row["id"], {"t": "aa"}, user="ann", roles=["clerk"])
        assert await run.result(timeout=30) == {"t": "aa"}


def test_a_pattern_that_is_none_is_found_before_a_run() -> None:
    source = "dialect: process\nname: P\nstart: {schema: {properties: {a: {pattern: 'x*+'}}}}\nsteps: []"
    _, problems = DIALECT.compile(parse(source))
    assert [problem.code for problem in problems.errors] == ["BAD_SCHEMA"]
    assert "nothing to repeat" in problems.errors[0].message
