"""PLAYBOOK.md §5, line by line (the number is in each test's name)."""

from __future__ import annotations

import pytest

from .conftest import Desk


def one(task: str, extra: str = "", root: str = "") -> str:
    """A playbook of one step `a` with one task; `task` is YAML flow text."""
    return f"metadata: {{name: p}}\n{root}\nworkflow:\n  - step: a\n    tool: {task}\n{extra}"


# 1


def test_01_run_of_a_bad_definition_lists_all_problems_and_writes_nothing(desk: Desk) -> None:
    bad = """
    metadata: {name: bad}
    workflow:
      - step: a
        when: "{{ x }}"
        tool: {kind: noop}
        next: {arcs: [{step: nowhere}]}
    """
    error = desk.refuse(bad)
    assert error["class"] == "definition"
    problems = error["details"]["problems"]
    assert len(problems) >= 2
    for problem in problems:
        assert {"severity", "code", "rule", "message", "hint", "file", "line", "column"} <= set(problem)
        assert problem["severity"] in ("error", "warning")
    assert {4, 6} <= {problem["line"] - 1 for problem in problems}
    checked = desk.check(bad, code=2)
    assert checked["ok"] is False
    assert set(checked) == {"ok", "problems"}
    assert checked["problems"] == problems


def test_01_warnings_alone_exit_0(desk: Desk) -> None:
    lint = one("{kind: noop, spec: {policy: {rules: [{when: '{{ true }}', then: {do: continue}}]}}}")
    checked = desk.check(lint, code=0)
    assert checked["ok"] is True
    assert [problem["severity"] for problem in checked["problems"]] == ["warning"]
    desk.run(lint, code=0)


# 2


def test_02_events_carry_their_fields(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workload: {items: [1, 2]}
        workflow:
          - step: a
            tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {x: 1}}}}]}}}
            next: {arcs: [{step: b}]}
          - step: b
            spec: {policy: {admit: {rules: [{else: {then: {allow: true}}}]}, failure: {mode: best_effort}}}
            loop: {in: "{{ workload.items }}", iterator: n}
            tool: {name: t, kind: python, code: "if n == 2: raise ValueError('two')\\nresult = n", args: {n: "{{ iter.n }}"}}
            next: {arcs: [{step: c, when: "{{ event.name == 'loop.done' }}"}]}
          - step: c
            tool: {kind: shell, cmds: "exit 3"}
            next: {arcs: [{step: d, when: "{{ event.name == 'step.failed' }}"}]}
          - step: d
            tool: {kind: noop}
        """
    )
    events = desk.events(run["id"])
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    types = {event["type"] for event in events}
    assert {
        "step.started", "step.done", "step.failed", "loop.started", "loop.iteration.started", "loop.iteration.done",
        "loop.iteration.failed", "loop.done", "ctx.patched", "next.evaluated", "policy.admit.evaluated",
        "task.started", "task.done", "task.failed",
    } <= types  # fmt: skip
    for event in events:
        assert {"seq", "at", "type"} <= set(event)
        assert event["at"].endswith("Z")
    tasks = [e for e in events if e["type"] == "task.started" and e["step"] == "b"]
    assert sorted(e["iteration"] for e in tasks) == [0, 1]
    assert {e["task"] for e in tasks} == {"t"}
    assert {e["attempt"] for e in tasks} == {1}
    failed = [e for e in events if e["type"] == "task.failed" and e["step"] == "b"]
    assert failed[0]["error"]["kind"] == "python"
    assert failed[0]["iteration"] == 1
    assert all(event.get("run", run["id"]) == run["id"] for event in events)


# 3


def gate(policy: str = "", root: str = "") -> str:
    return f"""
metadata: {{name: gate}}
{root}
workflow:
  - step: a
    tool: {{kind: noop}}
    next: {{arcs: [{{step: b, args: {{n: 5}}}}]}}
  - step: b
    spec:
      policy:
        admit:
          {policy}
          rules:
            - when: "{{{{ ctx.ok }}}}"
              then: {{allow: true}}
    tool: {{kind: noop, result: "{{{{ args.n }}}}"}}
