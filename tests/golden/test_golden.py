"""Runs of every release are decided by this code as they were decided then (KERNEL §9.9)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from treadle import Engine

HERE = Path(__file__).parent
STORES = sorted(HERE.glob("*.db"))
REACTIVE = sorted((HERE.parents[1] / "examples" / "reactive").glob("*.py"))


def test_there_is_a_store_of_every_release() -> None:
    changes = (HERE.parents[1] / "CHANGELOG.md").read_text("utf-8")
    released = [
        line.split("]")[0].removeprefix("## [") for line in changes.splitlines() if line.startswith("## [")
    ]
    assert [name for name in released if name != "Unreleased"] == [store.stem for store in reversed(STORES)]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.stem)
async def test_runs_of_a_release_are_decided_as_they_were(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "t.db"
    shutil.copyfile(store, copy)
    engine = Engine(f"sqlite:///{copy}", work=False)
    for path in REACTIVE:
        engine.deploy(str(path))
    async with engine:
        rows = await engine.list(limit=1000)
        dialects = {row["dialect"] for row in rows}
        assert dialects == {"agent", "playbook", "process", "reactive"}
        for row in rows:
            assert (await engine.replay(row["id"]))["equal"] is True, row["id"]
