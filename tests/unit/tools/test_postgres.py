from __future__ import annotations

import asyncio
import socket

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from .conftest import wait_until


@pytest.fixture
def sql(run, pg):
    """Runs one postgres task in this test's own schema."""

    async def sql(*commands, call=None, **config):
        return await run("postgres", {**pg, "commands": list(commands), **config}, **(call or {}))

    return sql


async def test_the_result_is_that_of_the_last_statement(sql):
    outcome = await sql(
        "create table t (id int primary key, name text)", "insert into t values (1, 'a'), (2, 'b')"
    )
    assert outcome.error is None
    last = {"rows": [], "columns": [], "row_count": 2}
    each = {"command_0": {"rows": [], "columns": [], "row_count": 0}, "command_1": last}
    assert outcome.result == {"status": "ok", **last, "statement_count": 2, **each}
    outcome = await sql("select * from t order by id; select id, name as label from t order by id")
    last = {
        "rows": [{"id": 1, "label": "a"}, {"id": 2, "label": "b"}],
        "columns": ["id", "label"],
        "row_count": 2,
    }
    assert outcome.result.pop("command_0")["rows"] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert outcome.result == {"status": "ok", **last, "statement_count": 2, "command_1": last}
    returned = await sql("delete from t where id = 1 returning id")
    assert (returned.result["rows"], returned.result["row_count"]) == ([{"id": 1}], 1)
    assert (await sql("select 1 as x where false")).result["columns"] == ["x"]


async def test_values_become_plain(sql):
    query = (
        "select date '2026-11-15' d, timestamptz '2026-11-15 08:00+00' at, 1.50::numeric n, "
        "'00000000-0000-0000-0000-000000000001'::uuid u, '{\"a\": [1]}'::jsonb j, array[1,2] arr, "
        "'\\xff00'::bytea b, interval '1 day 2 hours' i, '10.0.0.1'::inet net, null nothing, true yes, 2^62::bigint big"
    )
    row = (await sql("set time zone 'UTC'", query)).result["rows"][0]
    assert row == {
        "d": "2026-11-15",
        "at": "2026-11-15T08:00:00+00:00",
        "n": "1.50",
        "u": "00000000-0000-0000-0000-000000000001",
        "j": {"a": [1]},
        "arr": [1, 2],
        "b": b"\xff\x00",
        "i": "P1DT7200S",
        "net": "10.0.0.1",
        "nothing": None,
        "yes": True,
        "big": 2.0**62,
    }


async def test_a_number_that_cannot_be_kept_is_refused_and_its_column_named(sql):
    with pytest.raises(TypeError, match=r"\$\.rows\[0\]\.n: nan is not a number that can be kept"):
        await sql("select 'NaN'::float8 n")


async def test_commands_are_one_transaction_unless_autocommit(sql):
    await sql("create table t (id int primary key)")
    failed = await sql("insert into t values (1)", "insert into t values (1)")
    assert failed.error["kind"] == "db_constraint"
    assert failed.error["details"]["statement"] == 2
    assert (await sql("select count(*) n from t")).result["rows"] == [{"n": 0}]
    await sql("insert into t values (1)", "insert into t values (1)", autocommit=True)
    assert (await sql("select count(*) n from t")).result["rows"] == [{"n": 1}]
    assert (await sql("vacuum t", autocommit=True)).error is None


async def test_params_are_bound_not_pasted(sql):
    evil = "x'); drop table t; --"
    await sql("create table t (id int, name text, doc jsonb)")
    values = {"id": 1, "name": evil, "doc": {"a": [1]}}
    await sql("insert into t values (%(id)s, %(name)s, %(doc)s)", params=values)
    outcome = await sql({"sql": "select name, doc from t where id = %s", "params": [1]})
    assert outcome.result["rows"] == [{"name": evil, "doc": {"a": [1]}}]
    assert (await sql("select '100%' as p")).result["rows"] == [{"p": "100%"}], "without params a % is a %"


async def test_the_connection_in_every_spelling(run, pg, pg_uri):
    host = pg["db_host"]
    query = {"query": "select current_user as u"}
    spellings = [
        {"db_conn_string": pg_uri},
        {"connection": {"host": host, "user": "postgres", "dbname": "postgres"}},
        {"host": host, "username": "postgres", "database": "postgres"},
        {"auth": "pg_k8s"},
        {"auth": "dsn"},
        {"auth": {"credential": "pg_k8s"}},
        {"credential": "wrong_db", "db_name": "postgres"},
    ]

    async def secret(name):
        return {
            "pg_k8s": {
                "db_host": host,
                "db_user": "postgres",
                "db_name": "postgres",
                "db_password": "unused",
            },
            "dsn": make_conninfo(pg_uri),
            "wrong_db": {"host": host, "user": "postgres", "dbname": "nowhere"},
        }[name]

    for spelling in spellings:
        outcome = await run("postgres", {**query, **spelling}, secret=secret)
        assert outcome.error is None, spelling
        assert outcome.result["rows"] == [{"u": "postgres"}]


