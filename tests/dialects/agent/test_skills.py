"""Built-in skills stay where they belong; URL Sources reach nothing inside (K4, R2-R6)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec import structs

from treadle import Engine
from treadle.agent import ToolContext
from treadle.kernel.errors import ToolError
from treadle.performers.agent.skills.built_in import duckdb_skill, files_skill, http_skill, shell_skill
from treadle.performers.agent.skills.duckdb import _query
from treadle.performers.agent.skills.duckdb_child import QueryRefused, answer, readable
from treadle.performers.agent.skills.fetch import fetcher
from treadle.performers.agent.skills.files import Walk, matches
from treadle.performers.agent.skills.hidden import OwnFiles
from treadle.performers.agent.sources import SourceError
from treadle.testing.scripted import ScriptedModel


def ctx(base: Path, **config: str) -> ToolContext:
    return ToolContext(
        config=config,
        logger=logging.getLogger("t"),
        idempotency_key="k",
        run_id="r",
        node="n",
        progress=lambda text: None,
        base=str(base),
    )


def test_what_a_handler_knows_can_be_printed_without_its_settings(tmp_path):
    context = structs.replace(ctx(tmp_path, KEY="s3cret"), _options={"secrets": "/where/they/are"})
    assert repr(context) == "ToolContext(run_id='r', node='n')"


async def use(skill: Any, tool: str, input: dict[str, Any], context: ToolContext) -> Any:
    found = skill.tools[tool].handler(input, context)
    return await found if asyncio.iscoroutine(found) else found


async def test_files_stay_below_their_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (inside / "link").symlink_to(outside / "secret.txt")
    skill, context = files_skill(), ctx(inside)
    assert await use(skill, "write_file", {"path": "a/b.txt", "text": "one\ntwo"}, context) == {
        "path": "a/b.txt",
        "bytes": 7,
    }
    assert (await use(skill, "read_file", {"path": "a/b.txt"}, context))["text"] == "one\ntwo"
    assert (await use(skill, "list_files", {}, context))["files"] == ["a/b.txt"], (
        "links that lead out are not there"
    )
    found = await use(skill, "search_files", {"text": "two"}, context)
    assert found["matches"] == [{"file": "a/b.txt", "line": 2, "text": "two"}]
    for path in ("../out/secret.txt", str(outside / "secret.txt"), "link", "a/../../out/secret.txt"):
        for tool, more in (("read_file", {}), ("write_file", {"text": "x"})):
            with pytest.raises(ToolError, match="outside"):
                await use(skill, tool, {"path": path, **more}, context)
    with pytest.raises(ToolError):
        await use(skill, "list_files", {"pattern": "../**/*"}, context)
    assert (outside / "secret.txt").read_text() == "secret"


async def test_a_folder_that_is_a_link_leads_nowhere(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (inside / "folder").symlink_to(outside, target_is_directory=True)
    (inside / "own.txt").write_text("no secret")
    skill, context = files_skill(), ctx(inside)
    for tool, more in (("read_file", {}), ("write_file", {"text": "x"})):
        for path in ("folder/secret.txt", "folder/new/file.txt", "folder/../folder/secret.txt"):
            with pytest.raises(ToolError, match="outside"):
                await use(skill, tool, {"path": path, **more}, context)
    for pattern in ("**/*", "folder/*", "*/*"):
        listed = await use(skill, "list_files", {"pattern": pattern}, context)
        assert "secret.txt" not in str(listed)
    found = await use(skill, "search_files", {"text": "secret"}, context)
    assert [match["file"] for match in found["matches"]] == ["own.txt"]
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


async def test_settings_and_keys_are_not_for_models(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in (".env", ".env.local", "sub/.ENV"):
        (tmp_path / name).write_text("KEY=very-secret")
    (tmp_path / "notes.txt").write_text("no key, very-secret or not")
    (tmp_path / "link.txt").symlink_to(tmp_path / ".env")
    skill, context = files_skill(), ctx(tmp_path)
    for name in (".env", ".env.local", "sub/.ENV", "link.txt", "sub/../.env"):
        with pytest.raises(ToolError, match="not for models"):
            await use(skill, "read_file", {"path": name}, context)
        with pytest.raises(ToolError, match="not for models"):
            await use(skill, "write_file", {"path": name, "text": "TREADLE_SHELL=1"}, context)
    assert (await use(skill, "list_files", {}, context))["files"] == ["notes.txt"]
    found = await use(skill, "search_files", {"text": "very-secret"}, context)
    assert [match["file"] for match in found["matches"]] == ["notes.txt"]


async def test_a_large_file_is_not_read_whole(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.write(b"start")
        file.truncate(1 << 36)  # more than any memory
    found = await use(files_skill(), "read_file", {"path": "big"}, ctx(tmp_path))
    assert found["truncated"] is True
    assert found["text"].startswith("start")
    (tmp_path / "closed").write_text("start")
    (tmp_path / "closed").chmod(0)
    (tmp_path / "small").write_text("a start")
    found = await use(files_skill(), "search_files", {"text": "start"}, ctx(tmp_path))
    assert "small" in {match["file"] for match in found["matches"]} <= {"small", "closed"}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*", ["a.txt", "x/b.txt", "x/y/c.md", "x/y/c.txt"]),
        ("**", ["a.txt", "x/b.txt", "x/y/c.md", "x/y/c.txt"]),
        ("*", ["a.txt"]),
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "x/b.txt", "x/y/c.txt"]),
        ("x/*.txt", ["x/b.txt"]),
        ("x/**/c.*", ["x/y/c.md", "x/y/c.txt"]),
        ("**/y/**/*.md", ["x/y/c.md"]),
        ("?.txt", ["a.txt"]),
        ("nothing", []),
        ("**/" * 100 + "*.md", ["x/y/c.md"]),
    ],
)
async def test_patterns(tmp_path, pattern, found):
    (tmp_path / "x" / "y").mkdir(parents=True)
    for name in ("a.txt", "x/b.txt", "x/y/c.txt", "x/y/c.md"):
        (tmp_path / name).write_text("")
    listed = await use(files_skill(), "list_files", {"pattern": pattern}, ctx(tmp_path))
    assert listed == {"files": found, "more": 0}


def test_a_pattern_costs_parts_times_parts():
    assert not matches(("a",) * 200, ("**", "a") * 100 + ("b",))


def test_looking_through_a_folder_ends(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("")
    few = Walk(tmp_path, tmp_path, files=4)
    assert [path.name for path in few] == ["0.txt", "1.txt", "2.txt", "3.txt"]
    assert few.said({}) == {"stopped": "only the first 4 files were looked at"}
    late = Walk(tmp_path, tmp_path, seconds=-1.0)
    assert list(late) == []
    assert "only 1 files were looked at" in (late.stopped or "")


async def test_the_shell_is_opt_in(tmp_path):
    skill = shell_skill()
    assert skill.config["SHELL"]["required"] is True
    with pytest.raises(ToolError, match="TREADLE_SHELL"):
        await use(skill, "run_command", {"command": "echo hi"}, ctx(tmp_path))
    done = await use(skill, "run_command", {"command": "echo hi"}, ctx(tmp_path, SHELL="1"))
    assert "hi" in str(done)


async def test_queries_see_one_folder_only(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    skill, context = duckdb_skill(), ctx(tmp_path / "in")
    found = await use(
        skill, "query", {"sql": "SELECT sum(a) AS s, DATE '2026-01-01' AS d FROM 't.csv'"}, context
    )
    assert found == {"columns": ["s", "d"], "rows": [[4, "2026-01-01"]], "truncated": False}
    for sql in (
        "SELECT * FROM '../secret.csv'",
        f"SELECT * FROM '{tmp_path}/secret.csv'",
        "SET enable_external_access = true",
        "SELEC",
    ):
        with pytest.raises(ToolError):
            await use(skill, "query", {"sql": sql}, context)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT 1; COPY (SELECT 1) TO 'out.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'",
        "PREPARE p AS COPY (SELECT 1) TO 'out.csv'",
        "COPY (PIVOT 't.csv' ON a USING sum(b)) TO 'out.csv'",
        "EXPORT DATABASE 'out'",
        "ATTACH 'out.db'",
        "CREATE TABLE t AS SELECT 1",
        "",
    ],
)
def test_a_query_writes_nothing(tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(QueryRefused, match="quer"):
        answer(sql, None, 10, 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    "sql",
    [
        "FROM 't.csv'",
        "WITH x AS (FROM '*.csv') FROM x;",
        "PIVOT 't.csv' ON a USING sum(b)",
        "SUMMARIZE FROM 't.csv'",
        "EXPLAIN FROM 't.csv'",
    ],
)
def test_a_query_may_be_put_in_many_ways(tmp_path, monkeypatch, sql):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert answer(sql, None, 10, 10_000)["rows"]


async def test_an_answer_is_bounded(tmp_path):
    sql = "SELECT repeat('x', 100000) FROM range(100)"
    found = await use(duckdb_skill(), "query", {"sql": sql}, ctx(tmp_path))
    assert found["truncated"] is True
    assert len(found["rows"]) == 10
    with pytest.raises(ToolError, match="emory"):
        await use(
            duckdb_skill(), "query", {"sql": "SELECT list(x) FROM range(10000000000) t(x)"}, ctx(tmp_path)
        )
    assert list(tmp_path.iterdir()) == [], "nothing is put on disk either"


def test_what_a_query_may_read(tmp_path):
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "clean").mkdir()
    for name in ("u.csv", "sub/t.csv", "sub/deep/.env.local"):
        (tmp_path / name).write_text("")
    assert readable(str(tmp_path / "clean"), OwnFiles()) == ([f"{tmp_path}/clean/"], [])
    assert readable(str(tmp_path), OwnFiles()) == (
        [f"{tmp_path}/clean/"],
        [f"{tmp_path}/u.csv", f"{tmp_path}/sub/t.csv"],
    )
    (tmp_path / "sub/deep/.env.local").unlink()
    (tmp_path / "sub/link").symlink_to("/etc")
    assert readable(str(tmp_path), OwnFiles())[0] == [f"{tmp_path}/clean/", f"{tmp_path}/sub/deep/"]


@pytest.mark.parametrize("name", [".env", "*", "sub/../.env", "sub/link"])
def test_queries_do_not_see_settings_and_keys(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / ".env").write_text("KEY=very-secret")
    (tmp_path / "sub" / "link").symlink_to("/etc/passwd")
    (tmp_path / "u.csv").write_text("a\n2\n")
    with pytest.raises(duckdb.PermissionException):
        answer(f"SELECT content FROM read_text('{name}')", None, 10, 1000)
    assert answer("FROM 'u.csv'", None, 10, 1000)["rows"] == [[2]]


KEPT = [
    *(
        "t.db",
        "t.db-wal",
        "t.db-shm",
        "t.db-key",
        "t.db-owner",
        "t.db-blobs/ab/cd",
        "t.db-servers/a-1",
        "t.db.secrets",
    ),
    *("t.db.secrets.key", "other.db.secrets.key", ".env", ".ENV.local", ".envrc", "tls/server.pem"),
    *("id_ed25519", ".ssh/config", ".netrc", "given.yaml", "script.json"),
]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, ToolContext]:
    """A folder with everything that is not for models, and two files that are; its store is in `data`."""
    for name in KEPT:
        place = tmp_path / "data" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("very-secret,b\n1,2\n")
    (tmp_path / "data" / "sub").mkdir()
    for name in ("u.csv", "sub/t.db.csv"):
        (tmp_path / "data" / name).write_text("a,b\n1,2\n")
    (tmp_path / "data" / "sub" / "link.csv").symlink_to(tmp_path / "data" / "t.db")
    given = {"secrets": f"{tmp_path}/data/given.yaml", "model": f"scripted:{tmp_path}/data/script.json"}
    return tmp_path / "data" / "t.db", structs.replace(ctx(tmp_path), _options=given)


async def test_the_store_and_keys_are_not_for_models(kept, tmp_path):
    store, context = kept
    skill = files_skill(store)
    listed = await use(skill, "list_files", {}, context)
    assert listed == {"files": ["data/u.csv", "data/sub/t.db.csv"], "more": 0}
    assert (await use(skill, "search_files", {"text": "very-secret"}, context)) == {"matches": []}
    for name in (*KEPT, "sub/link.csv"):
        for tool in ("read_file", "write_file"):
            with pytest.raises(ToolError, match="not for models"):
                await use(skill, tool, {"path": f"data/{name}", "text": "gone"}, context)
        assert "gone" not in (tmp_path / "data" / name).read_text()
    await use(skill, "write_file", {"path": "data/t.db.md", "text": "fine"}, context)


async def test_queries_do_not_see_the_store_and_keys(kept, tmp_path):
    store, context = kept
    skill = duckdb_skill(store)

    async def query(sql: str) -> Any:
        return (await use(skill, "query", {"sql": sql}, context))["rows"]

    assert await query("SELECT a FROM 'data/*.csv'") == [[1]], "patterns work beside what is hidden"
    assert await query("SELECT count(*) FROM 'data/**/*.csv'") == [[2]]
    assert await query(f"SELECT a FROM '{tmp_path}/data/u.csv'") == [[1]]
    assert await query("SELECT file FROM glob('data/*') ORDER BY 1") == [["data/u.csv"]]
    names = ["sub/link.csv", "sub/../t.db", *KEPT]
    listed = ", ".join(f"'data/{name}'" for name in names)
    assert await query(f"SELECT content FROM read_text([{listed}])") == [], "to a query they are not there"
    for name in names[::4]:
        with pytest.raises(ToolError, match="not for models"):
            await query(f"SELECT content FROM read_text('{tmp_path}/data/{name}')")


@pytest.mark.at_home("its store is a file beside the workflow")
async def test_an_engine_keeps_its_store_from_models(tmp_path, monkeypatch, flow):
    monkeypatch.chdir(tmp_path)
    calls = [
        {"tool": "write_file", "input": {"path": "treadle.db", "text": "gone"}},
        {"tool": "query", "input": {"sql": "SELECT content FROM read_blob('treadle.db-key')"}},
    ]
    (tmp_path / "flow.json").write_text(json.dumps(flow({"a": {"skills": ["files", "duckdb"]}})))
    async with Engine("sqlite:///treadle.db") as engine:
        engine.models["fake"] = ScriptedModel({"run": {"a": [{"tool_calls": calls, "data": {}}]}})
        engine.deploy("flow.json")
        run = await engine.start("wf", id="r1", model="fake")
        written, read = (await run.result(timeout=60))["results"]["a"]["toolCalls"]
    assert "not for models" in written["error"]
    assert read["output"]["rows"] == []
    async with Engine("sqlite:///treadle.db") as engine:
        assert [row["id"] for row in await engine.list()] == ["r1"]


async def test_a_query_may_ask_for_times_with_zones(tmp_path):
    sql = "SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00' AS t, now() > '2026-01-01' AS later"
    found = await use(duckdb_skill(), "query", {"sql": sql}, ctx(tmp_path))
    assert found["rows"][0][0].startswith("2026-01-01 00:00:00")
    assert found["rows"][0][1] is True


async def test_a_query_without_end_is_killed(tmp_path):
    with pytest.raises(ToolError, match="took longer"):
        await _query(
            "SELECT count(*) FROM range(1000000000000) a, range(1000000) b", str(tmp_path), None, seconds=1.5
        )


# --- the web ------------------------------------------------------------------------------------


class Site:
    """A tiny web site: path to (status, headers, body)."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.port = 0
        # Seconds before each answer and each byte of it.
        self.pause = 0.0
        self.closing = asyncio.Event()
        self.serving: set[asyncio.Task[None]] = set()

    async def rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            if self.pause:
                await asyncio.wait_for(self.closing.wait(), self.pause)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if ": " in line)}
        path = head[0].split()[1]
        self.seen.append((path, headers))
        status, more, body = self.pages.get(path, (404, {}, b"no"))
        fields = {"content-length": str(len(body)), "connection": "close", **more}
        await self.rest()
        writer.write(
            f"HTTP/1.1 {status} X\r\n".encode()
            + "".join(f"{k}: {v}\r\n" for k, v in fields.items()).encode()
            + b"\r\n"
        )
        with contextlib.suppress(ConnectionError):
            for byte in [body[i : i + 1] for i in range(len(body))] if self.pause else [body]:
                writer.write(byte)
                await writer.drain()
                await self.rest()
        writer.close()


