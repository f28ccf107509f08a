"""Who changed the store as a whole is written down."""

from __future__ import annotations

import asyncio

import pytest

from treadle import Engine
from treadle.cli.main import main


def test_who_deployed_and_who_collected_is_among_the_diagnostics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wf.yaml").write_text("dialect: process\nname: wf\nversion: 1.0.0\nsteps: [{complete: 1}]\n")
    store = f"sqlite:///{tmp_path}/t.db"
    for command in (["deploy", "wf.yaml", "--user", "ann"], ["gc", "--user", "bob"], ["gc"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--store", store])
        assert ended.value.code == 0

    async def told():
        async with Engine(store) as engine:
            return await engine.diagnostics()

    deployed, collected = asyncio.run(told())
    assert {key: deployed[key] for key in ("run", "code", "by", "name", "version")} == {
        "run": "",
        "code": "DEPLOYED",
        "by": "ann",
        "name": "wf",
        "version": "1.0.0",
    }
    assert {key: value for key, value in collected.items() if key != "at_ns"} == {
        "run": "",
        "code": "COLLECTED",
        "by": "bob",
        "runs": 0,
        "blobs": 0,
    }
