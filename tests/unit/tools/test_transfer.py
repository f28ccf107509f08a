from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from treadle.tools.base import BadConfig
from treadle.tools.rows import at_path, insert_sql, quoted


@pytest.fixture
def people(web):
    """An HTTP source with three rows, one of them short."""
    body = {
        "page": {
            "items": [
                {"id": 1, "who": {"name": "ann"}, "tags": ["a"]},
                {"id": 2, "who": {"name": "bob"}, "tags": []},
                {"id": 3},
            ]
        }
    }
    return {
        "tool": "http",
        "url": f"{web.url}/raw?type=application/json&body={quote(json.dumps(body))}",
        "data_path": "page.items",
    }


@pytest.fixture
def rows(run, pg):
    async def rows(query):
        outcome = await run("postgres", {**pg, "query": query})
        assert outcome.error is None, outcome.error
        return outcome.result["rows"]

    return rows


MAPPING = {"id": "id", "name": "who.name", "tags": "tags"}


async def test_http_to_postgres(run, pg, people, rows):
    await rows("create table t (id int primary key, name text, tags jsonb)")
    seen = []

    async def progress(type, **data):
        seen.append((type, data["rows"]))

    task = {
        "source": people,
        "target": {"tool": "postgres", **pg, "table": "t"},
        "mapping": MAPPING,
        "chunk_size": 2,
    }
    outcome = await run("transfer", task, progress=progress)
    assert outcome.error is None
    assert outcome.result == {
        "status": "ok",
        "mode": "append",
        "row_count": 3,
        "chunks": 2,
        "columns": ["id", "name", "tags"],
    }
    assert seen == [("transfer", 2), ("transfer", 3)]
    assert await rows("select * from t order by id") == [
        {"id": 1, "name": "ann", "tags": ["a"]},
        {"id": 2, "name": "bob", "tags": []},
        {"id": 3, "name": None, "tags": None},
    ]


async def test_replace_and_upsert(run, pg, people, rows):
    await rows("create table t (id int primary key, name text); insert into t values (1, 'old'), (9, 'nine')")
    target = {"type": "postgres", **pg, "table": "t", "key": "id"}
    mapping = {"id": "id", "name": "who.name"}
    append = await run("transfer", {"source": people, "target": target, "mapping": mapping})
    assert append.error["kind"] == "db_constraint"
    upsert = await run("transfer", {"source": people, "target": target, "mapping": mapping, "mode": "upsert"})
    assert upsert.error is None
    assert [row["name"] for row in await rows("select name from t order by id")] == [
        "ann",
        "bob",
        None,
        "nine",
    ]
    await run("transfer", {"source": people, "target": target, "mapping": mapping, "mode": "replace"})
    assert [row["id"] for row in await rows("select id from t order by id")] == [1, 2, 3]
    none = {**people, "data_path": "page.items[0].tags.nothing"}
    assert (await run("transfer", {"source": none, "target": target})).error["kind"] == "schema"


async def test_all_rows_arrive_or_none(run, pg, people, rows):
    await rows("create table t (id int primary key check (id < 3), name text)")
    task = {
        "source": people,
        "target": {"tool": "postgres", **pg, "table": "t"},
        "mapping": {"id": "id"},
        "chunk_size": 1,
    }
    assert (await run("transfer", task)).error["kind"] == "db_constraint"
    assert await rows("select count(*) n from t") == [{"n": 0}]


async def test_once_moves_nothing_twice(run, pg, people, rows):
    await rows("create table t (id int)")
    task = {
        "source": people,
        "target": {"tool": "postgres", **pg, "table": "t"},
        "mapping": {"id": "id"},
        "once": True,
    }
    first = await run("transfer", task, idempotency_key="k")
    again = await run("transfer", task, idempotency_key="k", attempt=2)
    assert first.error is None
    assert again.result == first.result
    assert await rows("select count(*) n from t") == [{"n": 3}]


async def test_postgres_to_postgres_keeps_the_types(run, pg, rows):
    await rows(
        "create table a (id int, at timestamptz, n numeric, doc jsonb, arr int[]); create table b (like a)"
    )
    await rows(
        "insert into a select i, '2026-11-15 08:00+00', 1.10, '{\"k\": [1]}', array[i] from generate_series(1, 25) i"
    )
    task = {
        "source": {"tool": "postgres", **pg, "query": "select * from a;"},
        "target": {"tool": "postgres", **pg, "table": "b"},
        "chunk_size": 10,
    }
    outcome = await run("transfer", task)
    assert outcome.error is None, outcome.error
    assert (outcome.result["row_count"], outcome.result["chunks"]) == (25, 3)
    assert await rows("select count(*) n from (select * from a intersect select * from b) x") == [{"n": 25}]


