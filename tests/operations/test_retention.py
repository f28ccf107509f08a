"""How long ended runs are kept: by workflow, by how they ended, by age; what servers remove by themselves; files that
shrink."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.host.housekeeping import Housekeeping
from treadle.kernel.errors import DefinitionError, RunFailed, TreadleError
from treadle.kernel.model import Receipt, make_reference
from treadle.kernel.values import digest_bytes, encode
from treadle.lang.retention import NEVER_NS, Retention
from treadle.runtime.commands import Deliver, message_to_bytes
from treadle.runtime.payloads import KEEP
from treadle.runtime.registry import kept_until
from treadle.server.app import create_app
from treadle.store.open import open_store
from treadle.store.rows import Batch, Message
from treadle.store.run_rows import RunRow
from treadle.store.sqlite import SqliteDialect
from treadle.testing import VirtualClock, assert_replays
from treadle.testing.rows import record, run_row

DAY_S = 86_400
DAY_NS = DAY_S * 10**9

STATED = """
metadata: {name: stated, version: "1", retention: {completed: 2d, failed: forever}}
workload: {fails: false}
workflow:
  - step: only
    tool: {kind: may_fail, fails: "{{ workload.fails }}"}
"""
PLAIN = STATED.replace("name: stated", "name: plain").replace(
    ", retention: {completed: 2d, failed: forever}", ""
)


def may_fail(fails: bool) -> str:
    if fails:
        raise ValueError("as it was told")
    return "x" * 2000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    for name, text in (("stated", STATED), ("plain", PLAIN)):
        (tmp_path / f"{name}.yaml").write_text(text)
    engine = clock.engine(f"sqlite:///{tmp_path}/r.db")
    engine.tool("may_fail")(may_fail)
    async with engine:
        engine.deploy(str(tmp_path))
        for workflow in ("stated", "plain"):
            for outcome, fails in (("ok", False), ("bad", True)):
                await ended(engine, workflow, f"{workflow}-{outcome}", fails=fails)
        yield engine
        await assert_replays(engine)


async def ended(engine: Engine, workflow: str, id: str, **input: Any) -> None:
    run = await engine.start(workflow, input, id=id)
    with contextlib.suppress(RunFailed):
        await run.result(timeout=60)


async def left(engine: Engine) -> set[str]:
    return {row["id"] for row in await engine.list()}


async def retain_until(engine: Engine, id: str) -> str | None:
    until: str | None = (await (await engine.run(id)).show())["retain_until"]
    return until


async def test_a_definition_says_by_status_how_long_its_runs_are_kept(
    engine: Engine, clock: VirtualClock
) -> None:
    assert await retain_until(engine, "stated-bad") is None, "for ever has no date"
    await clock.advance(3 * DAY_S)
    preview = await engine.gc(dry_run=True)
    assert (preview["runs"], preview["workflows"]) == (1, {"stated": {"completed": 1}})
    assert len(await left(engine)) == 4, "a preview changes nothing"
    assert (await engine.gc())["runs"] == 1
    assert await left(engine) == {"stated-bad", "plain-ok", "plain-bad"}
    await clock.advance(40 * DAY_S)
    await engine.gc()
    assert await left(engine) == {"stated-bad"}, (
        "the others have the 30 days of a definition that says nothing"
    )


async def test_operators_win_over_definitions_and_a_workflow_over_all(
    engine: Engine, clock: VirtualClock
) -> None:
    await engine.retention_set("*", {"completed": "10d", "failed": "1d"})
    await engine.retention_set("plain", {"completed": "forever"})
    assert [row["workflow"] for row in await engine.retentions()] == ["plain", "*"]
    assert await retain_until(engine, "plain-ok") is None
    assert await retain_until(engine, "stated-bad") is not None
    await clock.advance(2 * DAY_S)
    preview = await engine.gc(dry_run=True)
    assert preview["workflows"] == {"plain": {"failed": 1}, "stated": {"failed": 1}}
    assert (await engine.gc())["runs"] == 2
    assert await left(engine) == {"plain-ok", "stated-ok"}
    await clock.advance(400 * DAY_S)
    await engine.gc()
    assert await left(engine) == {"plain-ok"}
    assert (await engine.retention_remove("plain"))["keep"] is None
    with pytest.raises(TreadleError, match="nobody has said"):
        await engine.retention_remove("plain")
    await engine.gc()
    assert await left(engine) == set(), "as is said of all again"


async def test_servers_remove_by_themselves_what_operators_spoke_of_and_nothing_else(
    engine: Engine, clock: VirtualClock
) -> None:
    house, other = Housekeeping(engine), Housekeeping(engine)
    await clock.advance(40 * DAY_S)
    assert not await house.step(), "nobody has said anything: what definitions say is for `treadle gc`"
    await engine.retention_set("plain", {"failed": "30d"})
    assert await house.step()
    assert await left(engine) == {"plain-ok", "stated-ok", "stated-bad"}
    await engine.retention_set("plain", "30d")
    assert not await other.step(), "it is done for now, by whoever came first"
    await clock.advance(3_660)
    assert await other.step()
    assert await left(engine) == {"stated-ok", "stated-bad"}
    assert not await house.step()


async def test_retention_over_http(engine: Engine) -> None:
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
        said = await http.put("/retention/plain", json={"keep": {"failed": "90d"}})
        assert (said.status_code, said.json()) == (200, {"workflow": "plain", "keep": {"failed": "90d"}})
        await http.put("/retention/%2A", json={"keep": "30d"})
        rows = (await http.get("/retention")).json()["items"]
        assert [row["workflow"] for row in rows] == ["plain", "*"]
        wrong = await http.put("/retention/plain", json={"keep": {"running": "1d"}})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "RETENTION_INVALID")
        gone = await http.delete("/retention/plain")
        assert gone.json()["keep"] is None
        assert (await http.delete("/retention/plain")).json()["code"] == "RETENTION_NOT_FOUND"
        await http.delete("/retention/%2A")
    assert await engine.retentions() == []


@pytest.mark.parametrize("said", ["soon", {}, {"waiting": "1d"}, {"failed": -1}, ["1d"], None])
def test_what_retention_cannot_mean_is_refused(said: object) -> None:
    with pytest.raises(DefinitionError, match="retention"):
        Retention.read(said)


def test_no_age_leads_beyond_the_last_date() -> None:
    long = Retention.read("1000w").ages_ns["failed"]
    assert long == 7000 * DAY_NS
    assert kept_until(2**62, long) == min(2**62 + long, NEVER_NS)
    assert kept_until(2**62, Retention.read("forever").ages_ns["failed"]) == NEVER_NS


async def test_a_run_that_is_kept_for_a_thousand_years_can_end(clock: VirtualClock, tmp_path: Path) -> None:
    text = "dialect: process\nname: old\nversion: '1'\nretention: 365000d\nsteps:\n  - complete: {}\n"
    (tmp_path / "old.yaml").write_text(text)
    async with clock.engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        await ended(engine, "old", "a")
        await engine.gc(now_ns=2**62)
        assert await left(engine) == {"a"}
        await assert_replays(engine)


async def test_the_file_shrinks_with_what_is_collected(engine: Engine, tmp_path: Path) -> None:
    for n in range(40):
        await ended(engine, "plain", f"p{n}", fails=False, pad=os.urandom(8000).hex())
    file = tmp_path / "r.db"
    await engine.read(lambda reads: reads.last_run_no())
    done = await engine.gc(now_ns=2**62)
    assert done["runs"] == 43
    assert done["freed"] > 300_000
    assert file.stat().st_size < 400_000
    assert (await engine.gc())["freed"] == 0


async def test_a_file_of_an_earlier_version_is_written_anew_once(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = SqliteDialect(path).connect()
    connection.execute("PRAGMA auto_vacuum=NONE")
    connection.execute("CREATE TABLE first (x)")
    connection.execute("DROP TABLE first")
    connection.close()
    store = open_store(f"sqlite:///{path}")
    store.own()
    assert store._dialect.connect().execute("PRAGMA auto_vacuum").fetchone()[0] == 0
    digest = "sha256:" + "0" * 64
    store.insert_rows("blobs", "digest, size, at_ns, body", [(digest, 3_000_000, 0, b"x" * 3_000_000)])
    store.commit(Batch(runs_new={no: run_row(no) for no in (1, 2, 3)}))
    store.commit(Batch(records=[record(no, seq) for no in (1, 2, 3) for seq in (1, 2)]))
    store.commit(Batch(runs_removed=[1, 3]))
    mark = store.moved((-1, -1))[0]
    store.sweep()
    assert store.shrink() == 0, "a server does not stop for it by itself"
    assert store.shrink(rewrite=True) > 2_500_000
    assert store.shrink(rewrite=True) == 0
    assert store._dialect.connect().execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    assert store.moved(mark) == (mark, []), "records have the places that they had"
    store.commit(Batch(records=[record(2, 3)]))
    assert [run.id for run in store.moved(mark)[1]] == ["run-2"], "what is new is seen"
    store.close()


async def test_a_payload_that_waits_for_its_receipt_is_not_collected(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/b.db")
    store.own()
    body = b"y" * 200_000
    digest = digest_bytes(body)
    store.keep_blobs({digest: body})
    hour_ns = 3_600 * 10**9
    assert store.sweep(loose_before_ns=time.time_ns() - 24 * hour_ns) == 0
    assert store.blob(digest) == body
    assert store.sweep(loose_before_ns=time.time_ns() + 25 * hour_ns) == 1
    assert not store.has_blob(digest)
    store.close()


async def test_a_payload_that_a_worker_hands_to_a_server_waits_for_its_receipt(
    engine: Engine, clock: VirtualClock
) -> None:
    body = encode("z" * 100)
    digest = digest_bytes(body)

    async def is_there() -> bool:
        return await engine.read(lambda reads: reads.has_blob(digest))

    await engine.operate(KEEP, {"digest": digest, "payload": body})
    await engine.gc()
    assert await is_there()
    await clock.advance(2 * DAY_S)
    await engine.gc()
    assert not await is_there()


async def test_a_payload_that_its_receipt_came_for_goes_with_its_run(tmp_path: Path) -> None:
    """It waits for nobody any more: a day after it was put down is not a day after its date."""
    store = open_store(f"sqlite:///{tmp_path}/b.db")
    store.own()
    body = b"y" * 200_000
    digest = digest_bytes(body)
    store.keep_blobs({digest: body})
    row = RunRow(no=1, id="r", dialect="toy", workflow="w", version=None, definition="sha256:0")
    store.commit(Batch(runs_new={1: row}, blobs={digest: body}, blob_refs=[(1, digest)]))
    long_ago_ns = time.time_ns() - 24 * 3_600 * 10**9
    assert store.sweep(loose_before_ns=long_ago_ns) == 0, "a run refers to it"
    store.commit(Batch(blob_refs_done=[(1, digest)]))
    assert store.sweep(loose_before_ns=long_ago_ns) == 1
    store.close()


async def test_a_payload_that_a_message_under_way_hands_over_is_not_collected(tmp_path: Path) -> None:
    """The run that made it may be gone before the one that it is for has read of it."""
    store = open_store(f"sqlite:///{tmp_path}/b.db")
    store.own()
    body = b"y" * 200_000
    digest = digest_bytes(body)
    report = Receipt(intent="0" * 32, value=make_reference(checksum=digest, size=len(body)))
    message = Message("end:1:2", message_to_bytes(Deliver("parent", report)), "parent")
    store.commit(Batch(inbox=[message]))
    store.insert_rows("blobs", "digest, size, at_ns, body", [(digest, len(body), 0, body)])
    assert store.sweep() == 0
    assert store.blob(digest) == body
    store.commit(Batch(inbox_done=["end:1:2"]))
    assert store.sweep() == 1
    store.close()
