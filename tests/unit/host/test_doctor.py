"""The doctor finds damage, names it one by one, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.host.checkup import examine
from treadle.runtime.doctor import DoctorPace

DEADLINE_S = 30.0
FLOW = "dialect: process\nname: p\nversion: 1.0.0\nsteps: [{await: {signal: go, into: g}}, {complete: account-AAAA}]\n"


async def made(folder: Path) -> str:
    url = f"sqlite:///{folder}/t.db"
    (folder / "f.yaml").write_text(FLOW)
    engine = Engine(url)
    engine.deploy(folder / "f.yaml")
    async with engine:
        for id in ("r", "s"):
            await (await engine.start("p", {"big": "x" * 200_000}, id=id)).settled(
                until_wait=True, timeout=DEADLINE_S
            )
    return url


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "t.db")) as db, db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("how", "what", "code"),
    [
        (
            "UPDATE journal SET body = CAST(body || x'00' AS BLOB) WHERE run = 1 AND seq = 1",
            "run",
            "JOURNAL_CORRUPT",
        ),
        ("UPDATE definitions SET body = CAST(body || x'00' AS BLOB)", "definition", "DEFINITION_CORRUPT"),
        ("payloads", "payload", "BLOB_MISSING"),
    ],
)
async def test_damage_is_found_and_named_with_what_to_do(
    tmp_path: Path, how: str, what: str, code: str
) -> None:
    url = await made(tmp_path)
    assert examine(url)["ok"]
    if how == "payloads":
        shutil.rmtree(tmp_path / "t.db-blobs")
    else:
        change(tmp_path, how)
    async with Engine(url, readonly=True) as onlooker:
        for found in (examine(url), examine(url, deep=True), await onlooker.doctor()):
            assert not found["ok"]
            assert (what, code) in {(damage["what"], damage["code"]) for damage in found["damaged"]}
            assert all(damage["remedy"] for damage in found["damaged"])
            assert found["checked"]["all"]


async def test_a_damaged_snapshot_is_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    (tmp_path / "f.yaml").write_text(FLOW)
    engine = Engine(url)
    engine.deploy(tmp_path / "f.yaml")
    async with engine:
        await engine.start("p", id="r")
        for number in range(300):
            await engine.signal("r", f"other-{number}")
    with closing(sqlite3.connect(tmp_path / "t.db")) as db, db:
        assert db.execute("UPDATE snapshots SET body = CAST(body || x'00' AS BLOB)").rowcount > 0
    db.close()
    (damage,) = examine(url)["damaged"]
    assert (damage["id"], damage["code"]) == ("r", "JOURNAL_CORRUPT")


async def test_the_doctor_says_how_far_it_came(tmp_path: Path) -> None:
    url, hurried = await made(tmp_path), DoctorPace(budget_s=-1.0)
    found = examine(url, pace=hurried)
    assert found["ok"]
    assert not found["checked"]["all"]
    assert any("--deep" in remark for remark in found["remarks"])
    assert examine(url, deep=True, pace=hurried)["checked"]["all"]


async def test_the_doctor_brings_no_store_up_to_date(tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "0.1.0.db"
    shutil.copy(golden, tmp_path / "t.db")
    before = (tmp_path / "t.db").read_bytes()
    found: Any = examine(f"sqlite:///{tmp_path}/t.db")
    assert found["schema"] == 1
    assert (tmp_path / "t.db").read_bytes() == before


async def test_work_that_is_open_for_long_is_named_with_its_step_and_what_to_do(
    tmp_path: Path,
) -> None:
    url, soon = f"sqlite:///{tmp_path}/t.db", DoctorPace(open_long_s=0.0)
    (tmp_path / "f.yaml").write_text(
        'metadata: {name: f, version: "1"}\nworkflow: [{step: pay, tool: {kind: shell, cmd: "true"}}]\n'
    )
    engine = Engine(url, work=False)
    engine.deploy(tmp_path / "f.yaml")
    async with engine:
        await engine.start("f", id="r1")
        assert (await engine.doctor())["open_long"] == [], "it has only just been asked for"
        (work,) = examine(url, pace=soon)["open_long"]
        assert (work["run"], work["workflow"], work["step"], work["kind"]) == ("r1", "f", "pay", "step")
        assert work["since"].endswith("Z")
        told = " ".join(examine(url, pace=soon)["remarks"])
        assert f"r1: pay (step) is open since {work['since']}; process {os.getpid()} should be at it" in told
        assert "treadle logs r1" in told
        assert "treadle cancel r1" in told
    found = examine(url, pace=soon)
    assert found["ok"], "a run that waits is no damage"
    assert any(remark.endswith("nobody is at it: treadle resume r1") for remark in found["remarks"])


async def test_whoever_waits_is_told_how_far_the_doctor_came(
    tmp_path: Path,
) -> None:
    url = await made(tmp_path)
    told: list[dict[str, int]] = []
    examine(url, deep=True, tell=told.append, pace=DoctorPace(tell_s=0.0))
    assert told[-1]["runs"] >= 1
    assert told == sorted(told, key=lambda counts: sum(counts.values()))