async def test_a_target_query_gets_the_columns_by_name(run, pg, people, rows):
    await rows("create table t (label text)")
    target = {
        "tool": "postgres",
        **pg,
        "query": "insert into t values (%(id)s::text || ':' || coalesce(%(name)s, '?'))",
    }
    outcome = await run(
        "transfer", {"source": people, "target": target, "mapping": {"id": "id", "name": "who.name"}}
    )
    assert outcome.error is None, outcome.error
    assert [row["label"] for row in await rows("select label from t order by 1")] == ["1:ann", "2:bob", "3:?"]


async def test_duckdb_both_ways(run, pg, rows, tmp_path):
    database = str(tmp_path / "d.duckdb")
    await run(
        "duckdb",
        {
            "database": database,
            "command": "create table s as select range as id, 'n' || range as name from range(7); create table t (id int primary key, name text)",
        },
    )
    await rows("create table p (id int, name text)")
    out = {
        "source": {"tool": "duckdb", "database": database, "query": "select id, name from s order by id"},
        "target": {"tool": "postgres", **pg, "table": "p"},
        "chunk_size": 3,
    }
    outcome = await run("transfer", out)
    assert outcome.error is None, outcome.error
    assert (outcome.result["row_count"], outcome.result["chunks"]) == (7, 3)
    back = {
        "source": {"tool": "postgres", **pg, "query": "select id, name from p where id < 2"},
        "target": {"tool": "duckdb", "database": database, "table": "t", "key": ["id"]},
    }
    for mode in ("append", "upsert", "replace"):
        outcome = await run("transfer", {**back, "mode": mode})
        assert outcome.error is None, outcome.error
    again = await run("transfer", {**back, "mode": "append"})
    assert again.error["kind"] == "db_constraint"
    found = await run("duckdb", {"database": database, "query": "select count(*) n from t"})
    assert found.result["rows"] == [{"n": 2}]
    assert (await run("transfer", {**back, "once": True}, idempotency_key="k")).error["kind"] == "schema"


async def test_an_empty_source_still_replaces(run, pg, rows):
    await rows("create table t (id int); insert into t values (1)")
    task = {
        "source": {"tool": "postgres", **pg, "query": "select id from t where false"},
        "target": {"tool": "postgres", **pg, "table": "t"},
        "mode": "replace",
    }
    assert (await run("transfer", task)).result["row_count"] == 0
    assert await rows("select count(*) n from t") == [{"n": 0}]


async def test_errors_of_either_side_keep_their_kind(run, pg, web, people, rows):
    target = {"tool": "postgres", **pg, "table": "nowhere"}
    failing = {"tool": "http", "url": web.url + "/status/404"}
    assert (await run("transfer", {"source": failing, "target": target})).error["http_status"] == 404
    outcome = await run("transfer", {"source": people, "target": target})
    assert (outcome.error["kind"], outcome.pg["code"]) == ("not_found", "42P01")
    duck = {"tool": "duckdb", "query": "select * from nowhere"}
    assert (await run("transfer", {"source": duck, "target": target})).error["kind"] == "schema"
    for bad in (
        {"source": {"tool": "ftp"}, "target": target},
        {"source": people, "target": {"tool": "ftp", "table": "t"}},
        {"source": people, "target": {"tool": "postgres", **pg}},
        {"source": people, "target": target, "mode": "merge"},
        {"source": people, "target": target, "chunk_size": "x"},
        {"source": {"tool": "http", "url": web.url + "/echo"}, "target": target},
    ):
        assert (await run("transfer", bad)).error["kind"] == "schema", bad


def test_names_are_quoted_and_upsert_needs_a_key():
    assert quoted('a."b') == '"a"."""b"'
    assert insert_sql("t", ["a", "b"], "upsert", ["a"], ["?", "?"]) == (
        'INSERT INTO "t" ("a", "b") VALUES (?, ?) ON CONFLICT ("a") DO UPDATE SET "b" = EXCLUDED."b"'
    )
    for columns, keys in ((["a"], []), (["a"], ["z"])):
        with pytest.raises(BadConfig):
            insert_sql("t", columns, "upsert", keys, ["?"])
    with pytest.raises(BadConfig):
        quoted("a..b")
    assert at_path({"a": [{"b": 5}]}, "$.a[0].b") == 5


async def test_the_mapping_may_stand_in_the_target(run, tmp_path):
    file = str(tmp_path / "t.duckdb")
    made = await run("duckdb", {"database": file, "command": "create table t (id int, label text)"})
    assert made.error is None
    task = {
        "source": {"tool": "duckdb", "query": "select 1 as n, 'a' as name"},
        "target": {"tool": "duckdb", "database": file, "table": "t", "mapping": {"id": "n", "label": "name"}},
    }
    moved = await run("transfer", task)
    assert moved.error is None, moved.error
    found = await run("duckdb", {"database": file, "query": "select * from t"})
    assert found.result["rows"] == [{"id": 1, "label": "a"}]
