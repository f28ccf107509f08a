"""--log json: each line is a document that says of which run, worker and request it is, without secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.cli.log_lines import LogLines, written
from treadle.cli.main import main
from treadle.server.app import create_app

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "hush-hush-very-secret"
FLOW = """
metadata: {name: greet, version: "1"}
keychain: [{name: api, kind: x}]
workflow:
  - step: hello
    tool: {kind: loud, key: "{{ keychain.api.token }}"}
"""
QUICK = 'dialect: process\nname: quick\nversion: "1"\nsteps:\n  - set: {state.done: true}\n'


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_line_says_of_which_run_worker_and_request_it_is_and_holds_no_secret(tmp_path: Path) -> None:
    (tmp_path / "greet.yaml").write_text(FLOW)
    stream = io.StringIO()
    with written("json", stream):
        async with Engine("memory:", secrets={"api": {"token": SECRET}}) as engine:

            @engine.tool("loud")
            async def loud(key: str) -> str:
                logging.getLogger("elsewhere").warning("called with %s", key)
                return "ok"

            engine.deploy(str(tmp_path / "greet.yaml"))
            transport = httpx.ASGITransport(app=create_app(engine))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
                asked = {"workflow": "greet", "id": "g-1"}
                trace = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
                answer = await http.post("/runs", json=asked, headers={"X-Request-Id": "from-me", **trace})
                assert answer.status_code == 201
            assert (await (await engine.run("g-1")).settled())["status"] == "completed"
            logging.getLogger("treadle").error("broken", exc_info=ValueError(SECRET))
    found = lines_of(stream.getvalue())
    assert all({"at", "level", "logger", "message"} <= line.keys() for line in found)
    (started,) = [line for line in found if line["message"] == "run started"]
    assert (started["run"], started["workflow"], started["status"]) == ("g-1", "greet", "started")
    (ended,) = [line for line in found if line["message"] == "run completed"]
    assert ended["run"] == "g-1"
    assert started["trace"] == ended["trace"] == TRACE, "the trace that it was started with"
    (called,) = [line for line in found if line["logger"] == "elsewhere"]
    assert called["message"] == "called with [redacted:api.token]"
    assert (called["run"], called["workflow"], called["level"]) == ("g-1", "greet", "warning")
    assert re.fullmatch(r"[0-9a-f]{32}", called["intent"])
    assert called["worker"]
    (request,) = [line for line in found if line["logger"] == "treadle.server.requests"]
    assert {
        "method": "POST",
        "route": "/runs",
        "status": 201,
        "request": "from-me",
    }.items() <= request.items()
    (broken,) = [line for line in found if line["message"] == "broken"]
    assert "ValueError" in broken["traceback"]
    assert "run" not in broken, "it is of no run"
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_command_that_runs_says_what_happens_on_standard_error(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_LOG", form)
    (tmp_path / "quick.yaml").write_text(QUICK)
    with pytest.raises(SystemExit) as ended:
        main(["run", "quick.yaml", "--id", "q", "--json"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "completed", "standard output is the answer's"
    if form == "json":
        assert [line["message"] for line in lines_of(err) if line.get("run") == "q"] == [
            "run started",
            "run completed",
        ]
    else:
        assert "info treadle.runs run completed run=q workflow=quick\n" in err


@pytest.mark.parametrize("command", ["serve", "worker", "run", "resume"])
def test_what_runs_for_a_while_takes_log(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--log", "loud"])
    assert ended.value.code == 2
    assert "--log" in capsys.readouterr().err


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    stream, gate = io.StringIO(), Gated()
    handler = LogLines("json", gate, lines_max=100)
    record = logging.LogRecord("treadle", logging.INFO, "", 0, "line", None, None)
    for _ in range(600):
        handler.emit(record)
    gate.open(stream)
    handler.close()
    found = lines_of(stream.getvalue())
    dropped = sum(line.get("dropped", 0) for line in found)
    assert len(found) + dropped == 600
    assert dropped >= 490


class Gated(io.StringIO):
    """Takes nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self._opened = threading.Event()
        self._to: io.StringIO | None = None

    def open(self, to: io.StringIO) -> None:
        self._to = to
        self._opened.set()

    def write(self, text: str) -> int:
        assert self._opened.wait(60)
        assert self._to is not None
        return self._to.write(text)
