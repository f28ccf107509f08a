"""Seed 004 §12 against a paginated HTTP server and a real PostgreSQL, with everything going wrong.

429, 500 and 404 answers, a deadlock, and a worker killed in mid-pagination: afterwards every row is
there once, and no page whose checkpoint was durable was fetched again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from tests import nursery

from .harness import DIALECT, parse

EXAMPLE = Path(__file__).parents[3] / "examples" / "playbook" / "paginated_api.yaml"
PAGES = 6
ENDPOINTS = ["/users", "/orders", "/busy", "/broken", "/gone"]

TABLES = """
CREATE TABLE results_ok (endpoint text, page int, item text);
CREATE TABLE results_not_found (endpoint text, page int);
CREATE SEQUENCE inserts;
CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.endpoint = '/orders' AND nextval('inserts') = 3 THEN
    RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER sometimes BEFORE INSERT ON results_ok FOR EACH ROW EXECUTE FUNCTION deadlock();
"""


class Pages(ThreadingHTTPServer):
    url: str
    served: list[tuple[str, int, int]]
    gate: threading.Event


class Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        page = int(parse_qs(asked.query)["page"][0])
        status = self._status(asked.path, page)
        body = {
            "data": [f"{asked.path}-{page}-{n}" for n in range(3)],
            "paging": {"page": page, "hasMore": page < PAGES},
        }
        data = json.dumps(body if status == 200 else {"error": status}).encode()
        # From here on pages come only once the first worker is dead.
        if page > 3 and asked.path in ("/users", "/orders"):
            self.server.gate.wait(20)
        self.server.served.append((asked.path, page, status))
        # Whoever asked may have been killed meanwhile.
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def _status(self, path: str, page: int) -> int:
        earlier = [item for item in self.server.served if item[:2] == (path, page)]
        if path == "/gone":
            return 404
        if path == "/busy" and page == 2 and not earlier:
            return 429
        if path == "/broken" and page == 1 and not earlier:
            return 500
        return 200

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def pages() -> Iterator[Pages]:
    server = Pages(("127.0.0.1", 0), Handler)
    server.url, server.served, server.gate = (
        f"http://127.0.0.1:{server.server_address[1]}",
        [],
        threading.Event(),
    )
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def database(pg_uri: str) -> Iterator[str]:
    """A database of this test's own on the session's PostgreSQL."""
    with psycopg.connect(pg_uri, autocommit=True) as server:
        server.execute("CREATE DATABASE seed_example")
    uri = make_conninfo(pg_uri, dbname="seed_example")
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(TABLES)
    yield uri
    with psycopg.connect(pg_uri, autocommit=True) as server:
        server.execute("DROP DATABASE seed_example WITH (FORCE)")


def wait_for(what: str, condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.01)


def test_the_example_is_the_seeds_own_but_for_what_is_said() -> None:
    """Apart from SQL, its parameters, `once` and the two added steps, the text is the seed's."""
    value = yaml.safe_load(EXAMPLE.read_text())
    step = value["workflow"][0]
    assert [task["name"] for task in step["tool"]] == [
        "init_iter",
        "fetch_page",
        "route_by_status",
        "store_200",
        "store_404",
        "paginate",
    ]
    fetch = step["tool"][1]
    assert fetch["url"] == "{{ workload.api_url }}{{ iter.endpoint.path }}"
    assert fetch["spec"]["policy"]["rules"][0]["then"] == {
        "do": "retry",
        "attempts": 10,
        "backoff": "exponential",
        "delay": 2.0,
    }
    definition, problems = DIALECT.compile(parse(EXAMPLE.read_text()), strict=True)
    assert definition is not None
    assert list(problems) == []


def test_every_row_once_in_spite_of_everything(pages: Pages, database: str, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text(yaml.safe_dump({"pg_k8s": {"db_conn_string": database}}))
    given = {"api_url": pages.url, "endpoints": [{"path": path, "page_size": 3} for path in ENDPOINTS]}
    store = f"sqlite:///{tmp_path}/treadle.db"
    command = [
        str(Path(__file__).parent / "drive.py"),
        store,
        str(EXAMPLE),
        str(secrets),
        json.dumps(given),
    ]

    first = nursery.Process(command, stdout=nursery.DEVNULL)
    with psycopg.connect(database, autocommit=True) as connection:

        def stored() -> int:
            row = connection.execute(
                "SELECT count(DISTINCT (endpoint, page)) FROM results_ok WHERE endpoint IN ('/users', '/orders')"
            ).fetchone()
            return int(row[0]) if row else 0

        wait_for("three pages of two endpoints", lambda: stored() == 6)
        wait_for(
            "requests for the fourth pages", lambda: _checkpoints_at_page(tmp_path / "treadle.db", 4) >= 2
        )
        first.kill()
        first.wait()
        before = Counter((path, page) for path, page, status in pages.served if status == 200)
        pages.gate.set()
        second = nursery.run(command)
        assert second.returncode == 0, second.stderr
        shown = json.loads(second.stdout)
        assert shown["status"] == "completed", shown
        rows = connection.execute("SELECT endpoint, page, item FROM results_ok").fetchall()
        gone = connection.execute("SELECT endpoint, page FROM results_not_found").fetchall()
        (tried,) = connection.execute("SELECT last_value FROM inserts").fetchone() or (0,)

    wanted = {
        (path, page, f"{path}-{page}-{n}")
        for path in ENDPOINTS[:4]
        for page in range(1, PAGES + 1)
        for n in range(3)
    }
    assert Counter(rows) == Counter(wanted)
    assert gone == [("/gone", 1)]
    assert tried > 3 * PAGES, "the deadlock did not happen"
    assert [row["rows"] for row in shown["result"]["rows"]] == [18, 18, 18, 18]
    after = Counter((path, page) for path, page, status in pages.served if status == 200)
    again = {
        key: count
        for key, count in after.items()
        if count > 1 and key[0] in ("/users", "/orders") and key[1] < 4
    }
    assert again == {}, "pages below the checkpoint were fetched again"
    assert before.total() < after.total()
    statuses = {status for _, _, status in pages.served}
    assert statuses == {200, 404, 429, 500}


def _checkpoints_at_page(file: Path, page: int) -> int:
    """How many of the pages' pipelines are durably about to fetch this page."""
    import sqlite3

    from treadle.kernel.values import decode_trusted

    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection, connection:
        bodies = [decode_trusted(body) for (body,) in connection.execute("SELECT body FROM checkpoints")]
    frames = [body["iter"] for body in bodies if isinstance(body, dict) and "iter" in body]
    return sum(
        1 for frame in frames if frame["endpoint"]["path"] in ("/users", "/orders") and frame["page"] == page
    )