async def serving() -> AsyncIterator[Site]:
    found = Site()
    server = await asyncio.start_server(found.accept, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()
    found.closing.set()
    await asyncio.gather(*found.serving)


site = pytest.fixture(serving, name="site")
other = pytest.fixture(serving, name="other")


async def token(name: str) -> str:
    return "the-token-of-the-host"


async def test_a_url_is_fetched_from_a_host_that_is_allowed(site):
    site.pages = {
        "/a": (200, {"content-type": "text/plain; charset=utf-8"}, "grüße".encode()),
        "/r": (302, {"location": "/a"}, b""),
    }
    learned: dict[str, str] = {}
    fetch = fetcher({"allow": ["127.0.0.1"], "auth": {"127.0.0.1": "TOKEN"}}, token, learned.__setitem__)
    text, at = await fetch(f"http://127.0.0.1:{site.port}/r")
    assert text == "grüße"
    assert at.endswith("Z")
    assert [path for path, _ in site.seen] == ["/r", "/a"]
    assert site.seen[0][1]["authorization"] == "Bearer the-token-of-the-host"
    assert learned == {"TOKEN": "the-token-of-the-host"}


async def test_a_token_goes_to_its_own_host_only(site):
    site.pages = {"/r": (302, {"location": f"http://localhost:{site.port}/a"}, b""), "/a": (200, {}, b"x")}
    fetch = fetcher(
        {"allow": ["127.0.0.1", "localhost"], "auth": {"127.0.0.1": "TOKEN"}}, token, lambda n, v: None
    )
    await fetch(f"http://127.0.0.1:{site.port}/r")
    assert "authorization" in site.seen[0][1]
    assert "authorization" not in site.seen[1][1]


async def authorized(settings: dict[str, Any], url: str, *sites: Site) -> list[bool]:
    """Whether each request that came of a URL had a token, in the order of the sites."""
    fetch = fetcher({"allow": ["127.0.0.1", "localhost"], **settings}, token, lambda n, v: None)
    await fetch(url)
    return ["authorization" in headers for site in sites for _, headers in site.seen]


async def test_a_token_for_a_port_goes_to_that_port_only(site, other):
    """§8.5 fetch.auth, R2: a bearer token only to what is configured."""
    for one in (site, other):
        one.pages = {"/a": (200, {}, b"x")}
    auth = {"auth": {f"LocalHost:{site.port}": "TOKEN"}}
    assert await authorized(auth, f"http://localhost:{site.port}/a", site) == [True]
    assert await authorized(auth, f"http://localhost:{other.port}/a", other) == [False]


@pytest.mark.parametrize("key", ["127.0.0.1", "127.0.0.1:{port}"])
async def test_no_token_follows_a_redirect_to_another_port(site, other, key):
    site.pages = {"/r": (302, {"location": f"http://127.0.0.1:{other.port}/a"}, b"")}
    other.pages = {"/a": (200, {}, b"x")}
    auth = {"auth": {key.format(port=site.port): "TOKEN"}}
    assert await authorized(auth, f"http://127.0.0.1:{site.port}/r", site, other) == [True, False]


async def test_a_redirect_to_a_port_with_a_token_of_its_own(site, other):
    site.pages = {"/r": (302, {"location": f"http://127.0.0.1:{other.port}/a"}, b"")}
    other.pages = {"/a": (200, {}, b"x")}
    auth = {"auth": {f"127.0.0.1:{other.port}": "TOKEN"}}
    assert await authorized(auth, f"http://127.0.0.1:{site.port}/r", site, other) == [False, True]


@pytest.mark.parametrize(
    "pages",
    [
        {"/a": (200, {}, b"x" * 40)},
        {**{f"/{n}": (302, {"location": f"/{n + 1}"}, b"") for n in range(1, 5)}, "/5": (200, {}, b"x" * 30)},
    ],
    ids=["bytes that drip", "redirects too"],
)
async def test_the_time_limit_is_for_the_whole_fetch(site, pages):
    """R2: 10 s timeout. No pause is as long as the limit; only together are they longer."""
    site.pages, site.pause = pages, 0.05
    fetch = fetcher({"allow": ["127.0.0.1"]}, token, lambda n, v: None, timeout_s=0.5)
    with pytest.raises(SourceError, match=r"longer than 0\.5 s") as caught:
        await fetch(f"http://127.0.0.1:{site.port}{next(iter(pages))}")
    assert caught.value.code == "SOURCE_URL_UNREACHABLE"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://[::1", "SOURCE_URL_UNREACHABLE"),
        ("http://localhost:99999/a", "SOURCE_URL_UNREACHABLE"),
        ("http://localhost:x/a", "SOURCE_URL_UNREACHABLE"),
        ("http://:80/a", "SOURCE_URL_UNREACHABLE"),
        ("file:///etc/passwd", "SOURCE_URL_BLOCKED"),
        ("ftp://localhost/a", "SOURCE_URL_BLOCKED"),
    ],
)
@pytest.mark.parametrize("redirected", [False, True])
async def test_what_is_no_address_is_not_fetched(site, url, code, redirected):
    site.pages = {"/r": (302, {"location": url}, b"")}
    with pytest.raises(SourceError) as caught:
        await fetcher({"allow": ["127.0.0.1", "localhost"]}, token, lambda n, v: None)(
            f"http://127.0.0.1:{site.port}/r" if redirected else url
        )
    assert caught.value.code == code


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/a",
        "http://localhost:{port}/a",
        "http://[::1]:{port}/a",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://2130706433:{port}/a",
    ],
)
async def test_inside_addresses_are_refused(site, url):
    site.pages = {"/a": (200, {}, b"secret")}
    fetch = fetcher({}, token, lambda n, v: None)
    with pytest.raises(SourceError) as caught:
        await fetch(url.format(port=site.port))
    assert caught.value.code in ("SOURCE_URL_BLOCKED", "SOURCE_URL_UNREACHABLE")
    assert site.seen == []


