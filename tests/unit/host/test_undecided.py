"""A run that cannot be decided any more: it says so, holds nobody up, and can be ended or forked before the fault."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import ReplayDiffers, TreadleError
from treadle.kernel.values import decode_trusted, encode
from treadle.store.packing import unpack
from treadle.testing import assert_replays

DEADLINE_S = 30.0
CHILD = """
dialect: process
name: Child
tasks: {look: {roles: [clerk], timeout: 3d}}
steps: [{task: look}, {complete: 1}]
"""
SIMPLE = """
dialect: process
name: Simple
steps:
  - await: {signal: a, into: a}
  - await: {signal: b, into: b}
  - complete: 1
"""


def rewrite(store: Path, run: str, seq: int) -> None:
    """Makes one record a decision that no machine would make, with digests that fit: as if other code,
    or a template that is not deterministic, had written it."""
    with closing(sqlite3.connect(store)) as db, db:
        (no,) = db.execute("SELECT no FROM runs WHERE id = ?", (run,)).fetchone()
        db.execute("DELETE FROM snapshots WHERE run = ?", (no,))
        digest = bytes(32)
        for number, body, opens, closes in db.execute(
            "SELECT seq, body, opens, closes FROM journal WHERE run = ? ORDER BY seq", (no,)
        ).fetchall():
            record: Any = decode_trusted(unpack(body, opens, closes))
            if number == seq:
                record["events"] = [*record.get("events", []), {"type": "never.decided"}]
            body = encode(record)
            digest = hashlib.sha256(digest + body).digest()
            db.execute(
                "UPDATE journal SET body = ?, digest = ? WHERE run = ? AND seq = ?",
                (body, digest, no, number),
            )
    db.close()


async def begun(tmp_path: Path, **texts: str) -> str:
    url = f"sqlite:///{tmp_path}/t.db"
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    engine = Engine(url)
    engine.deploy(tmp_path)
    async with engine:
        await (await engine.start("Simple", id="r")).settled(until_wait=True, timeout=DEADLINE_S)
        await engine.signal("r", "a", 1)
    return url


async def test_it_says_so_in_list_and_show_and_can_be_cancelled(tmp_path: Path) -> None:
    url = await begun(tmp_path, simple=SIMPLE)
    rewrite(tmp_path / "t.db", "r", 2)
    async with Engine(url) as engine:
        with pytest.raises(ReplayDiffers):
            await engine.signal("r", "b", 1)
        (row,) = await engine.list()
        assert (row["status"], row["error"]["code"], row["error"]["undecided"]) == (
            "waiting",
            "REPLAY_DIFFERS",
            True,
        )
        run = await engine.run("r")
        shown = await run.settled(timeout=DEADLINE_S)
        assert shown["undecided"]["code"] == "REPLAY_DIFFERS"
        assert shown["status"] == "waiting"
        with pytest.raises(TreadleError, match="decided differently"):
            await run.state()
        assert (await engine.cancel("r", "enough"))["status"] == "cancelled"
        shown = await run.show()
        assert (shown["status"], shown["error"]["message"]) == ("cancelled", "enough")
        assert shown["error"]["details"]["undecided"]["code"] == "REPLAY_DIFFERS"
        assert [record["kind"] for record in await run.journal()][-1] == "abandon"
        assert (await engine.events_after("r", 0))[-1]["type"] == "run.abandoned"
        assert (await engine.cancel("r")).get("stale")
    async with Engine(url) as engine:
        assert [row["status"] for row in await engine.list()] == ["cancelled"]
        assert not (await engine.replay("r"))["equal"]


async def test_a_guest_can_cancel_it_too(tmp_path: Path) -> None:
    url = await begun(tmp_path, simple=SIMPLE)
    rewrite(tmp_path / "t.db", "r", 2)
    async with Engine(url), Engine(url) as guest:
        assert not guest.owns
        assert (await guest.cancel("r"))["status"] == "cancelled"


async def test_what_it_had_open_is_settled_and_its_parent_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    (tmp_path / "child.yaml").write_text(CHILD)
    (tmp_path / "parent.yaml").write_text(
        "dialect: process\nname: Parent\nsteps:\n"
        "  - child: {workflow: Child, on_failure: [{complete: {told: true}}]}\n  - complete: {told: false}\n"
    )
    engine = Engine(url)
    engine.deploy(tmp_path / "child.yaml")
    engine.deploy(tmp_path / "parent.yaml")
    async with engine:
        parent = await engine.start("Parent", id="p")
        (child,) = (await parent.settled(until_wait=True, timeout=DEADLINE_S))["children"]
        assert len(await engine.tasks()) == 1
        assert await engine.read(lambda reads: reads.timer_next()) is not None
    rewrite(tmp_path / "t.db", child, 1)
    async with Engine(url) as engine:
        await engine.cancel(child, "damaged")
        assert await (await engine.run("p")).result(DEADLINE_S) == {"told": True}
        assert await engine.tasks() == []
        assert await engine.read(lambda reads: reads.timer_next()) is None
        assert (await engine.replay("p"))["equal"]


async def test_it_can_be_forked_before_the_fault_and_fork_says_where(tmp_path: Path) -> None:
    url = await begun(tmp_path, simple=SIMPLE)
    rewrite(tmp_path / "t.db", "r", 2)
    async with Engine(url) as engine:
        with pytest.raises(ReplayDiffers, match="treadle fork r --at 1"):
            await engine.fork("r")
        fork = await engine.fork("r", at=1, new_id="f")
        await engine.signal("f", "a")
        await engine.signal("f", "b")
        assert await fork.result(DEADLINE_S) == 1
        assert (await engine.replay("f"))["equal"]


async def test_an_end_without_its_machine_is_decided_the_same_again_where_it_can_be_decided(
    tmp_path: Path,
) -> None:
    """The journal is right again (its code is back): then the end replays like every record."""
    url = await begun(tmp_path, simple=SIMPLE)
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        (body,) = db.execute("SELECT body FROM definitions").fetchone()
        db.execute("UPDATE definitions SET body = ?", (body + b"\0",))
        db.execute("DELETE FROM snapshots")
    db.close()
    async with Engine(url) as engine:
        await engine.cancel("r", "no definition")
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        db.execute("UPDATE definitions SET body = ?", (body,))
    db.close()
    async with Engine(url) as engine:
        assert (await (await engine.run("r")).show())["status"] == "cancelled"
        await assert_replays(engine)


async def test_resume_names_it_and_goes_on_with_the_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    (tmp_path / "f.yaml").write_text(
        'metadata: {name: f, version: "1"}\nworkflow: [{step: a, tool: {kind: shell, cmd: "echo done"}}]\n'
    )
    engine = Engine(url, work=False)
    engine.deploy(tmp_path / "f.yaml")
    async with engine:
        for id in ("bad", "good"):
            await engine.start("f", id=id)
    rewrite(tmp_path / "t.db", "bad", 1)
    treadle = Path(sys.executable).with_name("treadle")
    for _ in range(2):  # the second time its step is not done again
        done = subprocess.run(  # noqa: ASYNC221
            [treadle, "--store", url, "resume"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "TREADLE_SHELL": "1"},
        )
        assert "decided differently" in done.stdout + done.stderr
    async with Engine(url, readonly=True) as onlooker:
        assert {row["id"]: row["status"] for row in await onlooker.list()} == {
            "bad": "running",
            "good": "completed",
        }
