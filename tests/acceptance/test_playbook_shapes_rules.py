"""PLAYBOOK.md §5, lines 13 to 40, and the decided questions of §3 that they do not cover."""

from __future__ import annotations

import json

import pytest

from .conftest import Desk
from .site import serve

ON_ERROR = "{when: \"{{ outcome.status == 'error' }}\", then: {do: retry, %s}}"
GO_ON = "{else: {then: {do: continue}}}"


def rules(*lines: str) -> str:
    return "spec: {policy: {rules: [" + ", ".join(lines) + "]}}"


def test_13_policy_retries_share_the_key_and_entries_do_not(desk: Desk) -> None:
    with serve() as (url, asked):
        desk.run(
            f"""
            metadata: {{name: p}}
            workflow:
              - step: a
                tool:
                  - name: t
                    kind: http
                    method: POST
                    url: {url}/429
                    body: {{}}
                    {rules(ON_ERROR % "attempts: 5, delay: 0.01", GO_ON)}
                  - name: again
                    kind: noop
                    {rules("{when: '{{ iter.twice }}', then: {do: break}}", "{else: {then: {do: jump, to: t, set_iter: {twice: true}}}}")}
            """
        )
    keys = [one["key"] for one in asked]
    assert len(keys) == 4
    assert all(keys)
    assert keys[0] == keys[1] == keys[2]
    assert keys[3] != keys[0]


LOOPED = """
metadata: {{name: p}}
workflow:
  - step: a
    {policy}
    loop: {{in: [1, 2, 3], iterator: n{spec}}}
    tool: {{kind: python, code: "result = 6 / (n - 2)", args: {{n: "{{{{ iter.n }}}}"}}}}
    next: {{arcs: [{{step: ok, when: "{{{{ event.name == 'loop.done' }}}}"}}]}}
  - {{step: ok, tool: {{kind: noop, result: fine}}}}
"""


def test_14_best_effort_loop_leaves_the_run_completed(desk: Desk) -> None:
    run = desk.run(LOOPED.format(policy="spec: {policy: {failure: {mode: best_effort}}}", spec=""))
    assert (run["status"], run["result"]) == ("completed", "fine")
    assert run["state"]["steps"]["a"]["result"] == {
        "results": [-6, None, 6],
        "stats": {"total": 3, "success": 2, "failed": 1},
    }


def test_22_fail_fast_in_a_loop(desk: Desk) -> None:
    run = desk.run(LOOPED.format(policy="", spec=""), code=1)
    assert run["status"] == "failed"
    step = run["state"]["steps"]["a"]
    assert step["status"] == "failed"
    assert step["result"]["results"][:2] == [-6, None]
    assert step["result"]["stats"]["failed"] >= 1
    types = desk.types(run["id"])
    assert "loop.done" not in types
    assert "step.failed" in types


def test_22_running_iterations_are_cancelled(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            loop: {in: [60, 0], iterator: n, spec: {mode: parallel, max_in_flight: 2}}
            tool: {kind: shell, cmds: "sleep {{ iter.n }}; exit 1"}
        """,
        code=1,
    )
    failed = [e for e in desk.events(run["id"]) if e["type"] == "loop.iteration.failed"]
    assert {e["iteration"]: e["error"]["kind"] for e in failed} == {0: "cancelled", 1: "exit_code"}


@pytest.mark.parametrize(
    ("mode", "status", "code", "ran"),
    [("", "failed", 1, True), ("fail_fast", "failed", 1, False), ("best_effort", "partial", 5, True)],
)
def test_14_failure_mode_of_the_executor(desk: Desk, mode: str, status: str, code: int, ran: bool) -> None:
    executor = (
        f"executor: {{spec: {{final_step: z, policy: {{failure: {{mode: {mode}}}}}}}}}"
        if mode
        else "executor: {spec: {final_step: z}}"
    )
    run = desk.run(
        f"""
        metadata: {{name: p}}
        {executor}
        workflow:
          - step: a
            tool: {{kind: noop}}
            next: {{spec: {{mode: inclusive}}, arcs: [{{step: bad}}, {{step: slow}}]}}
          - {{step: bad, tool: {{kind: shell, cmds: "exit 1"}}}}
          - step: slow
            tool: {{kind: shell, cmds: "sleep 0.3"}}
            next: {{arcs: [{{step: after}}]}}
          - {{step: after, tool: {{kind: noop}}}}
          - {{step: z, tool: {{kind: noop, result: "{{{{ args }}}}"}}}}
        """,
        code=code,
    )
    assert run["status"] == status
    assert ("after" in run["state"]["steps"]) is ran
    assert run["state"]["steps"]["z"]["runs"] == 1
    args = run["state"]["steps"]["z"]["result"]
    assert set(args) >= {"execution_id", "status", "steps", "branches", "results", "failures"}
    assert args["execution_id"] == run["id"]
    assert set(args["steps"]) == {"total", "done", "failed"}
    assert [failure["step"] for failure in args["failures"] if failure["step"] == "bad"] == ["bad"]
    assert args["failures"][0]["error"]["kind"] in ("exit_code", "cancelled")


def test_14_one_guarded_arc_handles_a_failure(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: {kind: shell, cmds: "exit 1"}
            next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c, when: "{{ event.name == 'step.failed' }}"}]}
          - {step: b, tool: {kind: noop}}
          - {step: c, tool: {kind: noop}}
        """
    )
    assert run["status"] == "completed"


