"""gc, doctor, migrate, bench, secret; help; the real process."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import nursery
from typer.main import get_command

from treadle.cli.main import app
from treadle.engine import Engine

from .conftest import Cli
from .flows import ETL

Write = Callable[[str, str], Path]


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


NAMES = {path for path, _ in commands()}


def test_the_contract_names_are_there() -> None:
    words = """run resume check deploy definitions export list show state events trace journal graph patch signal cancel
    retry fork tasks publish cells cell manifest apply shadow snapshot replay diff record gc doctor migrate bench"""
    wanted = {(word,) for word in words.split()}
    wanted |= {("task", word) for word in ["show", "claim", "release", "assign", "comment", "complete"]}
    wanted |= {("secret", word) for word in ["set", "list", "remove"]}
    assert wanted <= NAMES


@pytest.mark.parametrize("path", sorted(NAMES), ids="-".join)
def test_every_command_has_help_with_examples_and_takes_json(cli: Cli, path: tuple[str, ...]) -> None:
    answer = cli(*path, "--help", code=0)
    assert "Examples" in answer.out
    assert f"treadle {' '.join(path)}" in answer.out
    for option in ("--json", "--store"):
        assert option in answer.out


def test_help_and_version(cli: Cli) -> None:
    assert "Run and look" in cli("--help", code=0).out
    assert re.match(r"treadle \d+\.\d+\.\d+\n", cli("--version", code=0).out)
    assert "--install-completion" in cli("--help").out
    cli(code=2)


def test_secrets_are_kept_by_name_and_never_shown(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = "planted-value-4711"
    assert cli("secret", "list", "--json", code=0).json == []
    assert cli("secret", "set", "token", "--value", planted, "--json", code=0).json == {
        "name": "token",
        "status": "set",
    }
    cli("secret", "set", "pg", "--field", "db_host=db1", "--field", f"db_password={planted}", code=0)
    monkeypatch.setattr("sys.stdin", io.StringIO(planted + "\n"))
    cli("secret", "set", "piped", code=0)
    assert cli("secret", "list", "--json", code=0).json == [{"name": n} for n in ("pg", "piped", "token")]
    for file in folder.iterdir():
        assert planted.encode() not in file.read_bytes()
    cli("secret", "remove", "token", code=0)
    assert "there is no secret" in cli("secret", "remove", "token", "--json", code=2).error["message"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for wrong in (["--value", "x", "--field", "a=b"], ["--field", "a"], []):
        assert cli("secret", "set", "x", *wrong, "--json", code=2).error["code"] == "USAGE"


def test_the_secrets_of_a_database_are_kept_where_runs_find_them(
    cli: Cli, folder: Path, pg_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(folder / "home"))
    store = ("--store", pg_store, "--json")
    cli("secret", "set", "api", "--value", "planted-value-4711", *store, code=0)
    assert cli("secret", "list", *store, code=0).json == [{"name": "api"}]
    assert cli("secret", "rotate", *store, code=0).json["secrets"] == 1

    async def resolved() -> object:
        async with Engine(pg_store) as engine:
            return await engine.secrets.resolve("api")

    assert asyncio.run(resolved()) == "planted-value-4711"
    cli("secret", "remove", "api", *store, code=0)
    assert cli("secret", "list", *store, code=0).json == []
    done = [row["action"] for row in cli("audit", *store, code=0).json]
    assert done == ["secret.remove", "secret.rotate", "secret.set"]


@pytest.mark.parametrize("memory", ["memory:", "memory://", ":memory:"])
def test_what_is_to_last_is_not_put_into_a_store_that_ends(cli: Cli, memory: str) -> None:
    for words in (
        ["secret", "list", "--store", memory],
        ["secret", "rotate", "--store", memory],
        ["backup", "all.db", "--store", memory],
        ["restore", "all.db", "--store", memory],
        ["archive", "restore", "all.db", "--store", memory],
        ["migrate", "--from", "sqlite:///treadle.db", "--to", memory],
        ["migrate", "--from", memory, "--to", "sqlite:///treadle.db"],
    ):
        assert "ends with this command" in cli(*words, "--json", code=2).error["message"], words


def test_the_password_in_an_address_is_not_told(cli: Cli, pg_store: str) -> None:
    user, _, rest = pg_store.partition("@")
    store = ("--store", f"{user.partition('://')[0]}://{user.partition('://')[2] or 'ann'}:hunter2@{rest}")
    for words in (["list"], ["doctor"], ["doctor", "--json"]):
        answer = cli(*words, *store)
        assert "hunter2" not in answer.out + answer.err, words


def test_doctor_and_migrate(cli: Cli, write: Write) -> None:
    assert cli("doctor", "--json", code=0).json["exists"] is False
    answer = cli("migrate", "--json", code=0).json
    assert answer["schema_before"] < answer["schema"]
    assert cli("migrate", "--json", code=0).json["schema_before"] == answer["schema"]
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", code=0)
    found = cli("doctor", "--json", code=0).json
    assert (found["ok"], found["runs"], found["owner"]) == (True, {"completed": 1}, None)
    assert "the store is sound" in cli("doctor", code=0).err


def test_a_store_that_is_none_is_left_alone(cli: Cli, write: Write) -> None:
    file = write("notes.db", "these are my notes, not a database, and they matter to me\n" * 20)
    before = file.read_bytes()
    for command in (["list"], ["doctor"], ["gc"], ["migrate"]):
        assert (
            cli(*command, "--store", "sqlite:///notes.db", "--json", code=1).error["code"] == "STORE_CORRUPT"
        )
    assert file.read_bytes() == before
    error = cli("gc", "--store", "sqlite:///no/such/folder/x.db", "--json", code=2).error
    assert "does not exist" in error["message"]
    assert "sqlite:///relative.db" in cli("list", "--store", "nonsense:x", "--json", code=2).error["message"]


READERS = ("list", "tasks", "definitions", "doctor")
NO_RUN = (("show", "r"), ("events", "r"), ("resume", "r"), ("cancel", "r"), ("signal", "r", "go"))


def test_an_empty_file_is_no_store_yet(cli: Cli, write: Write) -> None:
    """Left by a first run that was killed while it made its store, or by mktemp."""
    file = write("treadle.db", "")
    for command in READERS:
        cli(command, "--json", code=0)
    for words in NO_RUN:
        assert cli(*words, "--json").error["code"] == "RUN_NOT_FOUND", words
    assert cli("run", "etl", "--json", code=2).error["code"] == "UNKNOWN_WORKFLOW"
    assert file.stat().st_size == 0, "who only looks makes no store"
    flow = str(write("etl.yaml", ETL))
    assert cli("run", flow, "--id", "e1", "--json", code=0).json["status"] == "completed"
    assert [row["id"] for row in cli("list", "--json", code=0).json] == ["e1"]


@pytest.mark.parametrize("first", [("deploy", "etl.yaml"), ("gc",), ("migrate",)])
def test_every_command_that_writes_makes_a_store_of_an_empty_file(
    cli: Cli, write: Write, first: tuple[str, ...]
) -> None:
    write("treadle.db", "")
    write("etl.yaml", ETL)
    cli(*first, code=0)
    assert cli("doctor", "--json", code=0).json["schema"] > 0


def test_gc_and_bench(cli: Cli, write: Write, folder: Path) -> None:
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", code=0)
    assert cli("gc", "--json", code=0).json["runs"] == 0
    rehearsed = cli("gc", "--dry-run", "--json", code=0)
    assert (rehearsed.json, "nothing was changed" in rehearsed.err) == (
        {"runs": 0, "blobs": 0, "workflows": {}},
        True,
    )
    found = cli("bench", "--runs", "3", "--steps", "2", "--json", code=0).json
    assert found["steps"] == 6
    assert found["steps_per_second"] > 0
    assert len(cli("list", "--json").json) == 1


# --- the real process ---------------------------------------------------------------------------

SLEEPY = """
metadata: {name: sleepy}
workflow:
  - step: nap
    tool: {kind: shell, command: "test -e awake || (touch asleep; sleep 60)"}
