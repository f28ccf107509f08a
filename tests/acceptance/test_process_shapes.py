"""PROCESS.md: authoring, execution, human tasks, and its exact shapes line by line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Desk
from .site import serve


def proc(steps: str, extra: str = "", name: str = "P") -> str:
    return (
        f"dialect: process\nname: {name}\nversion: 1.0.0\n{extra}\nsteps:\n"
        + "\n".join("  " + line for line in steps.strip("\n").splitlines())
        + "\n"
    )


def value(desk: Desk, expression: str, **start: Any) -> Any:
    """The value of one expression."""
    run = desk.run(proc(f"- complete: {{$: {json.dumps(expression)}}}"), "--input", json.dumps(start))
    return run["result"]


def overdue(desk: Desk, run: dict[str, Any]) -> dict[str, Any]:
    """The run once its deadline of a millisecond has passed."""
    for _ in range(1000):
        if run["status"] != "waiting":
            return run
        run = desk("resume", run["id"], "--json").json
    raise AssertionError(run)


APPROVAL = proc(
    """
- set: {state.policy: {$: start.policy}}
- reference: {$: start.policy}
- task: approve
- complete: {answer: {$: payload.answer}}
""",
    "tasks:\n  approve: {roles: [underwriter], type: form, payload: {policy: {$: state.policy}}, schema: {type: object, required: [answer]}, timeout: 3d}",
)


def test_the_page_s_yaml_checks_and_exports_to_itself(desk: Desk) -> None:
    text = """
dialect: process
name: PolicyRenewal
version: 1.2.0
start: {schema: {type: object, required: [policy_id]}}
tasks:
  approve: {roles: [underwriter], payload: {policy: {$: state.policy_id}}, timeout: 3d}
steps:
  - set: {state.policy_id: {$: start.policy_id}}
  - reference: {$: start.policy_id}
  - call: {transport: http, url: "http://127.0.0.1:1/", payload: {id: {$: state.policy_id}}, into: quote, timeout: 30s,
           retry: {attempts: 3, backoff: exponential, delay: 2s},
           on_failure: [{fail: no quote}], on_timeout: [{complete: null}]}
  - if: {$: result.quote.total > 1000}
    then:
      - task: approve
      - if: {$: "payload.answer == 'reject'"}
        then: [{complete: {renewed: false}}]
    else: []
  - repeat: {each: item, in: {$: result.quote.items}, do: [{call: {transport: http, url: "http://x/", payload: {item: {$: item}}}}]}
  - wait: 1h
  - await: {signal: documents, into: docs, timeout: 7d}
  - fork: {left: [{wait: 1s}], right: [{set: {state.x: 1}}]}
  - child: {workflow: IssuePolicy, input: {id: {$: state.policy_id}}, into: issued}
  - continue_with: {workflow: Archive, input: {id: {$: state.policy_id}}}
  - complete: {renewed: true}
"""
    checked = desk.check(text, code=0)
    assert checked["ok"] is True
    assert {problem["severity"] for problem in checked["problems"]} == {"warning"}
    once = desk("export", "flow.yaml", code=0).out
    desk.write("again.yaml", once)
    assert desk("export", "again.yaml", code=0).out == once
    python = desk("export", "flow.yaml", "--format", "python", code=0).out
    desk.write("again.py", python)
    assert desk("export", "again.py", code=0).out == once
    as_json = desk("export", "flow.yaml", "--format", "json", code=0).out
    desk.write("again.json", as_json)
    assert desk("export", "again.json", code=0).out == once


BUILDER = """
from treadle.process import process, task, state, start, payload, result, coalesce, concat, if_, format_

approve = task("approve", roles=["underwriter"], payload={"policy": state.policy_id}, timeout="3d",
               on_timeout=lambda p: p.fail("late"))

