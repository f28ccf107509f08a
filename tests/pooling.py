"""PgBouncer in transaction mode, in front of a test's PostgreSQL: from Debian's package, as people run it.

A database behind it is one of its own: what a connection asks for when it is made (a search path) does not get through.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from treadle.store.open import open_store

# Tests in another process may install it at the same time.
INSTALL = [
    "apt-get",
    "-o",
    "DPkg::Lock::Timeout=120",
    "install",
    "-y",
    "-qq",
    "--no-install-recommends",
    "pgbouncer",
]
TEMPLATE = "treadle_made"


def program() -> str:
    """PgBouncer, installed if need be; where it cannot be had, that is said."""
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    found = shutil.which("pgbouncer", path=search)
    why = "there is none, and only root installs packages"
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False, capture_output=True, timeout=120)
        done = subprocess.run(INSTALL, env=quiet, check=False, capture_output=True, text=True, timeout=180)
        found, why = (
            shutil.which("pgbouncer", path=search),
            f"apt-get could not install it: {done.stderr[-300:]}",
        )
    if found is None:
        pytest.skip(f"NOT CHECKED BEHIND PGBOUNCER: {why}")
    return found


class Pooler:
    def __init__(self, server: str, port: int) -> None:
        self._server = server
        self._port = port
        self._has_template = False

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a store of its own, behind the pooler."""
        if not self._has_template:
            self._make(TEMPLATE, "template1")
            open_store(self.address(TEMPLATE)).close()
            self._sever(TEMPLATE)
            self._has_template = True
        name = f"store_{secrets.token_hex(6)}"
        self._make(name, TEMPLATE)
        try:
            yield self.address(name)
        finally:
            with psycopg.connect(self._server, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def address(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def _make(self, name: str, template: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _sever(self, name: str) -> None:
        """Nobody may be connected to what is copied; the pooler keeps its connections for later."""
        with psycopg.connect(self._server, autocommit=True) as connection:
            gone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(gone, (name,))
            left = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            deadline = time.monotonic() + 60
            while connection.execute(left, (name,)).fetchone() != (0,):
                assert time.monotonic() < deadline, "the pooler does not let go"
                time.sleep(0.02)


@contextmanager
def pooling(server: str) -> Iterator[Pooler]:
    """`server` is reached over a socket in a folder."""
    found = program()
    host = parse_qs(urlsplit(server).query)["host"][0]
    folder = Path(tempfile.mkdtemp(prefix="treadle-pooler-"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(f"""
[databases]
* = host={host} port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
""")
    # As root it would not run: it is whoever the database is.
    user = pwd.getpwuid(os.stat(host).st_uid).pw_name
    shutil.chown(folder, user)
    as_user = ["-u", user] if os.geteuid() == 0 else []
    log = (folder / "log").open("wb")
    process = subprocess.Popen([found, *as_user, str(folder / "pgbouncer.ini")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "PgBouncer did not start"
                time.sleep(0.02)
        yield Pooler(server, port)
    finally:
        process.kill()
        process.wait(10)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