"""


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_stops_cleanly_and_resume_goes_on(
    folder: Path, write: Write, stop: signal.Signals, code: int
) -> None:
    write("flow.yaml", SLEEPY)
    program = ["-m", "treadle.cli", "run", "flow.yaml", "--id", "nap-1"]
    started = nursery.Process(program, stdout=nursery.PIPE, stderr=nursery.PIPE)
    deadline = time.monotonic() + 30
    while not (folder / "asleep").exists():
        assert time.monotonic() < deadline, "the step did not start"
        assert started.poll() is None, started.communicate()
        time.sleep(0.02)
    started.send_signal(stop)
    out, err = started.communicate(timeout=30)
    assert started.returncode == code
    assert out == ""
    assert "treadle resume nap-1" in err
    assert "Traceback" not in err
    (folder / "awake").touch()
    resumed = nursery.run(["-m", "treadle.cli", "resume", "nap-1", "--json"])
    assert resumed.returncode == 0, resumed.stderr
    assert '"status": "completed"' in resumed.stdout


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    read, sent = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli", "definitions", "--json"],
        stdout=sent,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(sent)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("treadle show etl", ["etl-2", "etl-1"]),
        ("treadle cancel x", []),
        ("treadle list --status c", ["completed", "cancelled"]),
        ("treadle res", ["resume", "restore"]),
    ],
)
def test_the_shell_completes_names(cli: Cli, write: Write, words: str, found: list[str]) -> None:
    write("flow.yaml", ETL)
    for id in ("etl-1", "etl-2"):
        cli("run", "flow.yaml", "--id", id, code=0)
    asked = {
        "_TREADLE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = "from treadle.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == found
    assert done.stderr == ""