@process("PolicyRenewal", version="1.2.0", start={"type": "object"})
def renewal(p):
    p.set(state.policy_id, start.policy_id)
    p.reference(start.policy_id)
    p.set(state.n, coalesce(state.a, start.b, 0) + 1)
    p.set(state.flag, ~(state.n > 5) & (state.n == 1))
    p.call("http", url="http://127.0.0.1:1/", payload={"id": state.policy_id}, into="quote",
           timeout="30s", retry=dict(attempts=1, backoff="exponential", delay="2s"),
           on_failure=lambda p: p.set(state.no_quote, True), on_timeout=lambda p: p.complete())
    with p.when(result.quote.total > 1000):
        p.ask(approve)
        with p.when(payload.answer == "reject"):
            p.complete({"renewed": False})
    with p.otherwise():
        p.set(state.other, True)
    with p.each("line", in_=result.quote.items):
        p.set(state.last, p.line)
    with p.while_(state.n < 3, max=5):
        p.set(state.n, state.n + 1)
    with p.until(state.n >= 4, max=5):
        p.set(state.n, state.n + 1)
    p.wait("10ms")
    p.fork(left=lambda p: p.set(state.left, 1), right=lambda p: p.await_signal("documents", into="docs", timeout="7d", on_timeout=lambda p: p.fail("x")))
    p.complete({"renewed": True, "n": state.n, "flag": state.flag, "docs": result.docs, "text": format_("{} of {}", state.n, if_(state.flag, "a", "b"))})
