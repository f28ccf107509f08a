"""Durable functions at the command line: run, show, signal, events, graph, check, fork, retry, list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from treadle.cli.main import app

FILE = str(Path(__file__).resolve().parents[3] / "examples" / "functions" / "order.py")


def treadle(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code in (0, 3), done.output  # 3: it waits for somebody
    return done.stdout


def test_an_order_from_its_file_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_STORE", f"sqlite:///{tmp_path}/t.db")
    treadle("check", FILE)
    given = json.dumps({"id": "o-1", "cents": 500})
    treadle("run", f"{FILE}:order", "--input", given, "--id", "o-1")
    shown = json.loads(treadle("show", "o-1", "--json"))
    assert (shown["status"], shown["state"]) == ("waiting", {"stage": "paid"})
    treadle("fork", "o-1", "--id", "o-2")
    treadle("signal", "o-1", "approved", "--data", "true")
    shown = json.loads(treadle("show", "o-1", "--json"))
    assert (shown["status"], shown["result"]) == ("completed", {"payment": "p-o-1-500", "shipped": "s-o-1"})
    assert "orders.charge" in treadle("graph", "o-1", "--format", "mermaid")
    assert "orders.ship" in treadle("graph", f"{FILE}:order", "--format", "mermaid")
    assert "step.done" in treadle("events", "o-1")
    treadle("signal", "o-2", "approved", "--data", "true")
    assert json.loads(treadle("show", "o-2", "--json"))["status"] == "completed"


FRAGILE = """
from pathlib import Path

from treadle import flow


@flow.step(name="fragile.read")
def read(name: str) -> str:
    return Path(name).read_text()


@flow.workflow
async def fragile(ctx: flow.Context, name: str) -> str:
    ctx.state["stage"] = "reading"
    text = await read(name)
    ctx.state["stage"] = "read"
    return text
"""


def test_a_failed_function_is_retried_or_its_step_skipped_and_listed_by_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_STORE", f"sqlite:///{tmp_path}/t.db")
    file, wanted = tmp_path / "fragile.py", tmp_path / "wanted.txt"
    file.write_text(FRAGILE)
    for id in ("a", "b", "c"):
        given = ["run", f"{file}:fragile", "--input", json.dumps(str(wanted)), "--id", id]
        assert CliRunner().invoke(app, given).exit_code == 1

    def listed(stage: str) -> list[str]:
        return sorted(row["id"] for row in json.loads(treadle("list", "--state", f"stage={stage}", "--json")))

    assert listed("reading") == ["a", "b", "c"]
    wanted.write_text("there")
    treadle("retry", "a", "--app", str(file))
    treadle("retry", "b", "--skip", "--value", '"instead"', "--app", str(file))
    assert [json.loads(treadle("show", id, "--json"))["result"] for id in ("a", "b")] == ["there", "instead"]
    assert (listed("reading"), listed("read")) == (["c"], ["a", "b"])
