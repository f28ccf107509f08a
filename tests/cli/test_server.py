"""The same command on a store and through a server: the same document, the same exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle.cli.application import SUBJECTS
from treadle.cli.command import Command
from treadle.cli.reach import Reach
from treadle.client.http import HttpClient
from treadle.client.wire import AnswerUnknown, ServerAway

from .conftest import Answer, Cli
from .flows import BROKEN, ETL, FAILING, GATED, PARTIAL, RENEWAL, SHOP, STALLING

PARENT = """
metadata: {name: parent}
workflow:
  - step: call
    tool: {kind: playbook, path: ./etl}
"""


@dataclass(frozen=True)
class Sides:
    """A server, and a store that is told the same."""

    folder: Path
    url: str
    store: str
    process: nursery.Process


def serving(folder: Path, *options: str) -> tuple[nursery.Process, str]:
    process = nursery.Process(
        ["-m", "treadle.cli", "serve", "--port", "0", "--json", *options],
        cwd=folder,
        env={**os.environ, "TREADLE_STORE": f"sqlite:///{folder}/served.db"},
        stdout=nursery.PIPE,
        stderr=nursery.DEVNULL,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["url"]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("both")
    flows = {
        "etl": ETL,
        "failing": FAILING,
        "partial": PARTIAL,
        "gated": GATED,
        "renewal": RENEWAL,
        "stalling": STALLING,
        "broken": BROKEN,
        "parent": PARENT,
    }
    for name, text in flows.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "clash.yaml").write_text(RENEWAL.replace("documents", "papers"))
    (folder / "mended.yaml").write_text(ETL)
    (folder / "invalid.yaml").write_text(
        "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}]\n"
    )
    (folder / "shop.py").write_text(SHOP)
    process, url = serving(folder, "--app", "shop.py:app")
    store = f"sqlite:///{folder}/alone.db"
    deploy = ["-m", "treadle.cli", "deploy", "shop.py:app", "--store", store]
    nursery.run(deploy, cwd=folder).check_returncode()
    yield Sides(folder, url, store, process)
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def both(sides: Sides, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Gives a command to the store and to the server; what they say is the same."""
    monkeypatch.chdir(sides.folder)
    for name in ("TREADLE_SERVER", "TREADLE_TOKEN", "TREADLE_USER"):
        monkeypatch.delenv(name, raising=False)

    def give(*arguments: str, code: int) -> Answer:
        found = []
        for place in (("--store", sides.store), ("--server", sides.url)):
            tasks = _tasks(cli, place) if any("TASK" in word for word in arguments) else {}
            words = [tasks.get(word, word) for word in arguments]
            found.append(cli(*words, *place, "--json"))
        here, there = found
        assert (here.code, there.code) == (code, code), (here, there)
        assert _plain(here.out) == _plain(there.out)
        return there

    return give


def _tasks(cli: Cli, place: tuple[str, str]) -> dict[str, str]:
    """`TASK:RUN` stands for the id of the open task of that run, which is another on each side."""
    rows = cli("tasks", *place, "--json", code=0).json
    return {f"TASK:{row['run']}": row["id"] for row in rows}


# What is another each time, on a store as well: instants, random ids; and where a definition's file is.
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
_ID = re.compile(r"\b(?:sha256:[0-9a-f]{64}|[0-9a-f]{32})\b")
_DROPPED = frozenset(
    [
        "seed",
        "base",
        "ms",
        "server",
        "request",
        "entropy",
        "machine_ns",
        "lag_ms",
        "options",
        "digest",
        "took_ms",
        "duration_ms",
    ]
)


def _plain(out: str) -> list[Any]:
    try:
        documents = [json.loads(out)]
    except ValueError:
        documents = [json.loads(line) for line in out.splitlines()]
    return [_plainly(document) for document in documents]


