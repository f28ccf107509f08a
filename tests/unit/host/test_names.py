"""What a name means: the latest deploy, whoever made it; never a path."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import DefinitionCorrupt, TreadleError, UnknownWorkflow
from treadle.store.packing import unpack
from treadle.testing import assert_replays

DEADLINE_S = 30.0


def flow(folder: Path, version: int) -> Path:
    file = folder / f"v{version}.yaml"
    file.write_text(
        f'metadata: {{name: v, version: "{version}"}}\n'
        f"workflow: [{{step: a, tool: {{kind: noop, result: {version}}}}}]\n"
    )
    return file


async def test_a_deploy_by_a_guest_is_seen_at_once_by_the_owner_and_by_other_guests(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    owner = Engine(url)
    owner.deploy(flow(tmp_path, 1))
    async with owner, Engine(url) as guest, Engine(url) as other:
        for engine in (owner, guest, other):
            assert await (await engine.start("v")).result(DEADLINE_S) == 1
        deploying = guest.load(flow(tmp_path, 2))
        for definition in deploying:
            await guest.operate("deploy", guest.library.deploy_of(definition, validation="strict").to_value())
        for engine in (owner, guest, other):
            assert await (await engine.start("v")).result(DEADLINE_S) == 2
        await assert_replays(owner)


async def test_an_engine_that_is_opened_again_knows_what_was_deployed_meanwhile(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    engine, other = Engine(url), Engine(url)
    engine.deploy(flow(tmp_path, 1))
    async with engine:
        assert await (await engine.start("v")).result(DEADLINE_S) == 1
    other.deploy(flow(tmp_path, 2))
    async with other:
        assert await (await other.start("v")).result(DEADLINE_S) == 2
    async with engine:
        assert await (await engine.start("v")).result(DEADLINE_S) == 2
        await assert_replays(engine)


async def test_a_file_is_no_name_and_who_meant_one_is_told_what_to_write(tmp_path: Path) -> None:
    file = flow(tmp_path, 1)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        with pytest.raises(UnknownWorkflow, match=r"it is a file: engine\.deploy\('") as refused:
            await engine.start(str(file))
        assert f"engine.start(engine.load('{file}')[0])" in refused.value.message
        run = await engine.start(engine.load(str(file))[0])
        assert await run.result(DEADLINE_S) == 1
        for name in ("x" * 300 + ".yaml", "a\0b.yaml", "nowhere.yaml"):
            with pytest.raises(UnknownWorkflow):
                await engine.start(name)


async def test_nothing_is_decided_by_a_definition_that_was_changed_in_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    file = tmp_path / "pay.yaml"
    file.write_text(
        "dialect: process\nname: Pay\nversion: 1.0.0\n"
        "steps:\n  - await: {signal: go, into: g}\n  - complete: {to: account-AAAA}\n"
    )
    engine = Engine(url)
    engine.deploy(file)
    async with engine:
        await engine.start("Pay", id="r")
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        (body,) = db.execute("SELECT body FROM definitions").fetchone()
        db.execute("UPDATE definitions SET body = ?", (unpack(body, None, None).replace(b"AAAA", b"EVIL"),))
    db.close()
    async with Engine(url) as engine:
        with pytest.raises(DefinitionCorrupt):
            await engine.signal("r", "go", 1)
        with pytest.raises(DefinitionCorrupt):
            await engine.start("Pay")
        (listed,) = await engine.definitions()
        assert listed["status"] == "unavailable"
        assert "does not match its digest" in listed["reasons"][-1]
    again = Engine(url)
    again.deploy(file)
    async with again:
        await again.signal("r", "go", 1)
        assert await (await again.run("r")).result(DEADLINE_S) == {"to": "account-AAAA"}
        await assert_replays(again)


async def test_records_that_were_changed_are_an_error_and_not_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    (tmp_path / "p.yaml").write_text("dialect: process\nname: p\nsteps: [{complete: account-AAAA}]\n")
    engine = Engine(url)
    engine.deploy(tmp_path / "p.yaml")
    async with engine:
        await (await engine.start("p", id="r")).result(DEADLINE_S)
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        (body,) = db.execute("SELECT body FROM journal WHERE seq = 1").fetchone()
        db.execute(
            "UPDATE journal SET body = ? WHERE seq = 1", (unpack(body, None, None).replace(b"AAAA", b"EVIL"),)
        )
    db.close()
    async with Engine(url) as engine:
        for read in ((await engine.run("r")).journal(), engine.events_after("r", 0)):
            with pytest.raises(TreadleError) as found:
                await read
            assert found.value.code == "JOURNAL_CORRUPT"


async def test_retry_takes_the_word_that_python_keeps_for_itself(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        'metadata: {name: f, version: "1"}\nworkflow:\n'
        "  - {step: a, tool: {kind: noop, result: 1}, next: {arcs: [{step: b}]}}\n"
        "  - {step: b, tool: {kind: shell, cmd: 'test -e ok'}}\n"
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(tmp_path / "f.yaml")
        run = await engine.start("f")
        shown = await run.settled(timeout=DEADLINE_S)
        assert shown["status"] == "failed"
        with pytest.raises(TreadleError, match="nowhere"):
            await engine.retry(run.id, from_="nowhere")


async def test_the_same_start_is_the_same_run_whatever_was_deployed_since(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(flow(tmp_path, 1))
        await engine.start("v", {"x": 1}, id="k")
        engine.deploy(flow(tmp_path, 2))
        assert (await engine.start("v", {"x": 1}, id="k")).existing
        with pytest.raises(TreadleError, match="another input"):
            await engine.start("v", {"x": 2}, id="k")
        with pytest.raises(TreadleError, match="another definition"):
            await engine.start("v@2", {"x": 1}, id="k")
        await assert_replays(engine)


async def test_the_same_start_is_the_same_run_though_a_newer_version_would_not_take_its_input(
    tmp_path: Path,
) -> None:
    def strict(version: int, wanted: str) -> Path:
        file = tmp_path / f"s{version}.yaml"
        file.write_text(
            f"dialect: process\nname: s\nversion: {version}.0.0\n"
            f"start: {{schema: {{type: object, required: [{wanted}]}}}}\nsteps:\n  - await: go\n"
        )
        return file

    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(strict(1, "old"))
        await engine.start("s", {"old": 1}, id="k")
        engine.deploy(strict(2, "new"))
        assert (await engine.start("s", {"old": 1}, id="k")).existing
        with pytest.raises(TreadleError, match="new"):
            await engine.start("s", {"old": 1}, id="other")
        await assert_replays(engine)