"""


def test_the_page_s_builder_runs_and_equals_its_export(desk: Desk) -> None:
    desk.write(
        "flow.py",
        BUILDER.replace(
            "with p.when(result.quote.total > 1000)", "with p.when(coalesce(result.quote.total, 0) > 1000)"
        ).replace("in_=result.quote.items", "in_=coalesce(result.quote.items, [])"),
    )
    run = desk("run", "flow.py", "-i", "policy_id=P-7", "--json", code=3).json
    assert run["workflow"] == "PolicyRenewal"
    assert run["version"] == "1.2.0"
    assert run["reference"] == "P-7"
    assert run["state"]["no_quote"] is True
    assert run["state"]["other"] is True
    assert [(w["kind"], w["name"]) for w in run["waiting_for"]] == [("signal", "documents")]
    run = desk("signal", run["id"], "documents", "--data", '{"pages": 3}', "--json", code=0).json
    assert run["result"] == {"renewed": True, "n": 4, "flag": True, "docs": {"pages": 3}, "text": "4 of a"}
    desk.write("same.yaml", desk("export", "flow.py:renewal", code=0).out)
    again = desk("run", "same.yaml", "-i", "policy_id=P-7", "--json", code=3).json
    assert again["digest"] == run["digest"]


def test_19_truth_of_a_term_raises_with_an_explanation() -> None:
    from treadle.process import state

    with pytest.raises(TypeError, match="when"):
        bool(state.x)


def test_19_every_function_is_importable() -> None:
    from treadle.process import (  # noqa: F401
        add,
        at,
        coalesce,
        concat,
        contains,
        first,
        format_,
        if_,
        is_blank,
        json,
        keys,
        last,
        length,
        lower,
        merge,
        now,
        number,
        string,
        trim,
        upper,
    )  # fmt: skip


# Human tasks


def test_tasks_from_claim_to_stale(desk: Desk) -> None:
    run = desk.run(APPROVAL, "-i", "policy=P-1", code=3)
    assert run["status"] == "waiting"
    (wait,) = run["waiting_for"]
    assert (wait["kind"], wait["name"]) == ("task", "approve")
    assert wait["due"].endswith("Z")
    (row,) = desk("tasks", "--json", code=0).json
    assert set(row) >= {
        "id", "run", "workflow", "name", "type", "roles", "payload", "schema", "reference", "status", "assignee",
        "created_at", "due", "history",
    }  # fmt: skip
    assert row["id"] == wait["id"]
    assert (row["run"], row["workflow"], row["type"]) == (run["id"], "P", "form")
    assert (row["roles"], row["payload"], row["reference"]) == (["underwriter"], {"policy": "P-1"}, "P-1")
    assert (row["status"], row["assignee"]) == ("open", None)

    def refused(*arguments: str) -> None:
        error = desk(*arguments, "--json", code=1).error
        assert error["class"] == "authorization"
        now = desk("show", run["id"], "--json", code=0).json
        assert now["version_no"] == run["version_no"]

    task = row["id"]
    refused("task", "claim", task, "--user", "bob", "--role", "clerk")
    refused("task", "complete", task, "--user", "bob", "--role", "underwriter", "--data", '{"answer": "yes"}')
    claimed = desk("task", "claim", task, "--user", "ann", "--role", "underwriter", "--json", code=0).json
    assert (claimed["status"], claimed["assignee"]) == ("claimed", "ann")
    refused("task", "complete", task, "--user", "bob", "--role", "underwriter", "--data", '{"answer": "yes"}')
    refused("task", "release", task, "--user", "bob", "--role", "underwriter")
    released = desk("task", "release", task, "--user", "ann", "--json", code=0).json
    assert (released["status"], released["assignee"]) == ("open", None)
    desk("task", "claim", task, "--user", "ann", "--role", "underwriter", "--json", code=0)
    assigned = desk(
        "task", "assign", task, "--to", "bob", "--user", "boss", "--role", "admin", "--json", code=0
    ).json
    assert assigned["assignee"] == "bob"
    remarked = desk(
        "task", "comment", task, "--text", "hm", "--user", "bob", "--role", "underwriter", "--json", code=0
    ).json
    assert "hm" in str(remarked["history"])
    assert desk("show", run["id"], "--json", code=0).json["version_no"] == run["version_no"]
    error = desk("task", "complete", task, "--user", "bob", "--data", '{"wrong": 1}', "--json").error
    assert error["class"] == "user"
    refused_version = desk(
        "task",
        "complete",
        task,
        "--user",
        "bob",
        "--data",
        '{"answer": "yes"}',
        "--expected-version",
        "99",
        "--json",
        code=1,
    ).error
    assert refused_version["class"] == "consistency"
    done = desk(
        "task",
        "complete",
        task,
        "--user",
        "bob",
        "--data",
        '{"answer": "yes"}',
        "--expected-version",
        str(run["version_no"]),
        "--json",
        code=0,
    ).json
    assert done["result"] == {"answer": "yes"}
    assert "stale" not in done or done["stale"] is False
    again = desk(
        "task", "complete", task, "--user", "bob", "--data", '{"answer": "no"}', "--json", code=0
    ).json
    assert again["stale"] is True
    assert again["version_no"] == done["version_no"]
    assert "stale" in desk.types(run["id"])
    assert desk("task", "show", task, "--json", code=0).json["status"] == "completed"
    assert desk("tasks", "--json", code=0).json == []
    assert [r["id"] for r in desk("tasks", "--status", "completed", "--json", code=0).json] == [task]


def test_filters_of_tasks(desk: Desk) -> None:
    run = desk.run(APPROVAL, "-i", "policy=P-1", code=3)
    desk.run(APPROVAL, "-i", "policy=P-2", code=3)
    row = desk("tasks", "--run", run["id"], "--json", code=0).json[0]
    desk("task", "claim", row["id"], "--user", "ann", "--role", "underwriter", code=0)

    def found(*arguments: str) -> list[str]:
        return sorted(r["reference"] for r in desk("tasks", *arguments, "--json", code=0).json)

    assert found() == ["P-1", "P-2"]
    assert found("--role", "underwriter") == ["P-1", "P-2"]
    assert found("--role", "clerk") == []
    assert found("--assignee", "ann") == ["P-1"]
    assert found("--status", "open") == ["P-2"]
    assert found("--reference", "P-2") == ["P-2"]


def test_reactivation_gives_a_new_token(desk: Desk) -> None:
    run = desk.run(
        proc(
            """
- repeat:
    until: {$: "payload.ok == true"}
    max: 5
    do: [{task: form}]
- complete: {$: payload}
""",
            "tasks: {form: {roles: [clerk]}}",
        ),
        code=3,
    )
    first = run["waiting_for"][0]["id"]
    run = desk(
        "task",
        "complete",
        first,
        "--user",
        "a",
        "--role",
        "admin",
        "--data",
        '{"ok": false}',
        "--json",
        code=3,
    ).json
    second = run["waiting_for"][0]["id"]
    assert first != second
    stale = desk(
        "task",
        "complete",
        first,
        "--user",
        "a",
        "--role",
        "admin",
        "--data",
        '{"ok": true}',
        "--json",
        code=0,
    ).json
    assert stale["stale"] is True
    run = desk(
        "task",
        "complete",
        second,
        "--user",
        "a",
        "--role",
        "admin",
        "--data",
        '{"ok": true}',
        "--json",
        code=0,
    ).json
    assert run["result"] == {"ok": True}


# Exact shapes


def test_01_complete_cancels_other_branches(desk: Desk) -> None:
    run = desk.run(
        proc(
            """