def test_3_2_an_unconditional_arc_fires_on_failure_but_does_not_handle_it(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: {kind: shell, cmds: "exit 1"}
            next: {arcs: [{step: b}]}
          - {step: b, tool: {kind: noop}}
        """,
        code=1,
    )
    assert run["state"]["steps"]["b"]["status"] == "done"
    assert run["status"] == "failed"
    assert {"class", "code", "message", "where", "details"} == set(run["error"])


B_SPELLING = """
metadata: {name: p}
workflow:
  - step: a
    tool:
      kind: python
      code: "result = {'n': n}"
      input: {n: 4}
      spec: {policy: {rules: [{when: "{{ output.data.n == 4 }}", then: {do: continue, set: {ctx.seen.deep: "{{ output.data.n }}"}}}, {else: {then: {do: fail}}}]}}
    set: {ctx.total: "{{ output.data.n + 1 }}"}
    next:
      spec: {mode: inclusive}
      arcs:
        - {step: b, when: "{{ event.name == 'call.done' and ctx.flag is not defined }}", set: {ctx.flag: 1}}
        - {step: c, when: "{{ ctx.flag is not defined }}"}
        - {step: d, when: "{{ event.name == 'call.error' }}", set: {ctx.wrong: 1}}
  - {step: b, tool: {kind: noop, result: "{{ ctx.total }}"}}
  - {step: c, tool: {kind: noop}}
  - {step: d, tool: {kind: noop}}
"""


def test_33_b_spelling_is_read(desk: Desk) -> None:
    run = desk.run(B_SPELLING)
    assert run["state"]["ctx"] == {"seen": {"deep": 4}, "total": 5, "flag": 1}
    assert run["state"]["steps"]["b"]["result"] == 5
    assert "c" in run["state"]["steps"]
    assert "d" not in run["state"]["steps"]


def test_15_strict_refuses_b_with_a_as_hint(desk: Desk) -> None:
    checked = desk.check(B_SPELLING, "--strict", code=2)
    hints = " ".join(problem["hint"] or "" for problem in checked["problems"])
    for word in ("args", "outcome", "set_ctx", "step.done", "step.failed"):
        assert word in hints, word
    assert desk("run", "flow.yaml", "--strict", "--json", code=2).error["class"] == "definition"
    assert desk("deploy", "flow.yaml", "--strict", "--json", code=2).error["class"] == "definition"


def test_16_else_is_last_and_has_two_spellings(desk: Desk) -> None:
    for text in ("{else: {then: {do: break}}}", "{else: null, then: {do: break}}"):
        desk.run(f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: noop, {rules(text)}}}}}]\n")
    first = rules("{else: {then: {do: break}}}", "{when: '{{ true }}', then: {do: fail}}")
    error = desk.refuse(
        f"metadata: {{name: q}}\nworkflow: [{{step: a, tool: {{kind: noop, {first}}}}}]\n", name="q.yaml"
    )
    assert "else" in error["details"]["problems"][0]["message"]


def test_16_canonical_else(desk: Desk) -> None:
    desk.write(
        "flow.yaml",
        f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: noop, {rules('{else: null, then: {do: break}}')}}}}}]\n",
    )
    text = desk("export", "flow.yaml", "--canonical", "--format", "json", code=0).out
    policy = json.loads(text)["workflow"][0]["tool"][0]["spec"]["policy"]
    assert policy["rules"] == [{"else": {"then": {"do": "break"}}}]


def test_17_18_iter_and_bases(desk: Desk) -> None:
    run = desk.run(
        f"""
        metadata: {{name: p}}
        workflow:
          - step: a
            tool:
              - {{name: t0, kind: noop, result: "{{{{ iter }}}}", {rules("{else: {then: {do: continue, set_iter: {x: 3}}}}")}}}
              - {{name: t1, kind: noop, result: {{iter: "{{{{ iter.x }}}}", first: "{{{{ t0 }}}}", task: "{{{{ _task }}}}", attempt: "{{{{ _attempt }}}}"}}}}
            next: {{arcs: [{{step: l}}]}}
          - step: l
            loop: {{in: [a, b], iterator: n}}
            tool: {{kind: noop, result: ["{{{{ iter.index }}}}", "{{{{ loop.index }}}}", "{{{{ loop.first }}}}", "{{{{ loop.last }}}}", "{{{{ loop.length }}}}"]}}
        """
    )
    a = run["state"]["steps"]["a"]["result"]
    assert a["iter"] == 3
    assert a["task"] == {"name": "t1", "kind": "noop", "index": 1}
    assert a["attempt"] == 1
    assert run["state"]["steps"]["l"]["result"]["results"] == [[0, 1, True, False, 2], [1, 2, False, True, 2]]


def test_19_more_than_the_limits(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            loop: {in: "{{ range(300) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 300}}
            tool: {kind: noop, result: "{{ iter.n }}"}
        """
    )
    assert run["result"]["results"] == list(range(300))


