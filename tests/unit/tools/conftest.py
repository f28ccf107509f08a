"""Real servers for the tools: HTTP in a thread, PostgreSQL and NATS as processes of the session."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from treadle.tools.protocol import Outcome, ToolCall
from treadle.tools.registry import ToolRegistry

Run = Callable[..., Awaitable[Outcome]]


@pytest.fixture
async def registry() -> AsyncIterator[ToolRegistry]:
    registry = ToolRegistry()
    yield registry
    await registry.close()


@pytest.fixture
def run(registry: ToolRegistry) -> Run:
    """Runs one task: `await run("http", {...}, attempt=2)`."""

    async def run(kind: str, config: dict[str, Any], **call: Any) -> Outcome:
        return await registry.get(kind, config).run(config, ToolCall(**call))

    return run


class HttpServer(ThreadingHTTPServer):
    """Answers by path, and remembers what it was asked."""

    daemon_threads = True
    url: str
    log: list[dict[str, Any]]
    failures_left: int


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        seen = {
            "method": self.command,
            "path": parts.path,
            "query": [list(pair) for pair in parse_qsl(parts.query)],
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body,
            "peer": self.client_address[1],
        }
        self.server.log.append(seen)
        name, _, rest = parts.path.strip("/").partition("/")
        getattr(self, f"on_{name}")(rest, dict(parse_qsl(parts.query)), seen)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    def on_echo(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(200, seen, **{"X-Request-Id": "req-1"})

    def on_status(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(
            int(rest), {"said": rest}, **({"Retry-After": query["after"]} if "after" in query else {})
        )

    def on_raw(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(200, query.get("body", ""), **{"Content-Type": query.get("type", "")})

    def on_redirect(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(302, None, Location=query["to"])

    def on_cookie(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(200, seen, **{"Set-Cookie": "session=1; Path=/"})

    def on_big(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.answer(200, "x" * int(rest), **{"Content-Type": "text/plain"})

    def on_slow(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        # Until the client gives up, or long after every test's patience.
        self.connection.settimeout(20)
        with_data = b""
        try:
            with_data = self.connection.recv(1)
        except OSError:
            with_data = b"?"
        self.close_connection = True
        assert with_data is not None

    def on_drop(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.close_connection = True

    def on_flaky(self, rest: str, query: dict[str, str], seen: dict[str, Any]) -> None:
        self.server.failures_left -= 1
        self.answer(503 if self.server.failures_left >= 0 else 200, {"left": self.server.failures_left})

    def answer(self, status: int, body: Any, **headers: str) -> None:
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **headers}
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests stay quiet."""


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    server.log, server.failures_left = [], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def web(http_server: HttpServer) -> HttpServer:
    http_server.log.clear()
    return http_server


@pytest.fixture
def pg(pg_uri: str) -> dict[str, str]:
    """Connection fields with a schema that is new for this test."""
    schema = f"t_{secrets.token_hex(6)}"
    with psycopg.connect(pg_uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[arg-type]
    host = conninfo_to_dict(pg_uri)["host"]
    return {
        "db_host": str(host),
        "db_user": "postgres",
        "db_name": "postgres",
        "options": f"-csearch_path={schema}",
    }


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server with JetStream on a free port; user `ann` needs a password."""
    folder = tmp_path_factory.mktemp("nats")
    config = folder / "server.conf"
    config.write_text(
        f'port: -1\nhost: 127.0.0.1\nports_file_dir: "{folder}"\njetstream {{ store_dir: "{folder}/js" }}\n'
        "authorization { users: [ {user: ann, password: secret-of-ann} ] }\n"
    )
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    server = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(folder.glob("*.ports")) and _ports(folder) != [])
        yield _ports(folder)[0]
    finally:
        server.terminate()
        server.wait(10)


def _ports(folder: Path) -> list[str]:
    try:
        return list(json.loads(next(folder.glob("*.ports")).read_text())["nats"])
    except (ValueError, StopIteration):
        return []


def wait_until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    """Waits for something that happens outside this process."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        threading.Event().wait(0.01)