- fork:
    left: [{task: t}]
    right: [{await: {signal: go}}, {complete: early}]
""",
            "tasks: {t: {roles: [r]}}",
        ),
        code=3,
    )
    assert sorted(w["kind"] for w in run["waiting_for"]) == ["signal", "task"]
    done = desk("signal", run["id"], "go", "--json", code=0).json
    assert (done["status"], done["result"], done["waiting_for"]) == ("completed", "early", [])
    assert [
        r["status"] for r in desk("tasks", "--run", run["id"], "--status", "cancelled", "--json", code=0).json
    ] == ["cancelled"]


def test_01_fail_and_last_step(desk: Desk) -> None:
    run = desk.run(proc("- if: true\n  then: [{fail: no good}]"), code=1)
    assert run["error"]["class"] == "user"
    assert "no good" in run["error"]["message"]
    run = desk.run(proc("- set: {state.x: 1}"))
    assert (run["result"], run["state"]) == (None, {"x": 1})


def test_02_06_a_call_and_its_meta(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(
            proc(
                f"""
- call: {{transport: http, url: "{url}/a", payload: {{n: 1}}, into: posted, headers: {{X-A: b}}}}
- call: {{transport: http, url: "{url}/b", params: {{q: 1}}, into: got}}
- call: {{transport: http, url: "{url}/c", method: PUT, payload: {{n: 1}}, into: put}}
- complete: {{a: {{$: result.posted.path}}, b: {{$: result.got.path}}, status: {{$: result.got_meta.status}}, type: {{$: "result.got_meta.headers['content-type']"}}}}
"""
            )
        )
    assert run["result"] == {"a": "/a", "b": "/b?q=1", "status": 200, "type": "application/json"}
    assert [one["method"] for one in asked] == ["POST", "GET", "PUT"]
    assert run["results"]["posted"]["path"] == "/a"
    assert run["version_no"] == 4  # one commit before and one after each call, shared by neighbours


def test_02_03_retries_are_timers_and_share_the_key(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(
            proc(
                f'- call: {{transport: http, url: "{url}/429", payload: {{}}, into: x, retry: {{attempts: 4, delay: 10ms}}}}'
            )
        )
    assert len(asked) == 3
    assert len({one["key"] for one in asked}) == 1
    assert asked[0]["key"]
    assert run["status"] == "completed"
    assert "timer" in str(desk("journal", run["id"], "--json", code=0).out)


def test_stalled_and_the_ways_out(desk: Desk) -> None:
    text = proc('- call: {transport: http, url: {$: "start.url"}, into: x}\n- complete: {$: result.x}')
    run = desk.run(text, "-i", "url=http://127.0.0.1:1/", code=3)
    assert run["status"] == "stalled"
    assert run["error"]["class"] == "transport"
    assert set(run["error"]) == {"class", "code", "message", "where", "details"}
    assert "steps[0]" in run["error"]["where"]
    assert desk("retry", run["id"], "--json", code=3).json["status"] == "stalled"
    done = desk("retry", run["id"], "--skip", "--value", '{"total": 0}', "--json", code=0).json
    assert done["result"] == {"total": 0}
    run = desk.run(text, "-i", "url=http://127.0.0.1:1/", code=3)
    failed = desk("retry", run["id"], "--fail", "given up", "--json", code=1).json
    assert failed["status"] == "failed"
    assert "given up" in failed["error"]["message"]


def test_retry_with_other_input(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(
            proc(
                f'- call: {{transport: http, url: "{url}/pick", payload: {{fail: true}}, into: x}}\n- complete: {{$: result.x}}'
            ),
            code=3,
        )
        done = desk("retry", run["id"], "--input", '{"fail": false}', "--json", code=0).json
    assert done["status"] == "completed"
    assert [json.loads(one["body"]) for one in asked] == [{"fail": True}, {"fail": False}]


def test_03_timeouts_pick_the_branch(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(
            proc(
                f"""
