"""`treadle serve` as a process: one line when it is ready, a drain when it is told to go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests import nursery

from .conftest import FLOW


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[nursery.Process, dict[str, Any]]]:
    command = ["-m", "treadle.cli", "serve", "--port", "0", "--json", *options]
    environment = {**os.environ, "TREADLE_STORE": f"sqlite:///{folder}/t.db"}
    process = nursery.Process(command, cwd=folder, env=environment, stdout=nursery.PIPE, stderr=nursery.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_it_says_where_it_is_and_does_the_work(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    with serving(tmp_path, "--deploy", "flow.yaml") as (process, said):
        assert said.keys() == {"url", "name", "version", "store", "bus", "worker", "access"}
        assert httpx.get(f"{said['url']}/readyz").json()["ready"] is True
        id = httpx.post(f"{said['url']}/api/v1/runs", json={"workflow": "greet"}).json()["id"]
        ended = httpx.post(f"{said['url']}/api/v1/runs/{id}/wait", timeout=60).json()
        assert ended["status"] == "completed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_with_warn_it_serves_what_is_sound(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "bad.yaml").write_text(
        "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}]\n"
    )
    with serving(tmp_path, "--deploy", ".", "--validation", "warn") as (_, said):
        rows = httpx.get(f"{said['url']}/api/v1/definitions").json()["items"]
        assert {row["name"]: row["status"] for row in rows} == {"greet": "available", "bad": "unavailable"}


def test_a_drain_answers_waits_as_they_stand_and_closes_streams(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(
        'metadata: {name: slow, version: "1"}\nworkflow:\n  - step: s\n    tool: {kind: shell, command: sleep 60}\n'
    )
    with serving(tmp_path, "--deploy", "flow.yaml", "--drain", "1s") as (process, said):
        api = f"{said['url']}/api/v1"
        id = httpx.post(f"{api}/runs", json={"workflow": "slow"}).json()["id"]
        answers: list[str] = []

        def wait() -> None:
            answers.append(httpx.post(f"{api}/runs/{id}/wait?timeout=100", timeout=120).json()["status"])

        def follow() -> None:
            headers = {"Accept": "text/event-stream"}
            text = httpx.get(f"{api}/runs/{id}/events", headers=headers, timeout=120).text
            answers.append("no end" if "event: end" not in text else "end")

        threads = [threading.Thread(target=wait), threading.Thread(target=follow)]
        for thread in threads:
            thread.start()
        threading.Event().wait(1)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert sorted(answers) == ["no end", "running"]
        assert process.wait(40) == 0


def test_an_address_that_others_reach_is_refused_without_tokens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle.cli", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "127.0.0.1" in done.stderr