async def test_a_redirect_to_the_inside_is_refused(site):
    site.pages = {
        "/r": (302, {"location": f"http://127.0.0.1:{site.port}/a"}, b""),
        "/a": (200, {}, b"secret"),
    }
    fetch = fetcher({"allow": ["localhost"]}, token, lambda n, v: None)
    with pytest.raises(SourceError) as caught:
        await fetch(f"http://localhost:{site.port}/r")
    assert caught.value.code == "SOURCE_URL_BLOCKED"
    assert "fetch.allow" in caught.value.message
    assert "TREADLE_HTTP_ALLOW" not in caught.value.message, "one remedy, the right one"
    assert [path for path, _ in site.seen] == ["/r"]


async def test_a_redirect_to_a_name_that_leads_inside_is_refused(site, monkeypatch):
    """R2: each redirect hop re-checked; what counts is the address behind the name."""
    loop = asyncio.get_running_loop()
    known = loop.getaddrinfo

    async def looked_up(host: str, *more: Any, **options: Any) -> Any:
        return await known("127.0.0.1" if host.endswith(".example") else host, *more, **options)

    monkeypatch.setattr(loop, "getaddrinfo", looked_up)
    site.pages = {
        "/r": (302, {"location": f"http://second.example:{site.port}/a"}, b""),
        "/a": (200, {}, b"secret"),
    }
    fetch = fetcher({"allow": ["first.example"]}, token, lambda n, v: None)
    with pytest.raises(SourceError, match=r"second\.example leads to 127\.0\.0\.1") as caught:
        await fetch(f"http://first.example:{site.port}/r")
    assert caught.value.code == "SOURCE_URL_BLOCKED"
    assert [path for path, _ in site.seen] == ["/r"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "SOURCE_URL_AUTH_REQUIRED"),
        (403, "SOURCE_URL_AUTH_REQUIRED"),
        (302, "SOURCE_URL_HTTP_ERROR"),
        (304, "SOURCE_URL_HTTP_ERROR"),
        (404, "SOURCE_URL_HTTP_ERROR"),
        (500, "SOURCE_URL_HTTP_ERROR"),
    ],
)
async def test_what_a_server_may_answer(site, status, code):
    site.pages = {"/a": (status, {}, b"")}
    with pytest.raises(SourceError) as caught:
        await fetcher({"allow": ["127.0.0.1"]}, token, lambda n, v: None)(f"http://127.0.0.1:{site.port}/a")
    assert caught.value.code == code
    assert ("fetch.auth" in caught.value.message) == (code == "SOURCE_URL_AUTH_REQUIRED")


