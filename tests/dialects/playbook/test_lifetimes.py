"""PLAYBOOK §5.12: results by reference live as long as `store: {scope, ttl}` says, from the run's end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.lang.duration import instant_text, parse_instant

from .harness import Lab, problems_of

HOUR_NS = 3600 * 10**9
PLAYBOOK = """
metadata: {name: %(name)s}
workflow:
  - step: make
    tool: {kind: noop, result: {big: "%(text)s", n: 7}, spec: {result: {store: {kind: disk %(store)s}}}}
    next: {arcs: [{step: use, when: "{{ event.result.n == 7 }}"}]}
  - {step: use, tool: {kind: noop, result: "{{ make.n }}"}}
"""


async def ended(engine: Engine, tmp_path: Path, store: str, name: str = "lives") -> Any:
    file = tmp_path / f"{name}.yaml"
    file.write_text(PLAYBOOK % {"store": store, "name": name, "text": f"text of {name}"})
    (definition,) = engine.load(str(file))
    run = await engine.start(definition)
    assert await run.result(timeout=20) == 7
    return run


async def stored(run: Any) -> dict[str, Any]:
    shown = await run.show()
    reference = shown["state"]["steps"]["make"]["result"]
    return {**reference, "ended_ns": parse_instant(shown["ended_at"])}


@pytest.mark.house
async def test_a_ttl_counts_from_the_end_of_the_run(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await ended(engine, tmp_path, ", ttl: 1h")
        reference = await stored(run)
        ends = reference["ended_ns"] + HOUR_NS
        assert abs(parse_instant(reference["expires_at"]) - ends) < 10**9
        digest = reference["checksum"]
        await engine.gc(now_ns=ends - 10**10)
        assert await engine.read(lambda reads: reads.has_blob(digest))
        assert (await engine.replay(run.id))["equal"] is True
        assert (await engine.gc(now_ns=ends + 10**10))["blobs"] == 1
        assert not await engine.read(lambda reads: reads.has_blob(digest))
        answer = await engine.replay(run.id)
        assert answer["equal"] is None
        assert "blob expired" in answer["error"]["message"]
        assert (await run.show())["status"] == "completed"


@pytest.mark.house
@pytest.mark.parametrize(
    ("store", "after_a_day"),
    [
        ("", True),
        (", scope: execution", True),
        (", scope: workflow", True),
        (", scope: permanent, ttl: 1h", True),
        (", scope: step", False),
        (", scope: execution, ttl: 3600", False),
        (", scope: workflow, ttl: 2d", True),
    ],
)
async def test_scopes(tmp_path: Path, store: str, after_a_day: bool) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await ended(engine, tmp_path, store)
        reference = await stored(run)
        await engine.gc(now_ns=reference["ended_ns"] + 24 * HOUR_NS)
        assert await engine.read(lambda reads: reads.has_blob(reference["checksum"])) is after_a_day
        assert (reference["expires_at"] is None) is (after_a_day and "2d" not in store)


@pytest.mark.house
async def test_what_is_permanent_outlives_its_run_and_nothing_else_does(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        kept = await stored(await ended(engine, tmp_path, ", scope: permanent", "kept"))
        gone = await stored(await ended(engine, tmp_path, ", scope: execution", "gone"))
        for _ in range(2):
            await engine.gc(now_ns=kept["ended_ns"] + 365 * 24 * HOUR_NS)
        assert await engine.list() == []
        assert await engine.read(lambda reads: reads.has_blob(kept["checksum"]))
        assert not await engine.read(lambda reads: reads.has_blob(gone["checksum"]))


@pytest.mark.house
async def test_a_payload_that_another_run_has_too_stays(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        first = await ended(engine, tmp_path, ", ttl: 1h", "same")
        await ended(engine, tmp_path, ", ttl: 9d", "same")
        reference = await stored(first)
        await engine.gc(now_ns=reference["ended_ns"] + 24 * HOUR_NS)
        assert await engine.read(lambda reads: reads.has_blob(reference["checksum"]))


async def test_results_of_a_loop_expire_too(tmp_path: Path) -> None:
    file = tmp_path / "loop.yaml"
    file.write_text("""
workflow:
  - step: each
    loop: {in: "{{ range(3) }}", iterator: n, spec: {mode: parallel}}
    tool: {kind: noop, result: {n: "{{ n }}"}, spec: {result: {store: {kind: disk, ttl: 1h}}}}
""")
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        (definition,) = engine.load(str(file))
        run = await engine.start(definition)
        results = (await run.result(timeout=20))["results"]
        assert all(item["expires_at"] for item in results)
        ended_ns = parse_instant((await run.show())["ended_at"])
        assert (await engine.gc(now_ns=ended_ns + 2 * HOUR_NS))["blobs"] == 3


@pytest.mark.house
async def test_a_task_that_reads_what_expired_gets_an_outcome_it_can_handle(tmp_path: Path) -> None:
    """A run is retried after its payload is gone."""
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    broken = [True]

    @engine.tool("fragile")
    def fragile() -> str:
        if broken[0]:
            raise RuntimeError("not yet")
        return "well"

    file = tmp_path / "again.yaml"
    file.write_text("""
workflow:
  - step: make
    tool: {kind: noop, result: {n: 7}, spec: {result: {store: {kind: disk, ttl: 1h}}}}
    next: {arcs: [{step: use}]}
  - step: use
    tool: [{name: f, kind: fragile}, {name: out, kind: noop, result: "{{ make.n }}"}]
""")
    async with engine:
        (definition,) = engine.load(str(file))
        run = await engine.start(definition)
        shown = await run.settled(timeout=20)
        assert shown["status"] == "failed"
        await engine.gc(now_ns=parse_instant(shown["ended_at"]) + 2 * HOUR_NS)
        broken[0] = False
        await engine.retry(run.id)
        shown = await run.settled(timeout=20)
        assert shown["status"] == "failed"
        error = shown["error"]["details"]["error"]
        assert (error["kind"], error["code"]) == ("storage_access", "REFERENCE_NOT_AVAILABLE")
        assert "blob expired" in error["message"]


def test_expires_at_is_null_while_the_run_goes_on() -> None:
    lab = Lab("""
    workflow:
      - step: make
        tool: {kind: echo, value: {n: 1}, spec: {result: {store: {kind: disk, ttl: 60}}}}
        next: {arcs: [{step: rest}]}
      - {step: rest, tool: {kind: wait, seconds: 100}}
    """).run()
    assert lab.steps["make"]["result"]["expires_at"] is None
    lab.advance(100).replays()
    assert lab.steps["make"]["result"]["expires_at"] == instant_text(lab.driver.now_ns + 60 * 10**9)


@pytest.mark.parametrize(
    ("store", "code"), [({"ttl": "soon"}, "ttl_invalid"), ({"scope": "galaxy"}, "scope_invalid")]
)
def test_a_store_that_makes_no_sense_is_refused(store: dict[str, Any], code: str) -> None:
    spec = json.dumps({"result": {"store": store}})
    for text in (
        f"workflow: [{{step: a, tool: {{kind: noop, spec: {spec}}}}}]",
        f"executor: {{spec: {spec}}}\nworkflow: [{{step: a, tool: {{kind: noop}}}}]",
    ):
        assert code in [problem.code for problem in problems_of(text)]
