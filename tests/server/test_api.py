"""The HTTP API, from INTERFACES.md §3 and SERVER.md: shapes, statuses, refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httpx
import pytest

from treadle import Engine
from treadle.server.app import create_app
from treadle.server.paging import cursor
from treadle.testing import assert_replays

from .conftest import APPROVAL, FLOW, deployed

RUN_KEYS = {
    "id", "workflow", "version", "digest", "dialect", "status", "input", "result", "error", "reference", "started_at",
    "ended_at", "version_no", "waiting_for", "state", "parent", "children", "stats",
}  # fmt: skip


async def started(http: httpx.AsyncClient, workflow: str = "greet", **more: Any) -> httpx.Response:
    return await http.post("/runs", json={"workflow": workflow, **more})


async def waited(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    answer = await http.post(f"/runs/{id}/wait", params={"timeout": 60})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert {"type", "title", "detail", "class", "where", "details"} <= found.keys()
    assert found["type"] == f"/docs/errors/{code}"
    return found


# --- definitions ---


async def test_a_definition_is_deployed_listed_and_shown(http: httpx.AsyncClient) -> None:
    answer = await deployed(http, greet=FLOW)
    assert answer.status_code == 201
    (row,) = answer.json()["items"]
    assert {"name", "version", "dialect", "digest", "status", "reasons"} <= row.keys()
    assert (await http.get("/definitions")).json() == {"items": [row], "next": None}
    shown = (await http.get("/definitions/greet")).json()
    assert shown["digest"] == row["digest"]
    assert shown["body"]["metadata"]["name"] == "greet"
    assert (await http.get("/definitions/greet@1")).json() == shown
    assert (await http.get(f"/definitions/{row['digest']}")).json() == shown


async def test_the_same_content_again_is_200_and_nothing_new(http: httpx.AsyncClient) -> None:
    assert (await deployed(http, greet=FLOW)).status_code == 201
    assert (await deployed(http, greet=FLOW)).status_code == 200


async def test_a_taken_version_is_409(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    refused(await deployed(http, greet=FLOW.replace("hello", "bye")), 409, "VERSION_TAKEN")


async def test_problems_of_a_definition_are_422_all_at_once_and_nothing_is_stored(
    http: httpx.AsyncClient,
) -> None:
    bad = FLOW.replace("workload:", "wrkload:").replace("step: hello", "stepp: hello")
    found = refused(
        await deployed(http, good=FLOW.replace("greet", "other"), bad=bad), 422, "root_unknown_key"
    )
    assert len(found["problems"]) >= 2
    assert found["problems"] == found["details"]["problems"]
    assert {"severity", "code", "rule", "message", "hint", "file", "line", "column", "path"} <= found[
        "problems"
    ][0].keys()
    assert (await http.get("/definitions")).json()["items"] == []


async def test_with_warn_what_is_wrong_is_kept_as_unavailable(http: httpx.AsyncClient) -> None:
    files = [
        {"path": "greet.yaml", "text": FLOW},
        {
            "path": "bad.yaml",
            "text": "workflow:\n  - step: a\n    tool: {kind: noop}\n    next: {arcs: [{step: b}]}\n",
        },
    ]
    refused(await http.post("/definitions", json={"files": files}), 422, "arc_step_unknown")
    answer = await http.post("/definitions", json={"files": files, "validation": "warn"})
    assert answer.status_code == 201
    rows = {row["name"]: row for row in answer.json()["items"]}
    assert rows["greet"]["status"] == "available"
    assert rows["bad"]["status"] == "unavailable"
    assert rows["bad"]["reasons"] == ["workflow[0].next.arcs[0].step: the arc goes to 'b', which is no step"]
    refused(await started(http, "bad"), 422, "WORKFLOW_UNAVAILABLE")
    assert (await started(http, "greet")).status_code == 201


async def test_dry_run_checks_only(http: httpx.AsyncClient) -> None:
    posted = {"files": [{"path": "greet.yaml", "text": FLOW}]}
    answer = await http.post("/definitions", params={"dry_run": True}, json=posted)
    assert answer.json()["ok"] is True
    assert (await http.get("/definitions")).json()["items"] == []


@pytest.mark.parametrize("path", ["../up.yaml", "/etc/x.yaml", "a/../../x.yaml", "a\\b.yaml"])
async def test_files_stay_inside_the_posted_folder(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post("/definitions", json={"files": [{"path": path, "text": FLOW}]})
    refused(answer, 422, "INPUT_INVALID")


async def test_python_is_not_taken_over_http(http: httpx.AsyncClient) -> None:
    answer = await http.post("/definitions", json={"files": [{"path": "a.py", "text": "import os"}]})
    refused(answer, 422, "CODE_NOT_TAKEN")


@pytest.mark.parametrize("format", ["json", "svg", "mermaid"])
async def test_a_definition_has_a_picture(http: httpx.AsyncClient, format: str) -> None:
    await deployed(http, greet=FLOW)
    answer = await http.get("/definitions/greet/graph", params={"format": format})
    assert answer.status_code == 200
    assert "hello" in answer.text


async def test_an_unknown_definition_is_404_in_a_path_and_422_in_a_body(http: httpx.AsyncClient) -> None:
    refused(await http.get("/definitions/nope"), 404, "DEFINITION_NOT_FOUND")
    refused(await started(http, "nope"), 422, "UNKNOWN_WORKFLOW")


# --- runs ---


async def test_a_run_is_started_waited_for_and_shown(http: httpx.AsyncClient, engine: Engine) -> None:
    await deployed(http, greet=FLOW)
    answer = await started(http, id="order/1", input={"name": "ann"}, reference="r-1")
    assert answer.status_code == 201
    assert answer.headers["location"] == "/api/v1/runs/order%2F1"
    assert answer.json().keys() >= RUN_KEYS
    ended = await waited(http, "order%2F1")
    assert (ended["status"], ended["reference"]) == ("completed", "r-1")
    assert ended["state"]["steps"]["hello"]["result"] == {"text": "hello ann"}
    assert (await http.get("/runs/order%2F1")).json() == ended
    await assert_replays(engine)


async def test_the_same_id_and_input_is_200_another_input_409(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    assert (await started(http, id="a", input={"name": "ann"})).status_code == 201
    assert (await started(http, id="a", input={"name": "ann"})).status_code == 200
    refused(await started(http, id="a", input={"name": "bob"}), 409, "RUN_EXISTS")


async def test_idempotency_key_stands_for_the_id(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    headers = {"Idempotency-Key": "k-1"}
    first = await http.post("/runs", json={"workflow": "greet"}, headers=headers)
    again = await http.post("/runs", json={"workflow": "greet"}, headers=headers)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, "k-1")
    other = await http.post("/runs", json={"workflow": "greet", "id": "x"}, headers=headers)
    refused(other, 422, "INPUT_INVALID")


async def test_a_run_of_posted_files_claims_no_version(http: httpx.AsyncClient) -> None:
    answer = await http.post("/runs", json={"files": [{"path": "greet.yaml", "text": FLOW}]})
    assert answer.status_code == 201
    assert (await waited(http, answer.json()["id"]))["status"] == "completed"
    assert (await http.get("/definitions")).json()["items"] == []


async def test_lists_are_paged_newest_first_and_each_run_is_seen_once(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    ids = [f"r{n}" for n in range(7)]
    for id in ids:
        await started(http, id=id)
    seen: list[str] = []
    asked: dict[str, Any] = {"limit": 3, "workflow": "greet"}
    while True:
        page = (await http.get("/runs", params=asked)).json()
        seen += [row["id"] for row in page["items"]]
        await started(http)  # what comes later does not disturb the pages
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
    assert seen == ids[::-1]


async def test_a_cursor_of_other_filters_is_refused(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    for _ in range(2):
        await started(http)
    more = (await http.get("/runs", params={"limit": 1})).json()["next"]
    refused(await http.get("/runs", params={"cursor": more, "workflow": "x"}), 400, "BAD_CURSOR")
    refused(await http.get("/runs", params={"cursor": "nonsense"}), 400, "BAD_CURSOR")
    for at in ("x", -1, 2**60, None, [1], 1.5):
        made = cursor({}, cast(Any, at))
        refused(await http.get("/definitions", params={"cursor": made}), 400, "BAD_CURSOR")


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ({"status": "odd"}, "status"),
        ({"since": "never"}, "since"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
    ],
)
async def test_wrong_filters_are_422_and_named(
    http: httpx.AsyncClient, query: dict[str, str], where: str
) -> None:
    assert refused(await http.get("/runs", params=query), 422, "INPUT_INVALID")["where"] == where


async def test_events_come_in_pages_and_as_a_stream_that_resumes(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    everything = (await http.get("/runs/a/events")).json()["items"]
    page = (await http.get("/runs/a/events", params={"limit": 2})).json()
    assert page["items"] == everything[:2]
    assert (await http.get("/runs/a/events", params={"after": page["next"]})).json()["items"] == everything[
        2:
    ]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(everything[1]["seq"])}
    answer = await http.get("/runs/a/events", headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [
        dict(line.split(": ", 1) for line in frame.splitlines())
        for frame in answer.text.split("\n\n")
        if frame
    ]
    assert [json.loads(frame["data"]) for frame in frames[:-1]] == everything[2:]
    assert (frames[-1]["event"], json.loads(frames[-1]["data"])) == (
        "end",
        {"id": "a", "status": "completed"},
    )


@pytest.mark.parametrize("part", ["state", "journal", "trace", "graph"])
async def test_a_run_is_looked_at_from_every_side(http: httpx.AsyncClient, part: str) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    answer = await http.get(f"/runs/a/{part}")
    assert answer.status_code == 200
    assert answer.json()


async def test_time_travel_shows_the_state_after_a_record(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    early = (await http.get("/runs/a/state", params={"at": 1})).json()
    assert early != (await http.get("/runs/a/state")).json()


async def test_fork_replay_and_diff(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    assert (await http.post("/runs/a/replay")).json() == {"id": "a", "equal": True}
    forked = await http.post("/runs/a/fork", json={"at": 1, "id": "b"})
    assert (forked.status_code, forked.headers["location"]) == (201, "/api/v1/runs/b")
    await waited(http, "b")
    found = (await http.get("/diff", params={"a": "a", "b": "b"})).json()
    assert found.keys() == {"left", "right", "equal", "differences"}


async def test_a_record_that_is_not_there_is_404_wherever_it_is_asked_for(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    last = (await http.get("/runs/a")).json()["version_no"]
    told = [
        await http.get("/runs/a/state", params={"at": 999}),
        await http.get("/runs/a/graph", params={"at": 999}),
        await http.post("/runs/a/fork", json={"at": 999}),
    ]
    for answer in told:
        problem = refused(answer, 404, "NO_SUCH_RECORD")
        assert problem["details"] == {"first": 1, "last": last}
    assert (await http.get("/runs/a/state", params={"at": last})).status_code == 200


async def test_who_deployed_forked_and_collected_is_written_down(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    http.headers.update({"x-treadle-user": "ann", "x-treadle-roles": "admin"})
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    await waited(http, "a")
    await http.post("/runs/a/fork", json={"id": "b"})
    await http.post("/gc")
    told = {entry["code"]: entry.get("by") for entry in await engine.diagnostics()}
    assert (told["DEPLOYED"], told["COLLECTED"]) == ("ann", "ann")
    (first, *_) = await (await engine.run("b")).journal()
    assert first["event"]["forked_from"]["by"] == "ann"


async def test_a_run_that_is_not_there_is_404(http: httpx.AsyncClient) -> None:
    for path in ("/runs/x", "/runs/x/events", "/runs/x/state", "/runs/x/journal", "/runs/x/graph"):
        refused(await http.get(path), 404, "RUN_NOT_FOUND")
    for path in ("/runs/x/signal", "/runs/x/cancel"):
        refused(await http.post(path, json={"name": "n"} if "signal" in path else {}), 404, "RUN_NOT_FOUND")


async def test_a_keyed_signal_to_a_run_that_is_not_there_yet_is_taken_when_it_is(
    http: httpx.AsyncClient,
) -> None:
    await deployed(http, approval=APPROVAL)
    told = {"name": "go", "data": 1, "key": "k"}
    refused(await http.post("/runs/late/signal", json=told), 404, "RUN_NOT_FOUND")
    refused(await http.post("/runs/late/signal", json=told), 404, "RUN_NOT_FOUND")
    assert (await http.post("/runs", json={"workflow": "approval", "id": "late"})).status_code == 201
    for _ in range(2):
        assert (await http.post("/runs/late/signal", json=told)).status_code == 200
    journal = (await http.get("/runs/late/journal")).json()
    assert [record["kind"] for record in journal].count("signal") == 1


async def test_retry_takes_one_way_only(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    await started(http, id="a")
    refused(await http.post("/runs/a/retry", json={"from": "hello", "skip": True}), 422, "INPUT_INVALID")


# --- tasks and signals ---


async def test_a_task_is_claimed_and_completed_by_its_role_and_a_signal_ends_the_run(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    await deployed(http, approval=APPROVAL)
    await started(http, "approval", id="p")
    assert (await waited(http, "p"))["waiting_for"][0]["kind"] == "task"
    (task,) = (await http.get("/tasks")).json()["items"]
    boss = {"X-Treadle-User": "ann", "X-Treadle-Roles": "boss"}
    clerk = {"X-Treadle-User": "bob", "X-Treadle-Roles": "clerk"}
    assert (await http.post(f"/tasks/{task['id']}/claim", headers=clerk)).status_code == 403
    claimed = await http.post(f"/tasks/{task['id']}/claim", headers=boss)
    assert (claimed.status_code, claimed.json()["assignee"]) == (200, "ann")
    wrong = await http.post(f"/tasks/{task['id']}/complete", json={"data": {"ok": "yes"}}, headers=boss)
    assert wrong.status_code == 422
    done = await http.post(f"/tasks/{task['id']}/complete", json={"data": {"ok": True}}, headers=boss)
    assert done.status_code == 200
    assert done.json().keys() == {"run", "seq", "status"}, "who may not look at runs is told no more"
    looks = {**boss, "X-Treadle-Roles": "boss,viewer"}
    again = await http.post(f"/tasks/{task['id']}/complete", json={"data": {"ok": True}}, headers=looks)
    assert (again.status_code, again.json().get("stale")) == (200, True)
    assert again.json().keys() >= RUN_KEYS, "the run document, as the command prints it"
    assert (again.json()["id"], again.json()["status"]) == ("p", "waiting")
    assert (await waited(http, "p"))["waiting_for"][0]["kind"] == "signal"
    await http.post("/runs/p/signal", json={"name": "go", "key": "once"})
    assert (await waited(http, "p"))["status"] == "completed"
    await assert_replays(engine)


async def test_the_actor_may_not_be_given_in_a_body(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tasks/x/claim", json={"user": "root"})
    assert refused(answer, 422, "INPUT_INVALID")["where"] == "user"


# --- what stands around every request ---


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "BAD_JSON"),
        (b'{"workflow": "a", "workflow": "b"}', 400, "BAD_JSON"),
        (b'{"workflow": "a", "input": NaN}', 400, "BAD_JSON"),
        (b'{"workflow": "a", "input": 1e999}', 400, "BAD_JSON"),
        (b'{"workflow": "a", "input": 1' + b"0" * 400 + b"}", 400, "BAD_JSON"),
        (b'{"workflow": "a", "input": ' + b"[" * 200 + b"]" * 200 + b"}", 400, "BAD_JSON"),
        (b"\xff\xfe", 400, "BAD_JSON"),
        (b'{"workflow": "a", "odd": 1}', 422, "INPUT_INVALID"),
        (b'{"workflow": 1}', 422, "INPUT_INVALID"),
        (b"[]", 422, "INPUT_INVALID"),
        (b"", 422, "INPUT_INVALID"),
        (b"{}", 422, "INPUT_INVALID"),
    ],
)
async def test_bodies_are_taken_strictly(
    http: httpx.AsyncClient, body: bytes, status: int, code: str
) -> None:
    answer = await http.post("/runs", content=body, headers={"Content-Type": "application/json"})
    refused(answer, status, code)


async def test_another_content_type_is_415(http: httpx.AsyncClient) -> None:
    refused(
        await http.post("/runs", content=b"{}", headers={"Content-Type": "text/plain"}), 415, "MEDIA_TYPE"
    )


async def test_a_body_above_the_limit_is_413_before_it_is_read_to_its_end(engine: Engine) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1
            yield b"x" * 1000

    transport = httpx.ASGITransport(app=create_app(engine, body_max=10_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as small:
        answer = await small.post("/runs", content=endless(), headers={"Content-Type": "application/json"})
    refused(answer, 413, "BODY_TOO_LARGE")
    assert sent < 20


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", ""])
@pytest.mark.parametrize(
    "sent",
    [
        {"json": {"workflow": "approval"}},
        {"content": b"", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        {"content": b""},
    ],
    ids=["json", "form", "nothing"],
)
async def test_a_page_of_another_machine_changes_nothing(
    http: httpx.AsyncClient, origin: str, sent: dict[str, Any]
) -> None:
    """A form, or a body of no type, crosses from any page to any address: the browser does not ask first."""
    await deployed(http, approval=APPROVAL)
    await http.post("/runs", json={"workflow": "approval", "id": "a"})
    headers = {**sent.get("headers", {}), "Origin": origin}
    for path in ("/runs", "/runs/a/cancel", "/gc"):
        refused(await http.post(path, **{**sent, "headers": headers}), 403, "ORIGIN_REFUSED")
    assert (await http.get("/runs/a")).json()["status"] == "waiting"
    own = await http.post("/runs/a/cancel", json={}, headers={"Origin": "http://localhost:3000"})
    assert own.json()["status"] == "cancelled"


async def test_who_names_no_role_has_none(http: httpx.AsyncClient) -> None:
    nobody = {"X-Treadle-User": "eve", "X-Treadle-Roles": ""}
    refused(await http.post("/gc", json={}, headers=nobody), 403, "FORBIDDEN")
    own = {"X-Treadle-User": "treadle:engine", "X-Treadle-Roles": "admin"}
    refused(await http.post("/gc", json={}, headers=own), 403, "FORBIDDEN")


async def test_an_address_that_is_not_text_leads_nowhere(http: httpx.AsyncClient) -> None:
    refused(await http.get("/runs/%ff"), 404, "ROUTE_NOT_FOUND")


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "365000d"])
async def test_a_time_that_no_run_can_have_is_a_time_all_the_same(
    http: httpx.AsyncClient, since: str
) -> None:
    for name in ("since", "until"):
        assert (await http.get("/runs", params={name: since})).status_code == 200


async def test_an_open_server_answers_only_by_loopback_names(engine: Engine) -> None:
    transport = httpx.ASGITransport(app=create_app(engine))
    for host, status in (
        ("localhost", 200),
        ("127.0.0.2:8420", 200),
        ("[::1]:8420", 200),
        ("evil.example", 403),
    ):
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/readyz", headers={"Host": host})
        assert answer.status_code == status, host


async def test_roles_are_judged_before_the_body_is_read(http: httpx.AsyncClient) -> None:
    viewer = {"X-Treadle-User": "eve", "X-Treadle-Roles": "viewer", "Content-Type": "application/json"}
    refused(await http.post("/runs", content=b"{", headers=viewer), 403, "FORBIDDEN")
    refused(await http.post("/runs/nope/cancel", headers=viewer), 403, "FORBIDDEN")
    assert (await http.get("/runs", headers=viewer)).status_code == 200


async def test_every_route_names_its_role(engine: Engine) -> None:
    paths = create_app(engine).openapi()["paths"]
    roles = {operation["x-role"] for methods in paths.values() for operation in methods.values()}
    assert roles <= {"none", "viewer", "operator", "worker", "admin", "task"}
    assert len(paths) > 25


async def test_unknown_addresses_and_methods_are_problems(http: httpx.AsyncClient) -> None:
    refused(await http.get("/nope"), 404, "ROUTE_NOT_FOUND")
    refused(await http.delete("/runs"), 405, "METHOD")


async def test_answers_carry_what_a_browser_must_be_told(http: httpx.AsyncClient) -> None:
    answer = await http.get("/runs", headers={"X-Request-Id": "r-7"})
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-request-id"] == "r-7"


async def test_changes_of_runs_are_streamed(engine: Engine) -> None:
    app = create_app(engine)
    await asyncio.to_thread(engine.deploy, _file(FLOW))
    from treadle.server import live

    source = live.run_changes(engine, live.ChangesWanted("greet"), None)
    assert (await anext(source)).startswith("id: ")
    await engine.start("greet", id="a")
    async with asyncio.timeout(20):
        async for frame in source:
            change = json.loads(frame.partition("data: ")[2])
            assert change.keys() == {"id", "status", "workflow", "version_no"}
            if change["status"] == "completed":
                break
    await source.aclose()  # type: ignore[attr-defined]
    assert app.state.streams == 0


def _file(text: str) -> str:
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "flow.yaml"
    path.write_text(text)
    return str(path)