# The first call of a process loads its client, which no timeout is about.
- call: {{transport: http, url: "{url}/ok", into: y}}
- call: {{transport: http, url: "{url}/slow", into: x, timeout: 1500ms, retry: {{attempts: 2, delay: 1ms}},
         on_timeout: [{{set: {{state.e: {{$: error.class}}, state.m: {{$: error.message}}}}}}], on_failure: [{{fail: wrong branch}}]}}
- complete: {{e: {{$: state.e}}}}
"""
            )
        )
    assert run["result"] == {"e": "timeout"}
    assert [one["path"] for one in asked] == ["/ok", "/slow", "/slow"]


def test_04_await_times_out(desk: Desk) -> None:
    desk.write(
        "late.yaml", proc("- await: {signal: s, timeout: 1ms, on_timeout: [{complete: late}]}", name="Late")
    )
    run = desk("run", "late.yaml", "--json").json
    run = overdue(desk, run)
    assert run["result"] == "late"


def test_04_await_without_a_branch_stalls_and_retry_opens_it_anew(desk: Desk) -> None:
    run = desk.run(proc("- await: {signal: s, timeout: 1ms}\n- complete: 1"), code=3)
    run = overdue(desk, run)
    assert (run["status"], run["error"]["class"]) == ("stalled", "timeout")
    run = desk("retry", run["id"], "--json").json
    assert run["status"] in ("waiting", "stalled")


def test_07_error_and_on_success(desk: Desk) -> None:
    with serve() as (url, _):
        run = desk.run(
            proc(
                f"""