async def test_nobody_there(site):
    with pytest.raises(SourceError) as caught:
        await fetcher({"allow": ["127.0.0.1"]}, token, lambda n, v: None)("http://127.0.0.1:1/a")
    assert caught.value.code == "SOURCE_URL_UNREACHABLE"


async def test_the_http_skill_reaches_public_addresses_only(site, tmp_path):
    with pytest.raises(ToolError, match="not a public address"):
        await use(http_skill(), "http_get", {"url": f"http://127.0.0.1:{site.port}/a"}, ctx(tmp_path))
    assert site.seen == []


async def test_the_http_skill_answers(site, tmp_path, monkeypatch):
    monkeypatch.setenv("TREADLE_HTTP_ALLOW", "127.0.0.1")
    site.pages = {"/a": (200, {"content-type": "application/json"}, b'{"x": 1}'), "/b": (500, {}, b"oops")}
    skill = http_skill()
    url = f"http://127.0.0.1:{site.port}"
    assert await use(skill, "http_get", {"url": f"{url}/a"}, ctx(tmp_path)) == {
        "status": 200,
        "body": {"x": 1},
    }
    done = await use(
        skill, "http_request", {"url": f"{url}/b", "method": "POST", "body": {"k": 1}}, ctx(tmp_path)
    )
    assert done["status"] == 500
    assert site.seen[1][1]["idempotency-key"] == "k"


