"""A whole store is copied to PostgreSQL, every digest is checked, and its runs go on there."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from treadle import Engine
from treadle.kernel.errors import StoreCorrupt, TreadleError
from treadle.store import copying
from treadle.store.open import copy_store, open_store
from treadle.testing import assert_replays

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0.db"
PROCESS = """
dialect: process
name: approval
version: "1"
tasks: {review: {roles: [boss]}}
steps:
  - task: review
  - await: go
  - wait: 10ms
"""


@pytest.fixture
def golden(tmp_path: Path) -> str:
    for file in GOLDEN.parent.glob(GOLDEN.name + "*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / file.name)
    return f"sqlite:///{tmp_path / GOLDEN.name}"


async def test_runs_of_the_golden_store_are_whole_on_postgres(golden: str, pg_store: str) -> None:
    said = copy_store(golden, pg_store)
    assert said["verified"] is True
    assert said["runs"] > 0
    assert said["journal"] > said["runs"]
    async with Engine(golden, readonly=True) as before, Engine(pg_store, work=False) as after:
        was = {row["id"]: row["status"] for row in await before.list(limit=10_000)}
        now = {row["id"]: row["status"] for row in await after.list(limit=10_000)}
        assert was.keys() == now.keys()
        for id in was:
            there = await (await before.run(id)).journal()
            here = await (await after.run(id)).journal()
            assert there == here[: len(there)], id


async def test_what_waits_in_a_file_goes_on_to_its_end_on_postgres(tmp_path: Path, pg_store: str) -> None:
    (tmp_path / "approval.yaml").write_text(PROCESS)
    source = f"sqlite:///{tmp_path}/old.db"
    large = "x" * 300_000
    async with Engine(source) as engine:
        engine.deploy(str(tmp_path / "approval.yaml"))
        for n in range(5):
            await engine.start("approval", {"text": large, "n": n}, id=f"p{n}")
            await (await engine.run(f"p{n}")).settled(timeout=60)
    command = [sys.executable, "-m", "treadle.cli", "migrate", "--from", source, "--to", pg_store, "--json"]
    asked = partial(subprocess.run, command, capture_output=True, text=True, timeout=120)
    done = await asyncio.to_thread(asked)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert (told["runs"], told["verified"]) == (5, True)
    async with Engine(pg_store) as engine:
        for task in await engine.tasks():
            await engine.task_claim(task["id"], user="ann", roles=["boss"])
            await engine.task_complete(task["id"], {"ok": True}, user="ann", roles=["boss"])
        for n in range(5):
            await engine.signal(f"p{n}", "go")
            await (await engine.run(f"p{n}")).result(60)
            shown = await (await engine.run(f"p{n}")).show()
            assert shown["input"]["text"] == large
        assert await assert_replays(engine) == 5


def test_a_place_where_a_store_is_already_is_left_alone(golden: str, pg_store: str) -> None:
    copy_store(golden, pg_store)
    with pytest.raises(TreadleError) as refused:
        copy_store(golden, pg_store)
    assert refused.value.code == "STORE_NOT_EMPTY"


def test_a_copy_that_differs_is_said_to_be_none(
    golden: str, pg_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = copying.SqlStore.insert_rows

    def careless(store: copying.SqlStore, table: str, columns: str, rows: list[tuple[object, ...]]) -> None:
        written(store, table, columns, rows[:-1] if table == "journal" else rows)

    monkeypatch.setattr(copying.SqlStore, "insert_rows", careless)
    with pytest.raises(StoreCorrupt, match="journal"):
        copy_store(golden, pg_store)


async def test_a_store_that_somebody_works_on_is_not_copied(tmp_path: Path, pg_store: str) -> None:
    source = f"sqlite:///{tmp_path}/busy.db"
    async with Engine(source):
        with pytest.raises(TreadleError) as refused:
            copy_store(source, pg_store)
    assert refused.value.code == "STORE_OWNED"
    open_store(pg_store).close()