@pytest.mark.parametrize(
    "part",
    [
        "next: {arcs: [{step: b, when: \"{{ keychain.k.x }}\"}]}",
        "next: {arcs: [{step: b, args: {x: \"{{ keychain.k.x }}\"}}]}",
        "spec: {policy: {admit: {rules: [{when: \"{{ keychain.k.x }}\", then: {allow: true}}]}}}",
        "loop: {in: \"{{ keychain.k.x }}\", iterator: n}",
    ],
)  # fmt: skip
def test_20_keychain_in_control(desk: Desk, part: str) -> None:
    checked = desk.check(
        f"metadata: {{name: p}}\nkeychain: [{{name: k, kind: static}}]\nworkflow:\n  - step: a\n    tool: {{kind: noop}}\n    {part}\n  - {{step: b, tool: {{kind: noop}}}}\n",
        code=2,
    )
    assert "keychain_in_control" in {problem["code"] for problem in checked["problems"]}


@pytest.mark.parametrize(
    "then", ["set_ctx: {x: '{{ keychain.k.x }}'}", "set_iter: {x: '{{ keychain.k.x }}'}"]
)
def test_20_keychain_in_patches(desk: Desk, then: str) -> None:
    policy = rules("{else: {then: {do: continue, " + then + "}}}")
    checked = desk.check(
        f"metadata: {{name: p}}\nkeychain: [{{name: k, kind: static}}]\nworkflow:\n  - step: a\n    tool: {{kind: noop, {policy}}}\n",
        code=2,
    )
    assert "keychain_in_control" in {problem["code"] for problem in checked["problems"]}


def test_20_keychain_in_playbook_args(desk: Desk) -> None:
    desk.write("kid.yaml", "metadata: {name: kid}\nworkflow: [{step: a, tool: {kind: noop}}]\n")
    checked = desk.check(
        "metadata: {name: p}\nkeychain: [{name: k, kind: static}]\nworkflow:\n  - step: a\n    tool: {kind: playbook, path: kid, args: {x: '{{ keychain.k.x }}'}}\n",
        code=2,
    )
    assert "keychain_in_control" in {problem["code"] for problem in checked["problems"]}


CONFLICT = """
metadata: {{name: p}}
workflow:
  - step: a
    spec: {{policy: {{failure: {{mode: best_effort}}}}}}
    loop: {{in: [1, 2, 3], iterator: n, spec: {{mode: parallel, max_in_flight: 3{policy}}}}}
    tool: {{kind: noop, spec: {{policy: {{rules: [{{else: {{then: {{do: continue, set_ctx: {{k: "{{{{ {value} }}}}"}}}}}}}}]}}}}}}
"""