"""


def test_03_no_rule_and_no_else_is_denied_and_waits(desk: Desk) -> None:
    run = desk.run(gate(), code=3)
    assert run["status"] == "waiting"
    assert [(w["kind"], w["name"]) for w in run["waiting_for"]] == [("gate", "b")]
    token = run["state"]["tokens"][0]
    assert {"step": "b", "status": "pending", "args": {"n": 5}}.items() <= token.items()
    assert not any(
        e.get("step") == "b" and e["type"].startswith(("step.", "task.")) for e in desk.events(run["id"])
    )


@pytest.mark.parametrize("word", ["discard", "complete"])
def test_03_pending_tokens_of_the_executor(desk: Desk, word: str) -> None:
    run = desk.run(gate(root=f"executor: {{spec: {{policy: {{pending_tokens: {word}}}}}}}"), code=0)
    assert run["status"] == "completed"
    assert run["state"]["steps"].get("b", {}).get("runs", 0) == 0


def test_03_on_deny_discard(desk: Desk) -> None:
    run = desk.run(gate("on_deny: discard"), code=0)
    assert run["status"] == "completed"


# 4


def test_04_patch_opens_the_gate_and_drives_on(desk: Desk) -> None:
    run = desk.run(gate(), code=3)
    patched = desk("patch", run["id"], "ok=true", "--json", code=0).json
    assert patched["status"] == "completed"
    assert patched["state"]["ctx"] == {"ok": True}
    assert patched["state"]["steps"]["b"]["result"] == 5
    assert "ctx.patched" in desk.types(run["id"])


def test_04_patch_by_ctx_json_that_does_not_open_it(desk: Desk) -> None:
    run = desk.run(gate(), code=3)
    patched = desk("patch", run["id"], "--ctx", '{"other": [1]}', "--json", code=3).json
    assert patched["status"] == "waiting"
    assert patched["state"]["ctx"] == {"other": [1]}


# 5


@pytest.mark.at_home("reads the bytes of the file")
def test_05_keychain_from_env(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-value-1")
    run = desk.run(
        """
        metadata: {name: p}
        keychain:
          - {name: api, kind: bearer, provider: env, map: {token: MY_TOKEN}}
        workflow:
          - step: a
            tool: {kind: python, code: "result = {'n': len(t), 't': t}", args: {t: "{{ keychain.api.token }}"}}
        """
    )
    assert run["result"] == {"n": 14, "t": "[redacted:api.token]"}
    assert "s3cret-value-1" not in str(run)
    assert "s3cret-value-1" not in str(desk.events(run["id"]))
    assert b"s3cret-value-1" not in (desk.folder / "treadle.db").read_bytes()


def test_05_keychain_from_a_secrets_file(desk: Desk) -> None:
    desk.write("s.yaml", "pg_k8s: {db_host: localhost, db_password: geheimnis1}\nplain: just-a-text-value\n")
    run = desk.run(
        """
        metadata: {name: p}
        keychain:
          - {name: pg_k8s, kind: postgres_credential}
          - {name: plain, kind: secret_manager}
        workflow:
          - step: a
            tool: {kind: python, code: "result = [len(h), len(p), len(str(q))]",
                   args: {h: "{{ keychain.pg_k8s.db_host }}", p: "{{ keychain.pg_k8s.db_password }}", q: "{{ keychain.plain }}"}}
        """,
        "--secrets",
        "s.yaml",
    )
    assert run["result"][:2] == [9, 10]


def test_05_keychain_from_env_by_convention(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SECRET_OPENAI_TOKEN", "abcdefghijkl")
    run = desk.run(
        """
        metadata: {name: p}
        keychain: [{name: openai_token, kind: secret_manager}]
        workflow:
          - step: a
            tool: {kind: python, code: "result = len(t)", args: {t: "{{ keychain.openai_token }}"}}
        """
    )
    assert run["result"] == 12


def test_05_unresolved_entry_fails_before_the_first_token(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        keychain: [{name: no_such_entry, kind: secret_manager}]
        workflow: [{step: a, tool: {kind: noop}}]
        """,
        code=1,
    )
    assert run["status"] == "failed"
    assert run["error"]["class"] == "authorization"
    assert "no_such_entry" in run["error"]["message"]
    assert "step.started" not in desk.types(run["id"])


# 6, 7


def test_06_results(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool:
              - {name: x, kind: noop, result: 1}
              - {name: y, kind: shell, cmds: "exit 1", spec: {policy: {rules: [{else: {then: {do: continue}}}]}}}
            next: {arcs: [{step: b}]}
          - step: b
            tool: {kind: noop, result: {last: true}}
        """
    )
    assert run["state"]["steps"]["a"]["result"] == 1
    assert run["result"] == {"last": True}


def test_06_final_step_gives_the_result(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        executor: {spec: {final_step: z}}
        workflow:
          - {step: a, tool: {kind: noop, result: 1}}
          - {step: z, tool: {kind: noop, result: 2}}
        """
    )
    assert run["result"] == 2