def _plainly(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plainly(item) for key, item in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [_plainly(item) for item in value]
    return _ID.sub("ID", _INSTANT.sub("INSTANT", value)) if isinstance(value, str) else value


RUN = ("run", "etl.yaml", "--id", "looked", "-i", "day=monday")
ANN = ("--user", "ann", "--role", "underwriter")

STORIES: dict[str, list[tuple[tuple[str, ...], int]]] = {
    "looking at a run": [
        (RUN, 0),
        (("show", "looked"), 0),
        (("show", "loo"), 0),
        (("show", "looked", "--engine"), 0),
        (("show", "looked", "--step", "load"), 0),
        (("state", "looked", "--at", "2"), 0),
        (("events", "looked"), 0),
        (("events", "looked", "--follow", "--after", "3"), 0),
        (("journal", "looked"), 0),
        (("trace", "looked"), 0),
        (("logs", "looked"), 0),
        (("graph", "looked"), 0),
        (("replay", "looked"), 0),
        (("diff", "looked", "looked"), 0),
        (("list", "--workflow", "etl", "--status", "completed"), 0),
        (("list", "--workflow", "etl", "--state", "ctx.nothing=1"), 0),
        (("run", "etl.yaml", "--id", "streamed", "--stream"), 0),
    ],
    "every way a run ends": [
        (("run", "failing.yaml", "--id", "failed"), 1),
        (("run", "partial.yaml", "--id", "parted"), 5),
        (("run", "gated.yaml", "--id", "gate"), 3),
        (("patch", "gate", "approved=true", "--user", "ann"), 0),
        (("run", "gated.yaml", "--id", "ended", "--until-wait"), 3),
        (("cancel", "ended", "--reason", "enough", "--user", "ann"), 0),
        (("show", "ended"), 0),
        (("run", "parent.yaml", "--id", "family"), 0),
        (("delete", "ended", "--user", "ann"), 0),
        (("delete", "ended"), 2),
        (("delete", "--workflow", "partial", "--status", "partial", "--dry-run"), 0),
    ],
    "definitions": [
        (("deploy", "renewal.yaml", "etl.yaml", "--user", "ann"), 0),
        (("definitions",), 0),
        (("export", "PolicyRenewal"), 0),
        (("graph", "PolicyRenewal"), 0),
        (("deploy", "broken.yaml"), 2),
        (("run", "broken.yaml"), 2),
        (("deploy", "clash.yaml"), 2),
        (("run", "nowhere.yaml"), 2),
        (("run", "Nobody"), 2),
        (("export", "Nobody"), 2),
    ],
    "people and signals": [
        (("run", "renewal.yaml", "--id", "renewal", "-i", "policy_id=P-7"), 3),
        (("tasks", "--reference", "P-7"), 0),
        (("task", "show", "TASK:renewal"), 0),
        (("task", "claim", "TASK:renewal", "--user", "bob", "--role", "guest"), 1),
        (("task", "claim", "TASK:renewal", *ANN), 0),
        (("task", "comment", "TASK:renewal", "--text", "asked", *ANN), 0),
        (("task", "release", "TASK:renewal", *ANN), 0),
        (("task", "claim", "TASK:renewal", *ANN), 0),
        (("task", "assign", "TASK:renewal", "--to", "ann", *ANN), 0),
        (("task", "complete", "TASK:renewal", "--data", "{}", *ANN), 2),
        (("task", "complete", "TASK:renewal", "--data", '{"answer": "yes"}', *ANN), 3),
        (("task", "show", "f" * 32), 2),
        (("signal", "renewal", "documents", "--expected-version", "1", "--user", "ann"), 1),
        (("signal", "--reference", "nobody", "documents"), 1),
        (("signal", "renewal", "documents", "--data", '{"pages": 3}', "--user", "ann"), 0),
        (("signal", "renewal", "documents", "--user", "ann"), 0),
    ],
    "going on": [
        (("run", "stalling.yaml", "--id", "stuck"), 3),
        (("retry", "stuck", "--skip", "--value", "{}", "--user", "ann"), 0),
        (("retry", "stuck"), 1),
        (("fork", "looked", "--at", "1", "--id", "again", "--user", "ann"), 0),
        (("fork", "looked", "--at", "999", "--id", "never"), 2),
        (("retry", "--all-failed", "--workflow", "failing", "--dry-run"), 0),
        (("cancel", "stuck", "nobody-there"), 2),
    ],
    "other definitions": [
        (
            ("fork", "looked", "--at", "1", "--definition", "mended.yaml", "--id", "mended", "--user", "ann"),
            0,
        ),
        (("fork", "looked", "--at", "1", "--definition", "Nobody", "--id", "never"), 2),
        (("replay", "looked", "--against", "mended.yaml"), 0),
        (("replay", "looked", "--against", "failing.yaml"), 1),
        (("record", "looked"), 0),
        (("record", "nobody-there"), 2),
        (("resume", "looked"), 0),
    ],
    "keeping house": [
        (("secret", "set", "shop", "--value", "s", "--user", "ann"), 0),
        (("secret", "list"), 0),
        (("secret", "remove", "shop", "--user", "ann"), 0),
        (("secret", "remove", "shop", "--user", "ann"), 2),
        (("deploy", "renewal.yaml", "--user", "ann"), 0),
        (("hook", "set", "orders", "--workflow", "PolicyRenewal", "--secret", "shop", "--user", "ann"), 0),
        (("hook", "set", "orders", "--secret", "shop", "--user", "ann"), 2),
        (("hook", "list"), 0),
        (("hook", "remove", "orders", "--user", "ann"), 0),
        (("hook", "remove", "orders", "--user", "ann"), 1),
        (
            (
                "schedule",
                "add",
                "nightly",
                "PolicyRenewal",
                "--cron",
                "30 2 * * *",
                "-i",
                "policy_id=P-9",
                "--user",
                "ann",
            ),
            0,
        ),
        (("schedule", "add", "nightly", "PolicyRenewal", "--every", "1h", "--user", "ann"), 2),
        (("schedule", "add", "odd", "Nobody", "--every", "1h", "--user", "ann"), 2),
        (("limit", "set", "PolicyRenewal", "--concurrency", "900", "--queue", "5", "--user", "ann"), 0),
        (("limit", "set", "PolicyRenewal", "--rate", "often", "--user", "ann"), 2),
        (("limit", "list"), 0),
        (("limit", "remove", "PolicyRenewal", "--user", "ann"), 0),
        (("limit", "remove", "PolicyRenewal", "--user", "ann"), 2),
        (("retention", "set", "PolicyRenewal", "--keep", "failed=90d", "--user", "ann"), 0),
        (("retention", "set", "PolicyRenewal", "--keep", "soon", "--user", "ann"), 2),
        (("retention", "set", "--all", "--keep", "30d", "--user", "ann"), 0),
        (("retention", "list"), 0),
        (("retention", "remove", "PolicyRenewal", "--user", "ann"), 0),
        (("retention", "remove", "PolicyRenewal", "--user", "ann"), 2),
        (("schedule", "list"), 0),
        (("schedule", "show", "nightly"), 0),
        (("schedule", "pause", "nightly", "--user", "ann"), 0),
        (("schedule", "resume", "nightly", "--user", "ann"), 0),
        (("schedule", "change", "nightly", "--jitter", "1m", "--user", "ann"), 0),
        (("schedule", "preview", "--every", "1h"), 0),
        (("schedule", "backfill", "nightly", "--since", "2030-01-01T00:00:00Z"), 2),
        (("schedule", "remove", "nightly", "--user", "ann"), 0),
        (("schedule", "remove", "nightly", "--user", "ann"), 2),
        (("audit", "--by", "ann", "--action", "hook"), 0),
        (("token", "revoke", "0123456789abcdef", "--user", "ann"), 1),
        (("token", "list"), 0),
        (("deadletter", "list"), 0),
        (("deadletter", "show", "nobody"), 1),
        (("deadletter", "replay", "nobody", "--user", "ann"), 1),
        (("deadletter", "discard", "nobody", "--user", "ann"), 1),
        (("gc", "--user", "ann"), 0),
    ],
    "an application": [
        (
            (
                "publish",
                "com.acme/OrderCreated@1",
                "--data",
                '{"order_id": "o-1", "cents": 5}',
                "--submission-id",
                "s-1",
            ),
            0,
        ),
        (("cells", "com.acme/order@1"), 0),
        (("cell", "com.acme/order@1", "o-1"), 0),
        (("cell", "com.acme/order@1", "o-2"), 2),
        (("snapshot", "--user", "ann"), 0),
        (("shadow", "shop.py:app"), 0),
        (("apply", "shop.py:app", "--user", "ann"), 0),
        (("apply", "etl.yaml", "--user", "ann"), 2),
    ],
    "kept although it is invalid": [
        (("deploy", "invalid.yaml"), 2),
        (("deploy", "invalid.yaml", "--validation", "warn"), 0),
        (("deploy", "invalid.yaml", "--validation", "perhaps"), 2),
        (("run", "invalid"), 2),
    ],
    "what cannot be": [
        (("show", "nobody-there"), 2),
        (("events", "nobody-there"), 2),
        (("state", "looked", "--at", "999"), 2),
        (("run", "etl.yaml", "--id", "looked", "-i", "day=sunday"), 2),
        (("run", "renewal.yaml", "--input", "{}"), 2),
        (("replay", "nobody-there"), 2),
        (("list", "--status", "odd"), 2),
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_a_command_says_and_exits_the_same_on_a_store_and_through_a_server(
    story: str, both: Callable[..., Answer]
) -> None:
    if story in ("going on", "what cannot be", "other definitions"):
        both(*RUN, code=0)
    for arguments, code in STORIES[story]:
        both(*arguments, code=code)


# What a story cannot compare, because it is another each time or closes the server: tests of their own have them.
APART = frozenset({"token create", "doctor", "schedule trigger", "transcript"})


def test_the_doctor_looks_at_the_same_things_of_a_server(cli: Cli, sides: Sides) -> None:
    here, there = (
        cli("doctor", *place, "--json") for place in (("--store", sides.store), ("--server", sides.url))
    )
    assert here.code == there.code
    assert here.json.keys() == there.json.keys()


def test_a_schedule_is_triggered_through_a_server_as_on_a_store(cli: Cli, sides: Sides) -> None:
    triggered = []
    for place in (("--store", sides.store), ("--server", sides.url)):
        cli("deploy", str(sides.folder / "etl.yaml"), *place, "--json", code=0)
        add = (
            "schedule",
            "add",
            "by-hand",
            "etl",
            "--every",
            "1h",
            "--paused",
            "--input",
            '{"day": "monday"}',
        )
        cli(*add, *place, "--json", code=0)
        run = cli("schedule", "trigger", "by-hand", *place, "--json", code=0).json
        assert run["id"].startswith("by-hand@")
        triggered.append(run)
    here, there = triggered
    assert here.keys() == there.keys()
    assert (here["workflow"], here["input"]) == (there["workflow"], there["input"])


def test_a_transcript_is_the_same_through_a_server(cli: Cli, sides: Sides) -> None:
    node = {"name": "A", "instruction": "Look at it."}
    flow = {"id": "talk", "name": "talk", "entry": "a", "nodes": {"a": node}, "edges": []}
    (sides.folder / "talk.json").write_text(json.dumps(flow))
    (sides.folder / "talk-script.json").write_text(json.dumps({"run": {"a": [{"text": "seen", "data": {}}]}}))
    told = []
    for place in (("--store", sides.store), ("--server", sides.url)):
        script = f"scripted:{sides.folder}/talk-script.json"
        file = str(sides.folder / "talk.json")
        cli("run", file, "--model", script, "--id", "talked", *place, "--json", code=0)
        told.append(_plain(cli("transcript", "talked", *place, "--json", code=0).out))
    assert told[0] == told[1]
    assert told[0][0]["entries"][0]["answer"]["text"] == "seen"


def listed() -> dict[str, Command]:
    return {
        f"{group.group} {command.name}" if group.group else command.name: command
        for group in [subject.load() for subject in SUBJECTS]
        for command in group.made
    }


def test_a_command_that_does_not_speak_to_a_server_says_why() -> None:
    refusing = {name: command for name, command in listed().items() if command.reach is Reach.STORE}
    del refusing["worker"]  # it names its servers itself
    assert refusing.keys() <= {
        "serve",
        "mcp",
        "migrate",
        "backup",
        "restore",
        "archive restore",
        "secret rotate",
    }
    assert [name for name, command in refusing.items() if not command.why] == []


def test_every_command_that_speaks_to_a_server_is_compared_with_a_store() -> None:
    """A new command gets a story: the same document and the same exit code on both."""
    told = {
        " ".join(words[:2]) if " ".join(words[:2]) in listed() else words[0]
        for story in STORIES.values()
        for words, _ in story
    }
    speaking = {name for name, command in listed().items() if command.reach is Reach.EITHER}
    assert speaking <= told | APART


@pytest.mark.parametrize("name", ["serve", "migrate"])
def test_a_command_that_needs_a_store_says_so(cli: Cli, sides: Sides, name: str) -> None:
    refused = cli(name, "--server", sides.url, "--json", code=2).error
    assert refused["code"] == "NOT_ON_A_SERVER"


def test_the_environment_names_a_server_unless_a_store_is_named(
    cli: Cli, sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SERVER", "http://127.0.0.1:9")
    assert cli("list", "--json", code=1).error["code"] == "SERVER_AWAY"
    assert cli("--server", sides.url, "list", "--json", code=0).out
    assert cli("list", "--store", "sqlite:///none.db", "--json", code=0).json == []
    assert cli("list", "--store", "memory:", "--server", sides.url, "--json", code=2).error["code"] == "USAGE"
    assert cli("list", "--server", "ftp://somewhere", "--json", code=2).error["code"] == "USAGE"


def test_python_is_not_sent_to_a_server(cli: Cli, sides: Sides, write: Callable[[str, str], Path]) -> None:
    write(
        "made.py",
        "from treadle import flow\n\n\n@flow.workflow\nasync def hello(ctx, who: str) -> str:\n    return who\n",
    )
    refused = cli("run", "made.py:hello", "--server", sides.url, "--json", code=1).error
    assert refused["code"] == "CODE_NOT_TAKEN"


def test_a_wrong_token_is_refused_and_a_right_one_acts(
    cli: Cli, write: Callable[[str, str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("etl.yaml", ETL)
    monkeypatch.setenv("TREADLE_STORE", f"sqlite:///{folder}/served.db")
    token = cli("token", "create", "--user", "ann", "--role", "admin", code=0).out.strip()
    process, url = serving(folder)
    try:
        assert cli("list", "--server", url, "--json", code=1).error["code"] == "UNAUTHENTICATED"
        wrong = cli("list", "--server", url, "--token", "tdl_wrong", "--json", code=1).error
        assert (wrong["class"], wrong["code"]) == ("authorization", "UNAUTHENTICATED")
        monkeypatch.setenv("TREADLE_TOKEN", token)
        assert cli("run", "etl.yaml", "--server", url, "--json", code=0).json["status"] == "completed"
        bob = cli(
            "token", "create", "--user", "bob", "--role", "viewer", "--server", url, "--json", code=0
        ).json
        assert (bob["user"], bob["roles"]) == ("bob", ["viewer"])
        monkeypatch.setenv("TREADLE_TOKEN", bob["token"])
        assert len(cli("list", "--server", url, "--json", code=0).json) == 1, (
            "what a server made counts there"
        )
        denied = cli("run", "etl.yaml", "--server", url, "--json", code=1).error
        assert denied["code"] == "FORBIDDEN"
    finally:
        process.kill()
        process.communicate(timeout=60)


async def test_a_server_that_goes_away_in_the_middle_is_an_error_that_says_what_is_known(
    folder: Path, write: Callable[[str, str], Path]
) -> None:
    gated = write("gated.yaml", GATED)
    process, url = serving(folder)
    try:
        async with HttpClient(url, user="ann", patience_s=0.5) as client:
            run = await client.start(client.load(str(gated))[0], id="left")
            seen = [event async for event in run.events(follow=False)]
            events = run.events(follow=True)
            assert await anext(events) == seen[0]
            process.kill()
            process.wait(60)
            with pytest.raises(ServerAway):
                async for event in events:
                    seen.remove(event)
            with pytest.raises(ServerAway):
                await run.show()
            with pytest.raises((ServerAway, AnswerUnknown)):
                await client.patch("left", {"approved": True})
    finally:
        process.kill()
        process.communicate(timeout=60)