def test_21_same_value_is_no_conflict(desk: Desk) -> None:
    run = desk.run(CONFLICT.format(policy="", value="7"))
    assert run["state"]["ctx"] == {"k": 7}
    assert run["result"]["stats"]["failed"] == 0


def test_21_other_values_conflict(desk: Desk) -> None:
    run = desk.run(CONFLICT.format(policy="", value="iter.n"))
    assert run["result"]["stats"]["failed"] == 2
    kinds = {e["error"]["kind"] for e in desk.events(run["id"]) if e["type"] == "loop.iteration.failed"}
    assert kinds == {"ctx_conflict"}


def test_21_last_write_and_append(desk: Desk) -> None:
    run = desk.run(CONFLICT.format(policy=", policy: {ctx: last_write}", value="iter.n"))
    assert run["result"]["stats"]["failed"] == 0
    assert run["state"]["ctx"]["k"] in (1, 2, 3)
    run = desk.run(CONFLICT.format(policy=", policy: {ctx: append}", value="iter.n"))
    assert run["state"]["ctx"]["k"] == [1, 2, 3]


def test_23_next_of_final_step_is_a_warning_and_not_followed(desk: Desk) -> None:
    text = """
    metadata: {name: p}
    executor: {spec: {final_step: z}}
    workflow:
      - {step: a, tool: {kind: noop}}
      - {step: z, tool: {kind: noop}, next: {arcs: [{step: a}]}}
    """
    checked = desk.check(text, code=0)
    assert any("final_step" in problem["message"] for problem in checked["problems"])
    run = desk.run(text)
    assert run["state"]["steps"]["a"]["runs"] == 1


def join(spec: str) -> str:
    return f"""
metadata: {{name: p}}
workflow:
  - step: a
    tool: {{kind: noop}}
    next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}, {{step: c}}]}}
  - {{step: b, tool: {{kind: noop}}, next: {{arcs: [{{step: j, args: {{x: b}}}}]}}}}
  - {{step: c, tool: {{kind: noop}}, next: {{arcs: [{{step: j, args: {{x: c}}}}]}}}}
  - {{step: j, {spec} tool: {{kind: noop, result: "{{{{ args.tokens }}}}"}}}}
"""


def test_24_join(desk: Desk) -> None:
    assert desk.run(join(""))["state"]["steps"]["j"]["runs"] == 2
    run = desk.run(join("spec: {policy: {admit: {join: {from: [b, c], mode: all}}}},"))
    assert run["state"]["steps"]["j"]["runs"] == 1
    assert sorted(args["x"] for args in run["result"]) == ["b", "c"]
    run = desk.run(join("spec: {policy: {admit: {join: {from: [b, c], mode: count, count: 2}}}},"))
    assert run["state"]["steps"]["j"]["runs"] == 1
    run = desk.run(join("spec: {policy: {admit: {join: {from: [b, c], mode: any}}}},"))
    assert run["state"]["steps"]["j"]["runs"] == 1
    run = desk.run(join("spec: {policy: {admit: {once: true}}},"))
    assert run["state"]["steps"]["j"]["runs"] == 1


def test_26_retries_exhausted_keep_the_last_error(desk: Desk) -> None:
    run = desk.run(
        f"""
        metadata: {{name: p}}
        workflow:
          - step: a
            tool: {{kind: shell, cmds: "exit 4", {rules(ON_ERROR % "delay: 0.01", GO_ON)}}}
        """,
        code=1,
    )
    assert [e["attempt"] for e in desk.events(run["id"]) if e["type"] == "task.failed"] == [3]
    assert run["stats"]["retries"] == 2
    assert run["error"]["code"]
    assert "4" in str(run["error"])


def test_26_ok_retried_until_exhausted(desk: Desk) -> None:
    run = desk.run(
        f"metadata: {{name: p}}\nworkflow:\n  - step: a\n    tool: {{kind: noop, {rules('{else: {then: {do: retry, attempts: 2, delay: 0.01}}}')}}}\n",
        code=1,
    )
    assert run["error"]["code"] == "RETRIES_EXHAUSTED"