def test_07_state_of_steps(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: {kind: noop}
            next: {spec: {mode: inclusive}, arcs: [{step: c, args: {n: 1}}, {step: c, args: {n: 2}}, {step: l}]}
          - step: c
            tool: {kind: noop, result: "{{ args.n }}"}
          - step: l
            loop: {in: [5, 6], iterator: n}
            tool: {kind: noop, result: "{{ iter.n }}"}
          - step: never
            tool: {kind: noop}
            next: {arcs: [{step: a, when: "{{ false }}"}]}
        """
    )
    steps = run["state"]["steps"]
    assert steps["c"]["runs"] == 2
    assert steps["c"]["status"] == "done"
    assert steps["l"]["runs"] == 1
    assert steps["l"]["result"] == {"results": [5, 6], "stats": {"total": 2, "success": 2, "failed": 0}}
    assert "never" not in steps or steps["never"]["runs"] == 0


# 8


def test_08_templates(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workload: {d: {items: [1, 2], keys: k, get: g}}
        workflow:
          - step: a
            tool:
              kind: noop
              result:
                items: "{{ workload.d.items }}"
                keys: "{{ workload.d.keys }}"
                get: "{{ workload.d.get }}"
                undefined: "{{ ctx.nothing.at.all }}"
                text: "<{{ ctx.nothing }}>"
                range: "{{ range(100001) | length }}"
                zip: "{{ '0123' }}"
                listy: "{{ '[1]' }}"
            next: {arcs: [{step: b, when: "{{ ctx.nothing.x }}"}, {step: c}]}
          - {step: b, tool: {kind: noop}}
          - step: c
            tool: {kind: noop, result: ["{{ a.items }}", "{{ a.data.keys }}", "{{ a._ref }}", "{{ a._store }}", "{{ a._preview }}", "{{ a.__ref__ }}"]}
        """
    )
    assert run["state"]["steps"]["a"]["result"] == {
        "items": [1, 2], "keys": "k", "get": "g", "undefined": None, "text": "<>", "range": 100001, "zip": "0123",
        "listy": "[1]",
    }  # fmt: skip
    assert "b" not in run["state"]["steps"]
    assert run["result"][:2] == [[1, 2], "k"]


def test_08_a_type_error_names_step_field_and_text(desk: Desk) -> None:
    run = desk.run(one("{kind: noop, result: \"{{ 1 + 'a' }}\"}"), code=1)
    error = run["error"]
    assert error["class"] == "expression"
    assert "1 + 'a'" in str(error)
    assert "result" in str(error)
    assert "a" in (error["where"] or "")


def test_08_a_type_error_in_an_arc(desk: Desk) -> None:
    run = desk.run(
        one(
            "{kind: noop}",
            "    next: {arcs: [{step: b, when: \"{{ 1 + 'a' }}\"}]}\n  - {step: b, tool: {kind: noop}}",
        ),
        code=1,
    )
    error = run["error"]
    assert error["class"] == "expression"
    assert "1 + 'a'" in str(error)
    assert "when" in str(error)


# 9


