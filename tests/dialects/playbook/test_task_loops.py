"""A loop around one task costs as much for its last item as for its first (work is counted, not timed)."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from treadle import Engine
from treadle.runtime.staging import Staging
from treadle.testing import assert_replays
from treadle.tools.protocol import ToolCall
from treadle.work.job import StaysOpen

from .harness import FakeTool, Lab

LOOP = """
    workflow:
      - step: a
        tool:
          - {name: each, kind: %s, value: "{{ n }}", loop: {in: "{{ range(workload.n) }}", iterator: n}}
          - {name: out, kind: noop, result: "{{ each.results }}"}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: noop, result: ["{{ a | length }}", "{{ a[-1] }}"]}}
    """


def lab_of(kind: str, function: Any) -> Lab:
    """A lab whose tool must not be repeated: what was finished is saved before each of its calls."""
    lab = Lab(LOOP % kind)
    lab.tools["count"] = FakeTool("count", function, idempotent=False)
    return lab


def bytes_for(kind: str, items: int, last: Any) -> int:
    lab = lab_of(kind, lambda config, call: "r" * 40).run({"n": items})
    while lab.status == "waiting":
        lab.advance(60)
    assert (lab.status, lab.result) == ("completed", [items, last])
    return lab.written + sum(len(stored.body) for stored in lab.driver.journal)


@pytest.mark.parametrize(("kind", "last"), [("count", "r" * 40), ("wait, seconds: 60", {"status": "waited"})])
def test_a_loop_around_a_task_writes_in_proportion_to_its_items(kind: str, last: Any) -> None:
    little, much = bytes_for(kind, 100, last), bytes_for(kind, 1000, last)
    assert much < 15 * little, f"{little:,} bytes for 100 items, {much:,} for 1,000"


def test_a_worker_that_dies_in_the_middle_leaves_every_finished_item() -> None:
    done: list[int] = []

    def count(config: dict[str, Any], call: ToolCall) -> Any:
        if config["value"] == 50 and done.count(49) and len(done) == 50:
            done.append(-1)
            raise StaysOpen("the worker dies here")
        done.append(config["value"])
        return f"{config['value']} " + "x" * 1000

    lab = lab_of("count", count).start({"n": 120})
    with pytest.raises(StaysOpen):
        lab.work()
    lab.work().replays()
    assert [n for n in done if n >= 0] == list(range(120))
    assert lab.result == [120, "119 " + "x" * 1000]


@pytest.mark.at_home("what a worker elsewhere refers to is in the store already")
async def test_each_payload_of_a_loop_goes_to_the_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pb.yaml").write_text("metadata: {name: once}\n" + dedent(LOOP % "once"))
    staged: list[str] = []
    hold = Staging.hold

    def seen(staging: Staging, hot: Any, blobs: dict[str, bytes]) -> None:
        staged.extend(blobs)
        hold(staging, hot, blobs)

    monkeypatch.setattr(Staging, "hold", seen)
    calls: list[int] = []
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:

        @engine.tool("once")
        def once(value: int) -> Any:
            calls.append(value)
            return {"n": value, "text": "t" * 300}

        (definition,) = engine.load(str(tmp_path / "pb.yaml"))
        run = await engine.start(definition, {"n": 200})
        assert await run.result(timeout=60) == [200, {"n": 199, "text": "t" * 300}]
        await assert_replays(engine)
    assert calls == list(range(200))
    assert len(staged) > 10
    assert len(staged) == len(set(staged))