- call: {{transport: http, url: "{url}/404", into: x, on_failure: [{{set: {{state.c: {{$: error.class}}, state.k: {{$: error.code}}}}}}], on_success: [{{fail: no}}]}}
- call: {{transport: http, url: "{url}/a", into: y, on_success: [{{set: {{state.ok: true}}}}]}}
"""
            )
        )
    assert run["state"]["c"] == "transport"
    assert run["state"]["ok"] is True
    assert run["status"] == "completed"


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ("- set: {state.x: 1}\n  sett: {}", "sett"),
        ("- call: {transport: pigeon, into: x}", "pigeon"),
        ("- call: {transport: http, url: 'http://x', intoo: x}", "into"),
        ("- nothing: {}", "nothing"),
        ("- task: undeclared", "undeclared"),
        ("- set: {start.x: 1}", "state"),
        ("- complete: {$: nobody.x}", "nobody"),
        ("- complete: {$: 'f(1)'}", "f"),
        ("- complete: {$: '1 +'}", "1 +"),
        ("- repeat: {while: {$: 'true'}, do: []}", "max"),
        ("- wait: 3 fortnights", "fortnights"),
        ("- wait: {$: payload.x}\n- wait: {untill: x}", "until"),
    ],
)
def test_09_definition_errors(desk: Desk, steps: str, word: str) -> None:
    error = desk.refuse(proc(steps))
    assert error["class"] == "definition"
    said = " ".join(p["message"] + (p["hint"] or "") for p in error["details"]["problems"])
    assert word in said
    assert all(p["line"] >= 4 for p in error["details"]["problems"])


def test_09_an_undeployed_child(desk: Desk) -> None:
    text = proc("- child: {workflow: Nobody, into: x}")
    checked = desk.check(text, code=0)
    assert [p["severity"] for p in checked["problems"]] == ["warning"]
    assert desk("deploy", "flow.yaml", "--json", code=2).error["class"] == "definition"
    assert desk("definitions", "--json", code=0).json == []
    desk("deploy", "flow.yaml", "--validation", "warn", "--json", code=0)
    (row,) = desk("definitions", "--json", code=0).json
    assert set(row) >= {"name", "version", "dialect", "digest", "status", "reasons"}
    assert (row["name"], row["version"], row["dialect"], row["status"]) == (
        "P",
        "1.0.0",
        "process",
        "unavailable",
    )
    assert "Nobody" in str(row["reasons"])


def test_09_run_claims_no_version(desk: Desk) -> None:
    desk.run(proc("- complete: 1"))
    assert desk.run(proc("- complete: 2"))["result"] == 2
    assert desk("definitions", "--json", code=0).json == []


def test_10_an_expression_error(desk: Desk) -> None:
    run = desk.run(
        proc("- set: {state.x: 1}\n- if: true\n  then: [{set: {state.y: {$: state.x + 'a'}}}]"), code=1
    )
    error = run["error"]
    assert (run["status"], error["class"]) == ("failed", "expression")
    assert "steps[1].then[0]" in error["where"]
    assert error["details"]["expression"] == "state.x + 'a'"


def test_11_children(desk: Desk) -> None:
    desk.write("kid.yaml", proc("- reference: kid-ref\n- complete: {n: {$: start.n + 1}}", name="Kid"))
    desk.write("slow.yaml", proc("- await: {signal: go, into: g}\n- complete: {$: result.g}", name="Slow"))
    desk("deploy", "kid.yaml", "slow.yaml", code=0)
    run = desk.run(
        proc("- reference: R\n- child: {workflow: Kid, input: {n: 1}, into: k}\n- complete: {$: result.k}")
    )
    assert run["result"] == {"n": 2}
    (kid,) = run["children"]
    child = desk("show", kid, "--json", code=0).json
    assert (child["parent"], child["workflow"], child["status"], child["reference"]) == (
        run["id"],
        "Kid",
        "completed",
        "kid-ref",
    )
    run = desk.run(
        proc("- reference: R\n- child: {workflow: Slow@1.0.0, into: k}\n- complete: {$: result.k}"), code=3
    )
    (wait,) = [w for w in run["waiting_for"] if w["kind"] == "child"]
    assert wait["name"] == "Slow"
    child = desk("show", run["children"][0], "--json", code=0).json
    assert (child["status"], child["reference"]) == ("waiting", None)
    engine = desk("show", run["id"], "--engine", "--json", code=0).json["engine"]
    assert set(engine) >= {
        "waits",
        "resume_pointer",
        "frames",
        "timers",
        "last_event",
        "children",
        "retain_until",
    }
    assert set(engine["children"][0]) >= {"id", "name", "version", "reference", "into"}
    assert (engine["children"][0]["into"], engine["children"][0]["version"]) == ("k", "1.0.0")
    assert set(engine["waits"][0]) >= {"kind", "token", "path", "due"}
    desk("signal", run["children"][0], "go", "--data", "7", "--json", code=0)
    done = desk("resume", run["id"], "--json", code=0).json
    assert done["result"] == 7


def test_11_a_failing_child(desk: Desk) -> None:
    desk.write("kid.yaml", proc("- fail: broken kid", name="Kid"))
    desk("deploy", "kid.yaml", code=0)
    run = desk.run(proc("- child: {workflow: Kid, into: k}"), code=3)
    assert run["status"] == "stalled"
    assert "broken kid" in run["error"]["message"]
    run = desk.run(proc("- child: {workflow: Kid, into: k, on_failure: [{complete: {$: error.message}}]}"))
    assert "broken kid" in run["result"]


def test_11_cancel_cascades(desk: Desk) -> None:
    desk.write("slow.yaml", proc("- await: {signal: go}", name="Slow"))
    desk("deploy", "slow.yaml", code=0)
    run = desk.run(proc("- child: {workflow: Slow}"), code=3)
    cancelled = desk("cancel", run["id"], "--json", code=0).json
    assert cancelled["status"] == "cancelled"
    child = desk("show", run["children"][0], "--json", code=0).json
    assert child["status"] == "cancelled"
    assert desk("resume", run["id"], "--json", code=4).json["status"] == "cancelled"
    again = desk("cancel", run["id"], "--json", code=0).json
    assert again["version_no"] == cancelled["version_no"]


def test_12_signals_are_kept_first_in_first_out(desk: Desk) -> None:
    run = desk.run(
        proc(
            """