def test_09_event_in_arcs_and_admission(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        executor: {spec: {final_step: z}}
        workflow:
          - step: a
            spec: {policy: {admit: {rules: [{when: "{{ event.name == 'playbook.started' }}", then: {allow: true}}]}}}
            tool: {kind: noop, result: 7}
            next: {arcs: [{step: l, args: {event: "{{ event }}"}}]}
          - step: l
            spec: {policy: {failure: {mode: best_effort}, admit: {rules: [{when: "{{ event.name == 'step.done' and event.step == 'a' }}", then: {allow: true}}]}}}
            loop: {in: [1, 2, 3], iterator: n}
            tool: {kind: python, code: "result = 6 / (n - 2)", args: {n: "{{ iter.n }}"}}
            next: {arcs: [{step: f, args: {event: "{{ event }}", before: "{{ args.event }}"}}]}
          - step: f
            tool: {kind: noop, result: "{{ args }}"}
          - step: z
            spec: {policy: {admit: {rules: [{when: "{{ event.name == 'workflow.finished' }}", then: {allow: true}}]}}}
            tool: {kind: noop, result: final}
        """
    )
    args = run["state"]["steps"]["f"]["result"]
    assert set(args["before"]) == {"name", "step", "status", "result", "error", "attempt"}
    assert {"name": "step.done", "step": "a", "result": 7, "error": None, "attempt": 1}.items() <= args[
        "before"
    ].items()
    assert {"total": 3, "success": 2, "failed": 1, "name": "loop.done", "step": "l"}.items() <= args[
        "event"
    ].items()
    assert run["result"] == "final"


# 10


def test_10_child_by_path_and_by_name(desk: Desk) -> None:
    desk.write(
        "sub/child.yaml",
        "metadata: {name: kid}\nworkload: {n: 1}\nworkflow: [{step: c, tool: {kind: noop, result: '{{ workload.n + 1 }}'}}]\n",
    )
    for path in ("child", "child.yaml"):
        run = desk.run(one(f"{{kind: playbook, path: {path}, args: {{n: 41}}}}"), name="sub/flow.yaml")
        assert run["result"] == 42
        assert len(run["children"]) == 1
        child = desk("show", run["children"][0], "--json", code=0).json
        assert child["parent"] == run["id"]
        assert child["workflow"] == "kid"
        assert child["input"] == {"n": 41}
    desk("deploy", "sub/child.yaml", code=0)
    assert desk.run(one("{kind: playbook, path: kid}"))["result"] == 2


def test_10_iter_parent_reaches_the_child(desk: Desk) -> None:
    desk.write(
        "kid.yaml",
        """
        metadata: {name: kid}
        workflow:
          - step: c
            loop: {in: [1, 2], iterator: m}
            tool: {kind: noop, result: "{{ iter.parent.parent.n * 10 + iter.m if iter.parent.parent else iter.parent.n * 10 + iter.m }}"}
        """,
    )
    run = desk.run(one("{kind: playbook, path: kid}", "    loop: {in: [3], iterator: n}"))
    assert run["result"]["results"][0]["results"] == [31, 32]


# 11


def test_11_sql_results(desk: Desk) -> None:
    run = desk.run(
        one(
            '{kind: duckdb, commands: ["CREATE TABLE t (d DATE, n DECIMAL(4,2), u UUID)", "INSERT INTO t VALUES (\'2026-01-02\', 1.50, \'00000000-0000-0000-0000-000000000001\')", "SELECT * FROM t"]}'
        )
    )
    result = run["result"]
    assert set(result) >= {"status", "rows", "columns", "row_count", "statement_count"}
    assert result["rows"] == [{"d": "2026-01-02", "n": "1.50", "u": "00000000-0000-0000-0000-000000000001"}]
    assert result["columns"] == ["d", "n", "u"]
    assert (result["row_count"], result["statement_count"]) == (1, 3)


# 12, 37


def test_12_large_results_are_references(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: {kind: python, code: "result = {'big': 'x' * 100000, 'id': 7}", spec: {result: {select: [{path: "$.id", as: ident}]}}}
            next: {arcs: [{step: b, args: {big: "{{ a.big }}", id: "{{ a.ident }}"}}]}
          - step: b
            tool: {kind: noop, result: ["{{ args.id }}", "{{ args.big | length }}", "{{ a._ref }}", "{{ a._store }}"]}
        """
    )
    reference = run["state"]["steps"]["a"]["result"]
    assert {
        "kind", "ref", "store", "key", "checksum", "size", "schema_hint", "scope", "expires_at", "extracted", "preview",
    } <= set(reference)  # fmt: skip
    assert reference["kind"] == "result_ref"
    assert reference["extracted"] == {"ident": 7}
    assert reference["ref"].startswith("treadle://execution/")
    assert reference["size"] > 100000
    assert run["result"] == [7, 100000, reference["ref"], reference["store"]]
    events = desk.events(run["id"])
    assert "x" * 5000 not in str(events)


def test_37_a_large_ctx_key_is_a_reference_too(desk: Desk) -> None:
    run = desk.run(
        """
        metadata: {name: p}
        workflow:
          - step: a
            tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {big: "{{ 'y' * 90000 }}", small: 1}}}}]}}}
            next: {arcs: [{step: b}]}
          - step: b
            tool: {kind: noop, result: "{{ ctx.big | length }}"}
        """
    )
    assert run["result"] == 90000
    assert run["state"]["ctx"]["big"]["kind"] == "result_ref"
    assert run["state"]["ctx"]["small"] == 1
