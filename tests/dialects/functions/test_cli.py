"""Durable functions at the command line: run, show, signal, events, graph, check, fork."""

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
