"""Servers and workers as processes, with PostgreSQL and NATS between them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import nursery
from tests.pooling import Pooler

from .conftest import FLOW
from .test_workers import LOOP, Api, until


@contextmanager
def started(folder: Path, store: str, *words: str) -> Iterator[tuple[nursery.Process, dict[str, Any]]]:
    """A `treadle` process that says in one line when it is ready."""
    command = ["-m", "treadle.cli", *words, "--json"]
    process = nursery.Process(
        command,
        cwd=folder,
        env={**os.environ, "TREADLE_STORE": store},
        stdout=nursery.PIPE,
        stderr=nursery.PIPE,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.parametrize("bus", ["postgres", "nats"])
def test_workers_of_a_carrier_do_the_work_and_outlive_one_another(
    tmp_path: Path, pg_store: str, nats_bus: str, bus: str
) -> None:
    out = tmp_path / "out"
    out.touch()
    (tmp_path / "many.yaml").write_text(LOOP % tmp_path)
    over = [] if bus == "postgres" else ["--bus", nats_bus]
    with ExitStack() as stack:
        serve = ["serve", "--port", "0", "--no-worker", "--deploy", "many.yaml", *over]
        _, said = stack.enter_context(started(tmp_path, pg_store, *serve))
        assert said["bus"] == (bus if bus == "postgres" else nats_bus)
        dies = ["worker", "--name", "dies", "--concurrency", "3", *over]
        dying, joined = stack.enter_context(started(tmp_path, pg_store, *dies))
        assert joined["bus"] == bus
        api = Api(said["url"])
        until(lambda: api.workers().get("dies", {}).get("bus") == bus)
        id = api.start("many")
        until(lambda: len(out.read_text().split()) == 3)
        lives = ["worker", "--name", "lives", "--concurrency", "4"]
        reach = over if bus == "postgres" else ["--server", said["url"]]
        _, joined = stack.enter_context(started(tmp_path, pg_store, *lives, *reach))
        assert joined["bus"] == bus, "a server says over what its workers go on"
        until(lambda: len(out.read_text().split()) == 7)
        dying.send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        shown = api.ended(id)
        assert shown["status"] == "completed", shown
        assert set(out.read_text().split()) == {str(n) for n in range(10)}
        settled = [record for record in api.get(f"/runs/{id}/journal") if record["kind"] == "receipt"]
        intents = [record["event"]["intent"] for record in settled]
        assert len(intents) == len(set(intents)), "each settled once"
        assert api.replays(id)


def test_a_server_and_a_worker_behind_a_pooler_do_the_work(tmp_path: Path, pooler: Pooler) -> None:
    """No notices come through, and no session is anybody's own: nothing but promptness depends on them."""
    (tmp_path / "greet.yaml").write_text(FLOW)
    with ExitStack() as stack:
        store = stack.enter_context(pooler.database())
        serve = ["serve", "--port", "0", "--no-worker", "--deploy", "greet.yaml"]
        serving, said = stack.enter_context(started(tmp_path, store, *serve))
        stack.enter_context(started(tmp_path, store, "worker", "--name", "pooled"))
        api = Api(said["url"])
        id = api.start("greet")
        assert api.ended(id)["status"] == "completed"
        assert api.replays(id)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(60) == 0