@pytest.mark.parametrize("knob", ["timeout_s: 0.3", "deadline_s: 0.3"])
def test_27_lifecycle_is_enforced(desk: Desk, knob: str) -> None:
    run = desk.run(
        f"""
        metadata: {{name: p}}
        workflow:
          - step: a
            spec: {{policy: {{lifecycle: {{{knob}}}, failure: {{mode: best_effort}}}}}}
            tool: {{kind: shell, cmds: "sleep 60"}}
            next: {{arcs: [{{step: b, when: "{{{{ event.name == 'step.failed' and event.error.kind == 'timeout' }}}}"}}]}}
          - {{step: b, tool: {{kind: noop, result: late}}}}
        """
    )
    assert run["result"] == "late"


@pytest.mark.parametrize(
    ("task", "cls", "kind"),
    [
        ("{kind: http, url: 'http://127.0.0.1:1/'}", "transport", "connection"),
        ("{kind: shell, cmds: sleep 60, spec: {timeout: 0.2}}", "timeout", "timeout"),
        ("{kind: noop, result: \"{{ 1 + 'a' }}\"}", "expression", "template"),
        ("{kind: shell, cmds: exit 3}", "user", "exit_code"),
        ("{kind: python, code: 'raise ValueError(1)'}", "user", "python"),
    ],
)
def test_28_the_class_follows_from_the_kind(desk: Desk, task: str, cls: str, kind: str) -> None:
    run = desk.run(f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {task}}}]\n", code=1)
    assert run["error"]["class"] == cls
    failed = [e for e in desk.events(run["id"]) if e["type"] == "step.failed"]
    assert failed[0]["error"]["kind"] == kind


@pytest.mark.parametrize(
    ("path", "cls", "kind"),
    [("/401", "authorization", "auth"), ("/404", "user", "not_found"), ("/500", None, "server_error")],
)
def test_28_kinds_of_http(desk: Desk, path: str, cls: str | None, kind: str) -> None:
    with serve() as (url, _):
        run = desk.run(
            f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: http, url: '{url}{path}'}}}}]\n",
            code=1,
        )
    assert cls is None or run["error"]["class"] == cls
    failed = [e for e in desk.events(run["id"]) if e["type"] == "step.failed"]
    assert failed[0]["error"]["kind"] == kind
    assert failed[0]["error"]["code"] == f"HTTP_{path[1:]}"


def test_28_child_failed(desk: Desk) -> None:
    desk.write(
        "kid.yaml", "metadata: {name: kid}\nworkflow: [{step: a, tool: {kind: shell, cmds: exit 1}}]\n"
    )
    run = desk.run("metadata: {name: p}\nworkflow: [{step: a, tool: {kind: playbook, path: kid}}]\n", code=1)
    failed = [e for e in desk.events(run["id"]) if e["type"] == "step.failed"]
    assert failed[0]["error"]["kind"] == "child_failed"


def test_29_outcome_result_on_error(desk: Desk) -> None:
    keep = rules(
        "{else: {then: {do: continue, set_ctx: {got: '{{ outcome.result }}', http: '{{ outcome.http.status }}', s: '{{ outcome.status }}'}}}}"
    )
    with serve() as (url, _):
        run = desk.run(
            f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: http, url: '{url}/404', {keep}}}}}]\n"
        )
    assert run["state"]["ctx"]["got"]["data"] == {"path": "/404", "count": 1}
    assert run["state"]["ctx"]["http"] == 404
    assert run["state"]["ctx"]["s"] == "error"
    run = desk.run(
        f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: shell, cmds: [echo one, 'echo two; exit 5', echo three], {keep}}}}}]\n"
    )
    got = run["state"]["ctx"]["got"]
    assert got["returncode"] == 5
    assert got["stdout"] == "one\ntwo\n"
    assert [command["stdout"] for command in got["commands"]] == ["one\n", "two\n"]


@pytest.mark.parametrize("book", ["{tasks: {hi: %s}}", "[{name: hi, tool: %s}]"])
@pytest.mark.parametrize("call", ["task: hi", "name: hi"])
def test_30_workbook(desk: Desk, book: str, call: str) -> None:
    entry = "{kind: python, code: 'result = [a, b]', args: {a: {x: 1, y: 2}, b: 2}}"
    run = desk.run(
        f"metadata: {{name: p}}\nworkbook: {book % entry}\nworkflow: [{{step: a, tool: {{kind: workbook, {call}, args: {{a: {{y: 3}}}}}}}}]\n"
    )
    assert run["result"] == [{"x": 1, "y": 3}, 2]


