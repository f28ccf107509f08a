from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from treadle.tools.duckdb import DuckDbSession

from .conftest import wait_until


async def test_the_result_is_that_of_the_last_statement(run):
    task = {
        "database": ":memory:",
        "commands": [
            "create table t (a int); insert into t values (1), (2)",
            "select a, a * 1.5 as b from t order by a",
        ],
    }
    outcome = await run("duckdb", task)
    assert outcome.error is None
    last = {"rows": [{"a": 1, "b": "1.5"}, {"a": 2, "b": "3.0"}], "columns": ["a", "b"], "row_count": 2}
    each = {f"command_{n}": {"rows": [], "columns": [], "row_count": count} for n, count in enumerate((0, 2))}
    assert outcome.result == {"status": "ok", **last, "statement_count": 3, **each, "command_2": last}
    changed = await run("duckdb", {"command": "create table t (a int); insert into t values (1), (2)"})
    assert (changed.result["row_count"], changed.result["rows"], changed.result["columns"]) == (2, [], [])


async def test_a_file_keeps_what_was_written_and_is_free_afterwards(run, tmp_path):
    await run(
        "duckdb", {"database": "d.duckdb", "command": "create table t as select 42 as x"}, base=str(tmp_path)
    )
    outcome = await run(
        "duckdb", {"database": str(tmp_path / "d.duckdb"), "query": "select x from t", "read_only": True}
    )
    assert outcome.result["rows"] == [{"x": 42}]
    code = f"import duckdb; print(duckdb.connect({str(tmp_path / 'd.duckdb')!r}).execute('select x from t').fetchall())"
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert await other.communicate() == (b"[(42,)]\n", None)


async def test_values_become_plain(run):
    query = (
        "select date '2026-11-15' d, 170141183460469231731687303715884105727::hugeint h, map{1: 'x'} m, {'k': [1, null]} s, "
        "'00000000-0000-0000-0000-000000000001'::uuid u, '\\xFF'::blob b"
    )
    assert (await run("duckdb", {"query": query})).result["rows"] == [
        {
            "d": "2026-11-15",
            "h": "170141183460469231731687303715884105727",
            "m": {"1": "x"},
            "s": {"k": [1, None]},
            "u": "00000000-0000-0000-0000-000000000001",
            "b": b"\xff",
        }
    ]


async def test_a_number_that_cannot_be_kept_is_refused_and_its_column_named(run):
    with pytest.raises(TypeError, match=r"\$\.rows\[1\]\.n: nan is not a number that can be kept"):
        await run("duckdb", {"query": "select unnest([1.0, 'nan'::double]) n"})


async def test_commands_are_one_transaction_unless_autocommit(run, tmp_path):
    database = str(tmp_path / "d.duckdb")

    async def duck(*commands, **config):
        return await run("duckdb", {"database": database, "commands": list(commands), **config})

    await duck("create table t (a int primary key)")
    failed = await duck("insert into t values (1)", "insert into t values (1)")
    assert failed.error["kind"] == "db_constraint"
    assert (await duck("select count(*) n from t")).result["rows"] == [{"n": 0}]
    await duck("insert into t values (1)", "insert into t values (1)", autocommit=True)
    assert (await duck("select count(*) n from t")).result["rows"] == [{"n": 1}]


async def test_params_by_name_and_by_position(run):
    named = await run(
        "duckdb",
        {
            "commands": [
                "create table t (a text)",
                "insert into t values ($a)",
                "select a from t where a = $a",
            ],
            "params": {"a": "it's"},
        },
    )
    assert named.result["rows"] == [{"a": "it's"}]
    assert (await run("duckdb", {"query": "select ? + ? as s", "params": [1, 2]})).result["rows"] == [
        {"s": 3}
    ]
    assert (await run("duckdb", {"query": "select 1; select ?", "params": [1]})).error["kind"] == "schema"


async def test_attachments(run, tmp_path):
    await run(
        "duckdb", {"database": str(tmp_path / "other.duckdb"), "command": "create table t as select 7 as x"}
    )
    task = {
        "query": "select x from o.t",
        "attachments": [{"path": "other.duckdb", "alias": "o", "read_only": True}],
    }
    assert (await run("duckdb", task, base=str(tmp_path))).result["rows"] == [{"x": 7}]


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("selec 1", "parse"),
        ("select * from nowhere", "schema"),
        ("select nothing", "schema"),
        ("select 'x'::int", "transform"),
        ("create table t (a int primary key); insert into t values (1), (1)", "db_constraint"),
        ("select * from read_csv('/no/such/file.csv')", "storage_access"),
        (
            "set memory_limit = '10MB'; set max_temp_directory_size = '0MB'; create table t as select range a, random() b, random()::text c from range(3000000) order by b",
            "storage_quota",
        ),
        ("", "schema"),
    ],
)
async def test_error_kinds(run, query, kind):
    outcome = await run("duckdb", {"query": query})
    assert outcome.error["kind"] == kind, outcome.error
    assert outcome.error["retryable"] is False


async def test_a_file_that_another_process_holds_can_be_tried_again(run, tmp_path):
    database = str(tmp_path / "d.duckdb")
    code = f"import duckdb, sys; c = duckdb.connect({database!r}); c.execute('create table t (a int)'); print('ready', flush=True); sys.stdin.read()"
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert await holder.stdout.readline() == b"ready\n"
    outcome = await run("duckdb", {"database": database, "query": "select 1"})
    await holder.communicate(b"")
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("db_connection", True)


ENDLESS = "select count(*) from range(100000000) a, range(100000000) b where (a.range * b.range) % 7 = 3"


async def test_out_of_time_interrupts_the_query(run):
    outcome = await asyncio.wait_for(run("duckdb", {"query": ENDLESS, "timeout": 0.3}), 10)
    assert outcome.error["kind"] == "db_timeout"


async def test_cancel_interrupts_a_query_that_is_just_about_to_begin(tmp_path):
    begun = threading.Event()

    def late(connection):
        begun.set()
        time.sleep(0.3)
        return connection.execute(ENDLESS)

    async with DuckDbSession(str(tmp_path / "d.duckdb"), read_only=False, attachments=[]) as session:
        task = asyncio.create_task(session.call(late))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=20)
        assert not pending
        assert task.cancelled()


async def test_cancel_interrupts_the_query(run, tmp_path):
    database = tmp_path / "d.duckdb"
    task = asyncio.create_task(run("duckdb", {"database": str(database), "query": ENDLESS}))
    await asyncio.to_thread(wait_until, database.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert (await run("duckdb", {"database": str(database), "query": "select 1 as x"})).result["rows"] == [
        {"x": 1}
    ]