- await: {signal: start_now}
- await: {signal: s, into: a}
- await: {signal: s, into: b}
- complete: [{$: result.a}, {$: result.b}]
"""
        ),
        code=3,
    )
    desk("signal", run["id"], "s", "--data", "1", "--key", "k1", "--json", code=3)
    desk("signal", run["id"], "s", "--data", "9", "--key", "k1", "--json")
    desk("signal", run["id"], "s", "--data", "2", "--json", code=3)
    done = desk("signal", run["id"], "start_now", "--json", code=0).json
    assert done["result"] == [1, 2]


def test_signal_by_reference(desk: Desk) -> None:
    text = proc("- reference: {$: start.r}\n- await: {signal: s}")
    runs = [desk.run(text, "-i", f"r={r}", code=3)["id"] for r in ("A", "A", "B")]
    lines = desk("signal", "--reference", "A", "s", "--json", code=0).lines
    assert sorted(line["id"] for line in lines) == sorted(runs[:2])
    assert {line["status"] for line in lines} == {"completed"}
    assert desk("signal", "--reference", "A", "s", "--json", code=1).error["class"]
    assert desk("signal", "--reference", "Z", "s", "--json", code=1).error["class"]


def test_expected_version_of_a_signal(desk: Desk) -> None:
    run = desk.run(proc("- await: {signal: s}"), code=3)
    error = desk("signal", run["id"], "s", "--expected-version", "77", "--json", code=1).error
    assert error["class"] == "consistency"
    assert desk("show", run["id"], "--json").json["version_no"] == run["version_no"]
    desk("signal", run["id"], "s", "--expected-version", str(run["version_no"]), "--json", code=0)
    late = desk("signal", run["id"], "s", "--json", code=0).json
    assert late["stale"] is True


def test_14_repeat(desk: Desk) -> None:
    run = desk.run(
        proc(
            "- repeat: {while: {$: 'true'}, max: 3, do: [{set: {state.n: {$: 'coalesce(state.n, 0) + 1'}}}]}"
        ),
        code=1,
    )
    assert run["error"]["code"] == "REPEAT_MAX"
    assert run["state"] == {"n": 3}
    run = desk.run(
        proc(
            """
- set: {state.out: []}
- repeat:
    each: row
    in: [[1, 2], [3]]
    do:
      - repeat:
          each: cell
          in: {$: row}
          do: [{set: {state.s: {$: "concat(coalesce(state.s, ''), row_index, cell_index, item_index, cell, ' ')"}}}]