LOADED = (
    ".treadle/skills/files/SKILL.md",
    ".claude/settings.json",
    ".git/hooks/pre-commit",
    "sub/.git/config",
    ".github/workflows/ci.yml",
    ".mcp.json",
    "steps.py",
    "pkg/steps.PY",
    "sitecustomize.pth",
    "my-skills/notes/SKILL.md",
    "linked/x/SKILL.md",
    "innocent.md",
    "flow.yaml",
    "extra_tools.txt",
)


@pytest.mark.parametrize("path", LOADED)
async def test_a_model_writes_nothing_that_is_loaded_or_run_later(tmp_path, path):
    """By where a file really is: a skill's folder may be a link, and so may a name that looks harmless."""
    (tmp_path / ".treadle").mkdir()
    (tmp_path / "my-skills" / "notes").mkdir(parents=True)
    (tmp_path / ".treadle" / "skills").symlink_to(tmp_path / "my-skills")
    (tmp_path / "linked").symlink_to(tmp_path / ".treadle" / "skills")
    (tmp_path / ".hook").write_text("kept")
    (tmp_path / "innocent.md").symlink_to(tmp_path / ".hook")

    async def definitions(run: str) -> list[str]:
        return [str(tmp_path / "flow.yaml")]

    context = ctx(tmp_path)
    context._options = {"skills": [f"{tmp_path}/extra_tools.txt"]}
    with pytest.raises(ToolError, match="not for models to write"):
        await use(files_skill(None, definitions), "write_file", {"path": path, "text": "x"}, context)
    assert (tmp_path / ".hook").read_text() == "kept"