async def test_a_task_without_a_connection_or_statement_is_told_so(run, pg, monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    assert (await run("postgres", {"query": "select 1"})).error["kind"] == "schema"
    assert (await run("postgres", {**pg})).error["kind"] == "schema"
    assert (await run("postgres", {"query": "select 1", "auth": "nobody"})).error["kind"] == "auth"
    assert (await run("postgres", {"query": "select 1", "db_conn_string": "nonsense ="})).error[
        "kind"
    ] == "schema"


@pytest.mark.parametrize(
    ("command", "code", "kind", "retryable"),
    [
        ("insert into t values (1)", "23505", "db_constraint", False),
        ("insert into t values (null)", "23502", "db_constraint", False),
        ("selec 1", "42601", "parse", False),
        ("select * from nowhere", "42P01", "not_found", False),
        ("select nothing from t", "42703", "schema", False),
        ("select 1/0", "22012", "transform", False),
        ("select 'x'::int", "22P02", "transform", False),
        ("set statement_timeout = 50; select pg_sleep(10)", "57014", "db_timeout", True),
        ("do $$ begin raise exception 'mine' using errcode = 'U0001'; end $$", "U0001", "unknown", False),
        ("select pg_terminate_backend(pg_backend_pid())", "57P01", "db_connection", True),
        ("set role nobody_special; create table public.x (a int)", "42501", "auth", False),
    ],
)
async def test_error_kinds(sql, command, code, kind, retryable):
    await sql("create table t (id int primary key); insert into t values (1)")
    await sql("do $$ begin create role nobody_special; exception when duplicate_object then null; end $$")
    outcome = await sql(command)
    assert outcome.status == "error"
    assert (outcome.error["kind"], outcome.error["retryable"]) == (kind, retryable)
    assert outcome.error["code"] == f"PG_{code}"
    assert outcome.error["pg_code"] == code
    assert outcome.pg == {"code": code, "sqlstate": code}
    assert (await sql("select 1 as alive")).result["rows"] == [{"alive": 1}]


async def test_no_server_no_database_no_login(run, pg):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        outcome = await run(
            "postgres", {"db_host": "127.0.0.1", "db_port": taken.getsockname()[1], "query": "select 1"}
        )
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("db_connection", True)
    outcome = await run("postgres", {**pg, "db_name": "nowhere", "query": "select 1"})
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("not_found", False)
    outcome = await run("postgres", {**pg, "db_user": "nobody_at_all", "query": "select 1"})
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("auth", False)


async def test_a_deadlock_is_told_as_one(sql):
    await sql("create table t (id int primary key, n int); insert into t values (1, 0), (2, 0)")

    async def cross(first: int, second: int):
        return await sql(
            "set local deadlock_timeout = '50ms'",
            f"update t set n = n + 1 where id = {first}",
            "select pg_sleep(0.2)",
            f"update t set n = n + 1 where id = {second}",
        )

    outcomes = await asyncio.gather(cross(1, 2), cross(2, 1))
    failed = [outcome for outcome in outcomes if outcome.error]
    assert len(failed) == 1
    assert (failed[0].error["kind"], failed[0].pg["code"], failed[0].error["retryable"]) == (
        "db_deadlock",
        "40P01",
        True,
    )


async def test_a_serialization_failure_is_retryable(sql, pg_uri, pg):
    await sql("create table t (n int); insert into t values (0)")
    with psycopg.connect(pg_uri, options=pg["options"], autocommit=True) as other:
        other.execute("select pg_advisory_lock(77)")
        task = asyncio.create_task(
            sql(
                "set transaction isolation level repeatable read",
                "select n from t",
                "select pg_advisory_xact_lock(77)",
                "update t set n = n + 1",
            )
        )
        waits = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        await asyncio.to_thread(wait_until, lambda: other.execute(waits).fetchone() == (1,))
        other.execute("update t set n = 5")
        other.execute("select pg_advisory_unlock(77)")
        outcome = await task
    assert (outcome.error["kind"], outcome.pg["code"], outcome.error["retryable"]) == (
        "db_deadlock",
        "40001",
        True,
    )


async def test_out_of_time_cancels_the_query_on_the_server(sql, pg_uri):
    outcome = await sql("select pg_sleep(600) /* slow one */", timeout=0.3)
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("db_timeout", True)
    with psycopg.connect(pg_uri, autocommit=True) as watcher:
        query = "select count(*) from pg_stat_activity where state = 'active' and query like '%slow one%' and pid <> pg_backend_pid()"
        wait_until(lambda: watcher.execute(query).fetchone() == (0,))
    assert (await sql("select 1 as alive")).error is None


async def test_cancel_rolls_back_and_frees_the_connection(sql, pg_uri):
    await sql("create table t (id int)")
    task = asyncio.create_task(
        sql("insert into t values (1)", "select pg_sleep(600) /* cancel me */", pool={"max_size": 1})
    )
    with psycopg.connect(pg_uri, autocommit=True) as watcher:
        query = "select count(*) from pg_stat_activity where state = 'active' and query like '%cancel me%' and pid <> pg_backend_pid()"
        await asyncio.to_thread(wait_until, lambda: watcher.execute(query).fetchone() == (1,))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        wait_until(lambda: watcher.execute(query).fetchone() == (0,))
    assert (await sql("select count(*) n from t", pool={"max_size": 1})).result["rows"] == [{"n": 0}]


async def test_connections_are_kept_and_bounded(sql):
    pids = {(await sql("select pg_backend_pid() p")).result["rows"][0]["p"] for _ in range(4)}
    assert len(pids) == 1
    small = {"max_size": 1, "timeout": 0.1}
    outcomes = await asyncio.gather(sql("select pg_sleep(0.5)", pool=small), sql("select 1", pool=small))
    assert outcomes[0].error is None
    assert (outcomes[1].error["kind"], outcomes[1].error["code"]) == ("db_connection", "POOL_EXHAUSTED")
    assert (await sql("select 1", pool={"max_size": 0})).error["kind"] == "schema"


async def test_a_connection_that_the_server_closed_is_not_used_again(sql, pg_uri):
    pid = (await sql("select pg_backend_pid() p")).result["rows"][0]["p"]
    with psycopg.connect(pg_uri, autocommit=True) as killer:
        killer.execute("select pg_terminate_backend(%s)", [pid])
        wait_until(
            lambda: (
                killer.execute("select count(*) from pg_stat_activity where pid = %s", [pid]).fetchone()
                == (0,)
            )
        )
    again = await sql("select pg_backend_pid() p")
    assert again.error is None
    assert again.result["rows"][0]["p"] != pid


# --- once ---


async def test_once_does_the_work_once_and_gives_the_first_result_again(sql):
    await sql("create table t (id serial, at timestamptz default clock_timestamp())")
    insert = "insert into t default values returning id, at"
    first = await sql(insert, once=True, call={"idempotency_key": "k1"})
    again = await sql(insert, once=True, call={"idempotency_key": "k1", "attempt": 2})
    other = await sql(insert, once=True, call={"idempotency_key": "k2"})
    assert first.error is None
    assert again.result == first.result
    assert other.result["rows"][0]["id"] == 2
    assert (await sql("select count(*) n from t")).result["rows"] == [{"n": 2}]


async def test_once_forgets_a_call_that_failed(sql):
    await sql("create table t (id int primary key); insert into t values (1)")
    failed = await sql("insert into t values (1)", once=True, call={"idempotency_key": "k"})
    assert failed.error["kind"] == "db_constraint"
    await sql("delete from t")
    assert (await sql("insert into t values (1)", once=True, call={"idempotency_key": "k"})).result[
        "row_count"
    ] == 1


async def test_once_holds_when_two_workers_do_it_at_the_same_time(sql):
    await sql("create table t (id serial)")
    slow_insert = ("insert into t default values returning id", "select pg_sleep(0.2), max(id) as id from t")
    both = await asyncio.gather(
        *(sql(*slow_insert, once=True, call={"idempotency_key": "k"}) for _ in range(3))
    )
    assert [outcome.error for outcome in both] == [None] * 3
    assert {outcome.result["rows"][0]["id"] for outcome in both} == {1}
    assert (await sql("select count(*) n from t")).result["rows"] == [{"n": 1}]


@pytest.mark.parametrize(
    ("commands", "config", "key"),
    [
        (["select 1"], {"autocommit": True}, "k"),
        (["begin", "select 1", "commit"], {}, "k"),
        (["select 1"], {}, ""),
    ],
)
async def test_once_refuses_what_it_cannot_promise(sql, commands, config, key):
    outcome = await sql(*commands, once=True, call={"idempotency_key": key}, **config)
    assert outcome.error["kind"] == "schema"
    assert "once" in outcome.error["message"]


async def test_once_takes_a_key_of_its_own(sql):
    await sql("create table t (id serial)")
    for key in ("attempt-1", "attempt-2"):
        await sql("insert into t default values", once="order-17", call={"idempotency_key": key})
    assert (await sql("select count(*) n from t")).result["rows"] == [{"n": 1}]


def test_a_task_that_runs_once_may_be_repeated(registry):
    assert registry.is_idempotent("postgres", {"query": "x", "once": True}) is True
    assert registry.is_idempotent("postgres", {"query": "x"}) is False