- complete: {$: state.s}
"""
        )
    )
    assert run["result"] == "0001 0112 1003 "


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("7 / 2", 3.5),
        ("7 % 4", 3),
        ("not 1 == 2 and true", True),
        ("'a' + \"b\"", "ab"),
        ("1 == '1'", False),
        ("null == null", True),
        ("2 in [1, 2]", True),
        ("'k' in {'k': 1}", True),
        ("start.a[0]", 5),
        ("start.o['k']", "v"),
        ("start.nothing.at.all", None),
        ("coalesce(null, start.none, 3)", 3),
        ("concat('a', null, 1, 2.5)", "a12.5"),
        ("add(1, 2)", 3),
        ("if(start.a, 'y', 'n')", "y"),
        ("if([], 'y', 'n')", "n"),
        ("[is_blank(null), is_blank('  '), is_blank('x')]", [True, True, False]),
        ("[length('abc'), length([1]), upper('a'), lower('B'), trim(' c ')]", [3, 1, "A", "b", "c"]),
        ("[first([1, 2]), last([1, 2]), at([1, 2], 1), at([1], 5), at({'a': 1}, 'a')]", [1, 2, 2, None, 1]),
        ("keys({'b': 1, 'a': 2})", ["a", "b"]),
        ("merge({'a': {'x': 1}}, {'a': {'y': 2}})", {"a": {"x": 1, "y": 2}}),
        ("[contains('abc', 'b'), contains([1], 1)]", [True, True]),
        ("format('{} of {}', 1, 'x')", "1 of x"),
        ("[number('1.5'), number('2'), string(3)]", [1.5, 2, "3"]),
        ("json({'a': [1, true, null]})", None),
        ("run.workflow", "P"),
        ("run.version", "1.0.0"),
        ("true or 1 + 'x' == 2", True),
    ],
)
def test_15_16_expressions(desk: Desk, expression: str, expected: Any) -> None:
    got = value(desk, expression, a=[5], o={"k": "v"})
    if expression.startswith("json("):
        assert json.loads(got) == {"a": [1, True, None]}
    else:
        assert got == expected


@pytest.mark.parametrize(
    "expression", ["1 + null", "1 < 'a'", "null < 1", "number('x')", "1 + 'a'", "[] - 1"]
)
def test_15_type_errors(desk: Desk, expression: str) -> None:
    run = desk.run(proc(f"- complete: {{$: {json.dumps(expression)}}}"), code=1)
    assert run["error"]["class"] == "expression"
    assert run["error"]["details"]["expression"] == expression


def test_16_now_is_the_recorded_time(desk: Desk) -> None:
    run = desk.run(proc("- set: {state.a: {$: now()}}\n- complete: {$: now()}"))
    assert run["result"].startswith("20")
    assert run["result"].endswith(("Z", "+00:00"))
    assert desk("replay", run["id"], "--json", code=0).json == {"id": run["id"], "equal": True}


def test_17_run_roots(desk: Desk) -> None:
    run = desk.run(proc("- reference: R\n- complete: [{$: run.id}, {$: run.reference}, {$: run.started_at}]"))
    assert run["result"][:2] == [run["id"], "R"]
    assert run["result"][2] == run["started_at"]


def test_18_set_sees_the_values_from_before(desk: Desk) -> None:
    run = desk.run(
        proc(
            "- set: {state.a: 1, state.b: 2}\n- set: {state.a: {$: state.b}, state.b: {$: state.a}, state.c.d.e: 1}"
        )
    )
    assert run["state"] == {"a": 2, "b": 1, "c": {"d": {"e": 1}}}


def test_20_versions(desk: Desk) -> None:
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        desk.write("f.yaml", proc(f"- complete: v{version}").replace("1.0.0", version))
        desk("deploy", "f.yaml", "--json", code=0)
    assert desk("run", "P", "--json", code=0).json["result"] == "v1.10.0"
    assert desk("run", "P@1.2.0", "--json", code=0).json["result"] == "v1.2.0"
    desk.write("f.yaml", proc("- complete: other").replace("1.0.0", "1.2.0"))
    assert desk("deploy", "f.yaml", "--json", code=2).error["class"] == "definition"
    assert desk("run", "P@7.7.7", "--json").code == 2


def test_21_a_start_payload_that_does_not_match(desk: Desk) -> None:
    text = proc(
        "- complete: 1",
        "start: {schema: {type: object, required: [policy_id], properties: {policy_id: {type: string}}}}",
    )
    desk.write("flow.yaml", text)
    error = desk("run", "flow.yaml", "--json", code=2).error
    assert error["class"] == "user"
    assert "policy_id" in str(error)
    assert desk("list", "--json", code=0).json == []
    assert desk("run", "flow.yaml", "-i", "policy_id=5", "--json", code=2).error["class"] == "user"
    desk("run", "flow.yaml", "-i", 'policy_id="5"', "--json", code=0)


def test_22_retention(desk: Desk) -> None:
    run = desk.run(proc("- complete: 1", "retention: 2d"))
    assert run["retain_until"][:10] > run["ended_at"][:10]
    run = desk.run(proc("- await: {signal: s}"), code=3)
    assert run.get("retain_until") is None


def test_23_continue_with(desk: Desk) -> None:
    desk.write("kid.yaml", proc("- await: {signal: s}", name="Kid"))
    desk("deploy", "kid.yaml", code=0)
    run = desk.run(proc("- continue_with: {workflow: Kid, input: {a: 1}}\n- complete: here"))
    assert run["result"] == "here"
    (other,) = desk("list", "--workflow", "Kid", "--json", code=0).json
    new = desk("show", other["id"], "--json", code=0).json
    assert (new["parent"], new["continued_from"], new["input"]) == (None, run["id"], {"a": 1})
    run = desk.run(proc("- continue_with: {workflow: Nobody}\n- complete: here"), code=3)
    assert run["status"] == "stalled"


@pytest.mark.parametrize("text", ["1ms", "PT0.01S", "{until: '2020-01-01T00:00:00Z'}", "{$: \"'5ms'\"}"])
def test_24_durations(desk: Desk, text: str) -> None:
    assert desk.run(proc(f"- wait: {text}\n- complete: 1"))["result"] == 1


def test_until_wait_returns_at_timers(desk: Desk) -> None:
    run = desk.run(proc("- wait: 1h\n- complete: 1"), "--until-wait", code=3)
    assert run["status"] == "waiting"
    (wait,) = run["waiting_for"]
    assert wait["kind"] == "timer"
    assert wait["due"] > run["started_at"]