async def test_a_model_may_write_python_in_a_folder_of_its_own(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "flows").mkdir()
    context = ctx(tmp_path / "flows", FILES_ROOT=str(tmp_path / "out"))
    await use(files_skill(), "write_file", {"path": "script.py", "text": "x = 1"}, context)
    assert (tmp_path / "out" / "script.py").read_text() == "x = 1"


@pytest.mark.house
async def test_a_model_with_the_files_skill_alone_runs_no_command(tmp_path, flow):
    """Finding 10: it wrote a skill with a server, which the next run started."""
    wf = flow({"read": {"skills": ["files"]}, "report": {"skills": ["files"]}}, "read report")
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    evil = f"---\nmcp: {{command: sh, args: ['-c', 'id > {tmp_path}/PWNED']}}\n---\nUse it.\n"
    calls = [
        {"tool": "write_file", "input": {"path": path, "text": evil}}
        for path in (".treadle/skills/files/SKILL.md", "flow.json")
    ]
    script = {"run": {"read": [{"tool_calls": calls, "data": {}}], "report": [{"data": {}}]}}
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        for _ in range(2):
            engine.models["fake"] = ScriptedModel(script)
            (definition,) = engine.load(str(tmp_path / "flow.json"))
            run = await engine.start(definition, model="fake")
            result = await run.result(timeout=60)
            errors = [call.get("error", "") for call in result["results"]["read"]["toolCalls"]]
            assert all("not for models to write" in error for error in errors)
    assert not (tmp_path / ".treadle").exists()
    assert not (tmp_path / "PWNED").exists()
    assert json.loads((tmp_path / "flow.json").read_text()) == wf


async def test_the_duckdb_skill_says_which_package_it_needs(tmp_path, monkeypatch):
    """B17: on the base install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "treadle.performers.agent.skills.duckdb.find_spec",
        lambda name: None if name == "duckdb" else found(name),
    )
    with pytest.raises(ToolError, match=r"pip install 'treadle\[duckdb\]'") as raised:
        await use(duckdb_skill(), "query", {"sql": "SELECT 1"}, ctx(tmp_path))
    assert raised.value.code == "EXTRA_MISSING"