def test_31_header(desk: Desk) -> None:
    run = desk.run(
        "apiVersion: any/v99\nkind: Playbook\nworkflow: [{step: a, tool: {kind: noop}}]\n", name="stem.yaml"
    )
    assert run["workflow"] == "stem"
    assert run["dialect"] == "playbook"
    assert run["digest"].startswith("sha256:")


def test_32_yaml(desk: Desk) -> None:
    run = desk.run(
        "metadata: {name: p}\nworkload: {a: on, b: yes, c: NO, d: 012, e: 1_000, f: 0o14, g: 2026-01-02}\nworkflow: [{step: a, tool: {kind: noop, result: '{{ workload }}'}}]\n"
    )
    assert run["result"] == {
        "a": "on",
        "b": "yes",
        "c": "NO",
        "d": 12,
        "e": "1_000",
        "f": 12,
        "g": "2026-01-02",
    }
    error = desk.refuse(
        "metadata: {name: p}\nmetadata: {name: q}\nworkflow:\n  - {step: a, tool: {kind: noop}, tool: {kind: noop}}\n",
        name="q.yaml",
    )
    assert len(error["details"]["problems"]) == 2


def test_33_set_only_on_ok(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: [{kind: shell, cmds: exit 1, set: {ctx.task: 1}}]
            set: {ctx: {step: 1}}
            next: {arcs: [{step: b, when: "{{ event.name == 'step.failed' }}"}]}
          - step: b
            loop: {in: [1], iterator: n}
            tool: {kind: noop}
            set: {ctx: {looped: {n: 1}}}
        """
    )
    assert run["state"]["ctx"] == {"looped": {"n": 1}}


def test_38_do_skip(desk: Desk) -> None:
    checked = desk.check(
        f"metadata: {{name: p}}\nworkflow: [{{step: a, tool: {{kind: noop, {rules('{else: {then: {do: skip}}}')}}}}}]\n",
        code=2,
    )
    problem = next(p for p in checked["problems"] if p["code"] == "do_unknown")
    assert "continue" in problem["hint"]


def test_39_roots(desk: Desk) -> None:
    desk.run("metadata: {name: p}\nx-note: {any: thing}\nworkflow: [{step: a, tool: {kind: noop}}]\n")
    checked = desk.check(
        "metadata: {name: p}\nworkloads: {}\nworkflow: [{step: a, tool: {kind: noop}}]\n", code=2
    )
    assert "workload" in (checked["problems"][0]["message"] + (checked["problems"][0]["hint"] or ""))
    checked = desk.check("metadata: {name: p}\nvars: {}\nworkflow: [{step: a, tool: {kind: noop}}]\n", code=2)
    assert "vars" in checked["problems"][0]["message"]


def test_40_loop_over(desk: Desk) -> None:
    text = "metadata: {{name: p}}\nworkload: {{x: {value}}}\nworkflow: [{{step: a, loop: {{in: '{{{{ workload.x }}}}', iterator: n}}, tool: {{kind: noop, result: '{{{{ iter.n }}}}'}}}}]\n"
    assert desk.run(text.format(value="{b: 1, a: 2}"))["result"]["results"] == [
        {"key": "a", "value": 2},
        {"key": "b", "value": 1},
    ]
    assert desk.run(text.format(value="null"))["result"]["stats"]["total"] == 0
    for value in ("text", "5"):
        run = desk.run(text.format(value=value), code=1)
        failed = [e for e in desk.events(run["id"]) if e["type"] == "step.failed"]
        assert failed[0]["error"]["kind"] == "schema"


def test_32_numbers_that_do_not_fit_are_told_at_their_line(desk: Desk) -> None:
    huge = "9" * 5000
    text = f"metadata: {{name: p}}\nworkload:\n  a: 12345678901234567890123\n  b: {huge}\n  c: 18446744073709551615\nworkflow: [{{step: a, tool: {{kind: noop}}}}]\n"
    error = desk.refuse(text)
    assert [(p["code"], p["line"]) for p in error["details"]["problems"]] == [
        ("YAML_NUMBER", 3),
        ("YAML_NUMBER", 4),
    ]


def test_10_a_run_tree_is_at_most_32_deep_and_says_so(desk: Desk) -> None:
    run = desk.run("metadata: {name: r}\nworkflow: [{step: a, tool: {kind: playbook, path: flow}}]\n", code=1)
    assert "32" in run["error"]["message"]
    assert len(desk("list", "--limit", "100", "--json", code=0).json) == 33
