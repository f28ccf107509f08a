"""`treadle serve --processes N`: members of one store behind one port, looked after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg

from .conftest import FLOW
from .test_serve import serving


def until(so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shares(store: str) -> dict[str, int]:
    """How many shards each member holds."""
    with psycopg.connect(store) as connection:
        found = connection.execute(
            "SELECT owner, count(*) FROM shards WHERE owner IS NOT NULL GROUP BY owner"
        )
        return dict(found.fetchall())


def shared_evenly(store: str, *, without: Collection[str] = ()) -> bool:
    found = shares(store)
    return sorted(found.values()) == [32, 32] and not set(found) & set(without)


def greeted(url: str) -> str:
    api = f"{url}/api/v1"
    # A client's connection may be to a process that is killed: what is not answered is asked again.
    with httpx.Client(transport=httpx.HTTPTransport(retries=3), timeout=60) as client:
        id = client.post(f"{api}/runs", json={"workflow": "greet"}).json()["id"]
        return str(client.post(f"{api}/runs/{id}/wait").json()["status"])


def test_processes_share_a_port_a_store_and_a_log_and_one_that_dies_is_started_again(
    tmp_path: Path, pg_store: str
) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    options = ("--store", pg_store, "--processes", "2", "--name", "ann", "--deploy", "flow.yaml")
    with serving(tmp_path, *options, "--log", "json") as (keeper, said):
        assert (said["processes"], said["name"]) == (2, "ann")
        before = children(keeper.pid)
        assert len(before) == 2, "ready means: all of them are"
        until(lambda: shared_evenly(pg_store), "they share the shards")
        first = shares(pg_store)
        assert greeted(said["url"]) == "completed"

        refused = httpx.post(f"{said['url']}/api/v1/work/take", json={"worker": "w", "limit": 1, "wait": 0})
        assert (refused.status_code, refused.json()["code"]) == (422, "UNSUPPORTED"), (
            "each has work of its own"
        )

        os.kill(before[0], signal.SIGKILL)
        until(
            lambda: len(children(keeper.pid)) == 2 and before[0] not in children(keeper.pid), "started again"
        )
        dead = next(name for name in first if f":{before[0]}:" in name)
        until(lambda: shared_evenly(pg_store, without=[dead]), "and has its share")
        assert greeted(said["url"]) == "completed"

        after = children(keeper.pid)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
        assert not any(map(lives, after)), "all have drained"
        assert shares(pg_store) == {}, "and given their shards away"
        assert keeper.stderr is not None
        lines = [json.loads(line) for line in keeper.stderr.read().splitlines()]
        signed = {line["server"] for line in lines if line["logger"] == "treadle.server.requests"}
        assert {*signed, "ann-1", "ann-2"} == {"ann-1", "ann-2"}, "each line says whose it is"
        assert [line for line in lines if "ann-" in line["message"] and "started again" in line["message"]]


def test_processes_on_a_file_are_refused_with_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle.cli", "serve", "--store", f"sqlite:///{tmp_path}/t.db"]
    done = subprocess.run(
        [*command, "--processes", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "PostgreSQL" in done.stderr
    assert not (tmp_path / "t.db").exists()


KEEPS = """
import asyncio, socket, sys
from treadle.server.processes import ProcessKeeper

async def main():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        keeper = ProcessKeeper(sock, "k", 3, [sys.executable, "-c", sys.argv[1]])
        return await keeper.run(lambda about: print(about["processes"], flush=True))

sys.exit(asyncio.run(main()))
"""

CHILD = """
import os, select, signal, sys
from treadle.server.processes import place

def told(number, frame):
    sys.exit(0)

# A signal that comes right before a wait would not end it: it is waited for as well.
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)

def wait(*places):
    while woken in select.select([woken, *places], [], [])[0]:
        os.read(woken, 1)

signal.signal(signal.SIGTERM, told)
here = place()
os.write(2, (here.name + "\\n").encode())
{serves}
wait(here.keeper)
"""


# The fourth process cannot be started.
CROWDED = """
made, start = 0, asyncio.create_subprocess_exec

async def sometimes(*command, **more):
    global made
    made += 1
    if made == 4:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return await start(*command, **more)

asyncio.create_subprocess_exec = sometimes

async def main"""


@contextmanager
def keeping(
    serves: str = 'here.say_ready({"url": ""})', keeps: str = KEEPS
) -> Iterator[subprocess.Popen[str]]:
    """A keeper of children that do nothing but keep its rules; `serves` is what they do before they wait."""
    command = [sys.executable, "-c", keeps, CHILD.format(serves=serves)]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_what_the_first_process_refuses_is_refused_once() -> None:
    with keeping("sys.exit(2)") as keeper:
        said, log = keeper.communicate(timeout=60)
        assert (keeper.returncode, said) == (2, "")
        assert log.splitlines() == ["k-1"], "the others were not started"


def test_ready_is_said_when_the_last_one_serves_and_not_before(tmp_path: Path) -> None:
    # The third fails at first; then it serves.
    once = tmp_path / "failed"
    serves = f"""
failed = os.path.exists({str(once)!r})
if here.name == "k-3" and not failed:
    open({str(once)!r}, "w").close()
    sys.exit(1)
here.say_ready({{"url": ""}})
"""
    with keeping(serves) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "3\n"
        assert once.exists()
        assert len(children(keeper.pid)) == 3
        keeper.send_signal(signal.SIGINT)
        assert keeper.wait(60) == 0


def test_processes_drain_when_their_keeper_is_gone() -> None:
    with keeping() as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        kept = children(keeper.pid)
        keeper.kill()
        until(lambda: not any(map(lives, kept)), "nobody is left behind")


def test_one_that_cannot_stay_is_started_again_ever_more_slowly() -> None:
    stays = 'here.say_ready({"url": ""})\nif here.name == "k-2":\n    sys.exit(3)'
    with keeping(stays) as keeper:
        assert keeper.stderr is not None
        pauses: list[float] = []
        for line in keeper.stderr:
            if line.startswith("k-2 ended (3)"):
                pauses.append(float(line.split()[-2]))
            if len(pauses) == 3:
                break
        assert pauses == [0.2, 0.4, 0.8]
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0


def test_one_for_which_the_system_has_no_room_is_tried_again_and_the_others_go_on() -> None:
    with keeping(keeps=KEEPS.replace("\nasync def main", CROWDED)) as keeper:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        keeper.stdout.readline()
        before = children(keeper.pid)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len({*children(keeper.pid)} - {*before}) == 1, "another has taken its place")
        assert {*before[1:]} <= {*children(keeper.pid)}
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
        assert "cannot be started" in keeper.stderr.read()


def test_a_second_signal_has_all_leave_at_once() -> None:
    # They take their time to drain, unless they are told again.
    slow = """
def again(number, frame):
    os._exit(1)

def told(number, frame):
    signal.signal(signal.SIGTERM, again)
    os.write(2, b"draining\\n")  # in one go: three of them write to one pipe
    wait()

signal.signal(signal.SIGTERM, told)
here.say_ready({"url": ""})
"""
    with keeping(slow) as keeper:
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        keeper.stdout.readline()
        keeper.send_signal(signal.SIGTERM)
        draining = 0
        while draining < 3:
            draining += keeper.stderr.readline() == "draining\n"
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 1
