"""What a collection has found beside the core is looked at again where it is removed: others go on in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.backdoor import change

from treadle import Engine
from treadle.apps.snapshots import SNAPSHOTS
from treadle.kernel.errors import RunFailed
from treadle.kernel.model import Receipt, make_reference
from treadle.kernel.values import digest_bytes, encode
from treadle.runtime.collecting import Collection
from treadle.runtime.commands import Deliver, message_to_bytes
from treadle.store.open import open_store
from treadle.store.rows import Batch, Message
from treadle.testing import assert_replays
from treadle.testing.rows import run_row

DAY_NS = 86_400 * 10**9
FLOW = """
metadata: {name: flow}
workload: {fails: false}
workflow:
  - step: make
    tool: {kind: noop, result: {big: "of make", n: 7}, spec: {result: {store: {kind: disk, ttl: 1h}}}}
    next: {arcs: [{step: use}]}
  - {step: use, tool: {kind: may_fail}}
"""
BODY = encode("a payload that nobody refers to")
DIGEST = digest_bytes(BODY)


class Flaky:
    fails = True

    def __call__(self) -> str:
        if self.fails:
            raise ValueError("as it was told")
        return "done"


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
async def engine(tmp_path: Path, flaky: Flaky) -> AsyncIterator[Engine]:
    (tmp_path / "flow.yaml").write_text(FLOW)
    engine = Engine(f"sqlite:///{tmp_path}/r.db")
    engine.tool("may_fail")(lambda: flaky())
    async with engine:
        engine.deploy(str(tmp_path / "flow.yaml"))
        await ended(engine, "run")
        yield engine
        await assert_replays(engine)


async def ended(engine: Engine, id: str) -> None:
    run = await engine.start("flow", id=id)
    with contextlib.suppress(RunFailed):
        await run.result(timeout=60)


async def collect(
    engine: Engine, step: str, do: Callable[[], Awaitable[object]], *, days: int = 0
) -> dict[str, Any]:
    """A collection so many days from now; something is done between what it reads and the first such step."""
    left = [do]

    async def operate(name: str, body: dict[str, Any], /, *, home: str = "") -> Any:
        if body["step"] == step and left:
            await left.pop()()
        return await engine.operate(name, body, home=home)

    def read(question: Any) -> Awaitable[Any]:
        return engine.read(lambda reads: question(reads, engine.library.registry(reads)), long=True)

    now_ns = time.time_ns() + days * DAY_NS
    clock = engine.clock.now_ns
    done = await Collection(
        operate, read, [""], clock=clock, now_ns=now_ns, pins=engine.offers.pins
    ).collect()
    assert not left, f"it never came to {step!r}"
    return done


async def has_payload(engine: Engine) -> bool:
    return await engine.read(lambda reads: reads.has_blob(DIGEST))


async def put_down(engine: Engine) -> None:
    """As what a run that is gone has left."""
    await change(engine, lambda desk: desk.batch.blobs.update({DIGEST: BODY}))


async def test_a_run_that_is_taken_up_again_meanwhile_stays(engine: Engine, flaky: Flaky) -> None:
    async def go_on() -> None:
        flaky.fails = False
        await engine.retry("run")
        assert await (await engine.run("run")).result(timeout=60) == "done"

    assert (await collect(engine, "runs", go_on, days=400))["runs"] == 0
    assert (await (await engine.run("run")).show())["status"] == "completed"
    assert (await engine.gc(now_ns=time.time_ns() + 400 * DAY_NS))["runs"] == 1


async def test_a_run_that_operators_keep_meanwhile_stays(engine: Engine) -> None:
    async def keep() -> None:
        await engine.retention_set("flow", "forever")

    assert (await collect(engine, "runs", keep, days=400))["runs"] == 0
    assert len(await engine.list()) == 1


async def test_another_run_that_has_the_id_by_then_stays(engine: Engine) -> None:
    async def anew() -> None:
        await engine.delete("run")
        await ended(engine, "run")

    assert (await collect(engine, "runs", anew, days=400))["runs"] == 0
    assert len(await engine.list()) == 1


async def test_a_run_that_goes_on_meanwhile_keeps_its_payloads(engine: Engine, flaky: Flaky) -> None:
    digests = await engine.read(lambda reads: reads.blobs_of(1))
    assert digests

    async def go_on() -> None:
        flaky.fails = False
        await engine.retry("run")
        await (await engine.run("run")).result(timeout=60)

    assert (await collect(engine, "expired", go_on, days=1))["blobs"] == 0
    assert await engine.read(lambda reads: reads.blobs_of(1)) == digests
    assert (await engine.gc(now_ns=time.time_ns() + DAY_NS))["blobs"] == len(digests)


async def test_a_payload_that_a_message_hands_over_meanwhile_stays(engine: Engine) -> None:
    await put_down(engine)
    report = Receipt(intent="0" * 32, value=make_reference(checksum=DIGEST, size=len(BODY)))
    message = Message("end:9:9", message_to_bytes(Deliver("nobody", report)), "nobody")

    async def post() -> None:
        # Where nobody takes it: at a shard that there is not.
        def post_it(desk: Any) -> None:
            desk.store.insert_rows("inbox", "key, body, shard", [(message.key, message.body, 99)])

        await change(engine, post_it)

    assert (await collect(engine, "loose", post))["blobs"] == 0
    assert await has_payload(engine)


async def test_a_payload_that_a_run_refers_to_by_then_stays(engine: Engine) -> None:
    await put_down(engine)

    async def refer() -> None:
        await change(engine, lambda desk: desk.batch.blob_refs.append((1, DIGEST)))

    assert (await collect(engine, "loose", refer))["blobs"] == 0
    assert await has_payload(engine)


async def test_a_payload_that_is_put_down_anew_meanwhile_stays(engine: Engine) -> None:
    await put_down(engine)

    async def again() -> None:
        await change(engine, lambda desk: desk.store.keep_blobs({DIGEST: BODY}))

    assert (await collect(engine, "loose", again))["blobs"] == 0
    assert await has_payload(engine)


async def test_a_payload_that_a_snapshot_of_cells_pins_by_then_stays(engine: Engine) -> None:
    leaf = encode({"t": "Branch", "c": []})
    digest = digest_bytes(leaf)

    async def pin() -> None:
        row = (SNAPSHOTS, "app", 1, encode({"roots": {"w": digest}}))
        await change(engine, lambda desk: desk.batch.documents.append(row))

    await change(engine, lambda desk: desk.batch.blobs.update({digest: leaf}))
    await put_down(engine)
    assert (await collect(engine, "loose", pin))["blobs"] == 1, (
        "it looks again, and finds what is loose still"
    )
    assert await engine.read(lambda reads: reads.has_blob(digest))
    assert not await has_payload(engine)


async def test_the_file_of_a_payload_that_is_there_again_stays(engine: Engine, tmp_path: Path) -> None:
    large = encode("x" * 300_000)
    digest = digest_bytes(large)

    async def again() -> None:
        await change(engine, lambda desk: desk.batch.blobs.update({digest: large}))

    await again()
    assert (await collect(engine, "files", again))["blobs"] == 1
    assert await engine.read(lambda reads: reads.blob(digest)) == large


async def test_rows_of_a_run_that_begins_under_the_id_of_a_lost_one_stay(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/o.db")
    store.own()
    rows = [("run:run-1", "s", 0, encode({"run": "run-1"}))]
    store.commit(Batch(submissions=rows))
    found = store.orphans()
    assert found == {"submissions": ["run-1"]}
    store.commit(Batch(runs_new={1: run_row(1)}))
    store.remove_orphans(found)
    assert store.submission("run:run-1", "s") == {"run": "run-1"}
    store.commit(Batch(runs_removed=[1]))
    store.commit(Batch(submissions=rows))
    store.remove_orphans(store.orphans())
    assert store.submission("run:run-1", "s") is None
    store.close()


async def test_a_guest_collects_what_its_own_message_names(engine: Engine) -> None:
    """It asks by a message, in which the payloads are named that are to be removed."""
    await put_down(engine)
    async with Engine(engine.store_url) as guest:
        assert not guest.owns
        assert (await guest.gc())["blobs"] == 1
    assert not await has_payload(engine)


async def test_what_is_kept_for_ever_stays_although_the_code_of_its_run_has_to_be_loaded_first(
    tmp_path: Path,
) -> None:
    text = FLOW.replace("ttl: 1h", "scope: permanent").replace("may_fail", "noop")
    (tmp_path / "flow.yaml").write_text(text)
    store = f"sqlite:///{tmp_path}/p.db"
    async with Engine(store) as engine:
        engine.deploy(str(tmp_path / "flow.yaml"))
        await ended(engine, "run")
        (digest,) = await engine.read(lambda reads: reads.blobs_of(1))
    async with Engine(store) as engine:
        await engine.delete("run")
        await engine.gc()
        assert await engine.read(lambda reads: reads.has_blob(digest))
        assert await engine.list() == []
