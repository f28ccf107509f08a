"""Seeds 000 and 004 from the outside: entry, admission, routing, endings, layers, loops, policies, shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Desk
from .site import serve


def book(workflow: str, root: str = "") -> str:
    return f"metadata: {{name: p}}\n{root}\nworkflow:\n{workflow.strip(chr(10))}\n"


def codes(checked: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in checked["problems"] if problem["severity"] == "error"}


def told(checked: dict[str, Any]) -> str:
    return " ".join(f"{p['message']} {p['hint']}" for p in checked["problems"])


NOOPS = "  - {step: zeta, tool: {kind: noop, result: z}}\n  - {step: alpha, tool: {kind: noop, result: a}}"


def test_e1_the_first_step_is_the_entry(desk: Desk) -> None:
    run = desk.run(book(NOOPS))
    assert set(run["state"]["steps"]) == {"zeta"}


def test_e2_e3_entry_step(desk: Desk) -> None:
    run = desk.run(book(NOOPS, "executor: {spec: {entry_step: alpha}}"))
    assert set(run["state"]["steps"]) == {"alpha"}
    error = desk.refuse(book(NOOPS, "executor: {spec: {entry_step: nobody}}"), name="bad.yaml")
    assert "nobody" in str(error["details"]["problems"])


def test_a2_first_rule_wins(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    spec: {policy: {admit: {rules: [{when: "{{ workload.x == 1 }}", then: {allow: true}}, {when: "{{ true }}", then: {allow: false}}, {else: {then: {allow: true}}}]}}}
    tool: {kind: noop}
""",
            "workload: {x: 1}",
        )
    )
    assert run["status"] == "completed"


def test_r4_r5_r6_modes(desk: Desk) -> None:
    text = """
  - step: a
    tool: {kind: noop}
    next: {%s arcs: [{step: b, when: "{{ false }}"}, {step: c, args: {n: 1}}, {step: d}]}
  - {step: b, tool: {kind: noop}}
  - {step: c, tool: {kind: noop, result: "{{ args.n }}"}}
  - {step: d, tool: {kind: noop}}
"""
    assert set(desk.run(book(text % ""))["state"]["steps"]) == {"a", "c"}
    assert set(desk.run(book(text % "spec: {mode: inclusive},"))["state"]["steps"]) == {"a", "c", "d"}


def test_r10_cycles(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {n: "{{ (ctx.n | default(0)) + 1 }}"}}}}]}}}
    next: {arcs: [{step: a, when: "{{ ctx.n < 5 }}"}]}
"""
        )
    )
    assert run["state"]["ctx"] == {"n": 5}
    assert run["state"]["steps"]["a"]["runs"] == 5


def test_b2_b3_no_match(desk: Desk) -> None:
    text = "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: '{{ false }}'}]}}\n  - {step: b, tool: {kind: noop}}"
    assert desk.run(book(text))["status"] == "completed"
    run = desk.run(book(text, "executor: {spec: {no_next_is_error: true}}"), code=1)
    assert run["status"] == "failed"


def test_f4_final_step_fails(desk: Desk) -> None:
    text = "  - {step: a, tool: {kind: noop}}\n  - {step: z, tool: {kind: shell, cmds: exit 1}}"
    assert desk.run(book(text, "executor: {spec: {final_step: z}}"), code=1)["status"] == "failed"


def test_f5_final_step_runs_once(desk: Desk) -> None:
    text = "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: z}]}}\n  - {step: z, tool: {kind: noop}}"
    assert desk.run(book(text, "executor: {spec: {final_step: z}}"))["state"]["steps"]["z"]["runs"] == 1


@pytest.mark.parametrize(
    ("step", "word"),
    [
        ("{step: a, when: '{{ x }}', tool: {kind: noop}}", "admit"),
        ("{step: a, tool: {kind: noop, eval: []}}", "rules"),
        ("{step: a, tool: {kind: noop, spec: {policy: {rules: [{expr: '{{ true }}', then: {do: continue}}]}}}}", "when"),
        ("{step: a, tool: {kind: noop}, next: [{step: a}]}", "arcs"),
        ("{step: a, tool: {kind: noop}, next: a}", "arcs"),
        ("{step: a, tool: {kind: sink}}", "reference"),
        ("{step: a, tool: [{fetch: {kind: noop}}]}", "name"),
        ("{step: a, tool: [{name: t, kind: noop}, {name: t, kind: noop}]}", "t"),
        ("{step: a, tool: {kind: noop, spec: {policy: [{do: continue}]}}}", "rules"),
        ("{step: a, tool: {kind: noop, spec: {policy: {}}}}", "rules"),
        ("{step: a, tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: jump, to: nowhere}}}]}}}}", "nowhere"),
        ("{step: a, tool: {kind: noop, spec: {policy: {rules: [{else: {then: {}}}]}}}}", "do"),
        ("{step: a, spec: {policy: {rules: [{else: {then: {do: fail}}}]}}, tool: {kind: noop}}", "task"),
        ("{step: a, tool: {kind: noop}, next: {arcs: [{step: a, cond: '{{ false }}'}]}}", "when"),
        ("{step: a, tool: {kind: noop}, next: {arcs: [{step: nowhere}]}}", "nowhere"),
        ("{step: a, case: [], tool: {kind: noop}}", "when"),
        ("{step: a, tool: {kind: iterator}}", "loop"),
        ("{step: a, tool: {kind: noop}}, {step: a, tool: {kind: noop}}", "a"),
    ],
)  # fmt: skip
def test_migrations_and_mistakes_name_the_remedy(desk: Desk, step: str, word: str) -> None:
    checked = desk.check(f"metadata: {{name: p}}\nworkflow: [{step}]\n", code=2)
    assert codes(checked)
    assert word in told(checked)


def test_s1_to_s4_layers(desk: Desk) -> None:
    """Seen through a knob that a tool obeys: the innermost timeout wins, maps merge."""
    slow = "{kind: shell, cmds: sleep 60%s}"
    fast = desk.run(book(f"  - {{step: a, tool: {slow % ''}}}", "executor: {spec: {timeout: 0.2}}"), code=1)
    assert fast["error"]["class"] == "timeout"
    run = desk.run(
        book(
            f"  - {{step: a, spec: {{timeout: 0.2}}, tool: {slow % ''}}}", "executor: {spec: {timeout: 60}}"
        ),
        code=1,
    )
    assert run["error"]["class"] == "timeout"
    run = desk.run(
        book(f"  - {{step: a, spec: {{timeout: 60}}, tool: {slow % ', spec: {timeout: 0.2}'}}}"), code=1
    )
    assert run["error"]["class"] == "timeout"
    run = desk.run(
        book(
            f"  - {{step: a, loop: {{in: [1], iterator: n, spec: {{timeout: 0.2}}}}, spec: {{timeout: 60}}, tool: {slow % ''}}}"
        ),
        code=1,
    )
    assert "timeout" in str(run["state"]["steps"]["a"])


def test_l2_l3_loops(desk: Desk) -> None:
    for mode in ("sequential", "parallel"):
        run = desk.run(
            book(
                f"""
  - step: a
    loop: {{in: "{{{{ workload.items }}}}", iterator: n, spec: {{mode: {mode}, max_in_flight: "{{{{ workload.cap }}}}"}}}}
    tool: {{kind: noop, result: "{{{{ iter.n * 2 }}}}"}}
""",
                "workload: {items: [1, 2, 3, 4, 5], cap: 2}",
            )
        )
        assert run["result"] == {
            "results": [2, 4, 6, 8, 10],
            "stats": {"total": 5, "success": 5, "failed": 0},
        }
        live = most = 0
        for event in desk.types(run["id"]):
            live += {"loop.iteration.started": 1, "loop.iteration.done": -1}.get(event, 0)
            most = max(most, live)
        assert most <= (1 if mode == "sequential" else 2)


def test_l8_break_ends_the_iteration_only(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    loop: {in: [1, 2], iterator: n}
    tool:
      - {name: x, kind: noop, result: "{{ iter.n }}", spec: {policy: {rules: [{when: "{{ iter.n == 1 }}", then: {do: break}}, {else: {then: {do: continue}}}]}}}
      - {name: y, kind: noop, result: later}
"""
        )
    )
    assert run["result"]["results"] == [1, "later"]


def test_l9_an_empty_collection(desk: Desk) -> None:
    run = desk.run(
        book(
            "  - {step: a, loop: {in: [], iterator: n}, tool: {kind: noop}, next: {arcs: [{step: b, when: \"{{ event.name == 'loop.done' }}\"}]}}\n  - {step: b, tool: {kind: noop, result: b}}"
        )
    )
    assert run["result"] == "b"


def test_nested_task_loop(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    loop: {in: [1, 2], iterator: n}
    tool:
      - name: inner
        kind: noop
        loop: {in: [10, 20], iterator: m}
        result: "{{ iter.parent.n + iter.m }}"
"""
        )
    )
    assert [r["results"] for r in run["result"]["results"]] == [[11, 21], [12, 22]]


def test_p3_p4_unmatched(desk: Desk) -> None:
    text = "  - step: a\n    tool:\n      - {name: x, kind: shell, cmds: exit 1%s}\n      - {name: y, kind: noop, result: on}\n"
    assert (
        desk.run(book(text % ", spec: {policy: {rules: [{when: '{{ false }}', then: {do: fail}}]}}"))[
            "result"
        ]
        == "on"
    )
    assert desk.run(book(text % ""), code=1)["status"] == "failed"


def test_p10_right_sides_come_first(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    tool:
      - {name: x, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {a: 1, b: 2}}}}]}}}
      - {name: y, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {a: "{{ iter.b }}", b: "{{ iter.a }}"}}}}]}}}
      - {name: z, kind: noop, result: ["{{ iter.a }}", "{{ iter.b }}"]}
"""
        )
    )
    assert run["result"] == [2, 1]


def test_k2_k3_names(desk: Desk) -> None:
    run = desk.run(
        book(
            "  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n  - {step: b, tool: [{kind: noop}, {kind: noop}]}"
        )
    )
    names = [e["task"] for e in desk.events(run["id"]) if e["type"] == "task.started"]
    assert names == ["a_task", "task_0", "task_1"]


def test_k6_handles(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    tool:
      - {name: t, kind: python, code: "result = {'field': 5, 'data': {'x': 6}}"}
      - {name: u, kind: noop, result: ["{{ t.field }}", "{{ t.data.x }}", "{{ t.status }}", "{{ _prev.field }}"]}
    next: {arcs: [{step: b}]}
  - step: b
    tool: {kind: python, code: "result = [a, n, input_data['n'], args['n']]", args: {a: "{{ a }}", n: 3}}
"""
        )
    )
    assert run["state"]["steps"]["a"]["result"][:2] == [5, 6]
    assert run["state"]["steps"]["a"]["result"][3] == 5
    assert run["result"][1:] == [3, 3, 3]


def test_x1_workload_is_merged_deeply_and_read_bare(desk: Desk) -> None:
    run = desk.run(
        book(
            "  - {step: a, tool: {kind: noop, result: ['{{ workload }}', '{{ api.url }}', '{{ execution_id }}']}}",
            "workload: {api: {url: u, key: k}, derived: '{{ workload.api.url }}/x'}",
        ),
        "--input",
        '{"api": {"key": "new"}}',
    )
    assert run["result"][0]["api"] == {"url": "u", "key": "new"}
    assert run["result"][0]["derived"] == "u/x"
    assert run["result"][1] == "u"
    assert run["result"][2] == run["id"]


def test_v1_one_outcome_then_policy(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(
            book(
                f"""
  - step: a
    tool: {{kind: http, url: "{url}/429", spec: {{policy: {{rules: [{{when: "{{{{ outcome.http.status == 429 }}}}", then: {{do: retry, attempts: 5, delay: 0.01}}}}, {{else: {{then: {{do: continue}}}}}}]}}}}}}
"""
            )
        )
    assert len(asked) == 3
    assert run["result"]["data"]["count"] == 3
    assert run["stats"]["retries"] == 2


def test_z1_artifacts(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    tool: {kind: artifact, action: put, data: {rows: [1, 2]}}
    next: {arcs: [{step: b, args: {ref: "{{ a }}"}}]}
  - step: b
    tool: {kind: artifact, action: get, result_ref: "{{ args.ref }}"}
"""
        )
    )
    assert {"store", "key", "checksum", "size", "schema_hint"} <= set(run["state"]["steps"]["a"]["result"])
    assert run["result"]["data"] == {"rows": [1, 2]}


def test_children_wait_false_and_return_step(desk: Desk) -> None:
    desk.write(
        "kid.yaml",
        book(
            "  - {step: one, tool: {kind: noop, result: 1}, next: {arcs: [{step: two}]}}\n  - {step: two, tool: {kind: noop, result: 2}}"
        ).replace("name: p", "name: kid"),
    )
    assert desk.run(book("  - {step: a, tool: {kind: playbook, path: kid, return_step: one}}"))["result"] == 1
    run = desk.run(book("  - {step: a, tool: {kind: playbook, path: kid, wait: false}}"))
    assert run["status"] == "completed"
    assert sum(row["workflow"] == "kid" for row in desk("list", "--json", code=0).json) == 2


def test_wait_await_ask(desk: Desk) -> None:
    run = desk.run(
        book(
            """
  - step: a
    tool:
      - {name: w, kind: wait, seconds: 0.01}
      - {name: s, kind: await, signal: go}
      - {name: q, kind: ask, roles: [clerk], payload: {n: 1}}
      - {name: r, kind: noop, result: ["{{ s }}", "{{ q }}"]}
"""
        ),
        code=3,
    )
    assert [(w["kind"], w["name"]) for w in run["waiting_for"]] == [("signal", "go")]
    run = desk("signal", run["id"], "go", "--data", '{"x": 1}', "--json", code=3).json
    (wait,) = run["waiting_for"]
    assert wait["kind"] == "task"
    (row,) = desk("tasks", "--json", code=0).json
    assert (row["id"], row["roles"], row["payload"]) == (wait["id"], ["clerk"], {"n": 1})
    run = desk(
        "task",
        "complete",
        row["id"],
        "--user",
        "u",
        "--role",
        "admin",
        "--data",
        '{"y": 2}',
        "--json",
        code=0,
    ).json
    assert run["result"] == [{"x": 1}, {"y": 2}]


def test_sugar_compiles_to_jumps(desk: Desk) -> None:
    text = book(
        """
  - step: a
    tool:
      - {name: init, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {n: 0}}}}]}}}
      - name: loop
        while: {when: "{{ iter.n < 3 }}", do: [{name: inc, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {n: "{{ iter.n + 1 }}"}}}}]}}}]}
      - {name: end, kind: noop, result: "{{ iter.n }}"}
"""
    )
    checked = desk.check(text)
    if checked["ok"]:
        assert desk.run(text)["result"] == 3
        canonical = desk("export", "flow.yaml", "--canonical", code=0).out
        assert "while" not in json.dumps([line.split(":")[0].strip() for line in canonical.splitlines()])
    else:
        pytest.fail(told(checked))


WORKED = """
metadata: {name: worked}
workload:
  api_url: URL
  endpoints:
    - {path: /ok, page_size: 10}
    - {path: /missing, page_size: 10}
workflow:
  - step: fetch_all_endpoints
    spec:
      policy:
        admit:
          rules:
            - else:
                then: { allow: true }
        lifecycle: { timeout_s: 600 }
        failure: { mode: best_effort }
    loop:
      in: "{{ workload.endpoints }}"
      iterator: endpoint
      spec:
        mode: parallel
        max_in_flight: 10
        policy:
          exec: distributed
    tool:
      - name: init_iter
        kind: noop
        spec:
          policy:
            rules:
              - else:
                  then:
                    do: continue
                    set_iter: { page: 1, has_more: true }
      - name: fetch_page
        kind: http
        method: GET
        url: "{{ workload.api_url }}{{ iter.endpoint.path }}"
        params:
          page: "{{ iter.page }}"
          pageSize: "{{ iter.endpoint.page_size }}"
        spec:
          timeout: { connect: 5, read: 15 }
          policy:
            rules:
              - when: "{{ outcome.status == 'error' and outcome.http.status in [429,500,502,503,504] }}"
                then: { do: retry, attempts: 10, backoff: exponential, delay: 0.01 }
              - when: "{{ outcome.status == 'error' and outcome.http.status in [401,403] }}"
                then: { do: fail }
              - else:
                  then:
                    do: continue
                    set_iter:
                      http_status: "{{ outcome.http.status | default(200) }}"
                      has_more: "{{ outcome.result.data.paging.hasMore | default(false) }}"
                      page: "{{ outcome.result.data.paging.page | default(iter.page) }}"
                      items: "{{ outcome.result.data.data | default([]) }}"
      - name: route_by_status
        kind: noop
        spec:
          policy:
            rules:
              - when: "{{ iter.http_status == 404 }}"
                then: { do: jump, to: store_404 }
              - else:
                  then: { do: jump, to: store_200 }
      - name: store_200
        kind: duckdb
        database: ok.db
        commands: ["CREATE TABLE IF NOT EXISTS results_ok (page INTEGER)", "INSERT INTO results_ok VALUES ({{ iter.page }})"]
        spec:
          policy:
            rules:
              - when: "{{ outcome.status == 'error' and outcome.pg.code in ['40001','40P01'] }}"
                then: { do: retry, attempts: 5, backoff: exponential, delay: 2.0 }
              - when: "{{ outcome.status == 'error' }}"
                then: { do: fail }
              - else:
                  then: { do: jump, to: paginate }
      - name: store_404
        kind: noop
        spec:
          policy:
            rules:
              - when: "{{ outcome.status == 'error' }}"
                then: { do: fail }
              - else:
                  then: { do: jump, to: paginate }
      - name: paginate
        kind: noop
        spec:
          policy:
            rules:
              - when: "{{ iter.has_more == true }}"
                then:
                  do: jump
                  to: fetch_page
                  set_iter:
                    page: "{{ (iter.page | int) + 1 }}"
              - else:
                  then: { do: break }
    next:
      spec:
        mode: exclusive
      arcs:
        - step: validate_results
          when: "{{ event.name == 'loop.done' }}"
        - step: cleanup
          when: "{{ event.name == 'step.failed' }}"
  - step: validate_results
    tool: {kind: duckdb, database: ok.db, query: "SELECT page FROM results_ok ORDER BY page"}
  - step: cleanup
    tool: {kind: noop}
"""


def test_the_worked_example_with_duckdb_for_postgres(desk: Desk) -> None:
    with serve() as (url, asked):
        run = desk.run(WORKED.replace("URL", url))
    assert [row["page"] for row in run["result"]["rows"]] == [1, 2, 3]
    assert "cleanup" not in run["state"]["steps"]
    assert [one["path"] for one in asked if one["path"].startswith("/ok")] == [
        f"/ok?page={n}&pageSize=10" for n in (1, 2, 3)
    ]
    assert sum(one["path"].startswith("/missing") for one in asked) == 1
    assert desk("replay", run["id"], "--json", code=0).json["equal"] is True


def test_a_slip_in_a_kind_is_a_warning(desk: Desk) -> None:
    checked = desk.check(book("  - {step: a, tool: {kind: htpp}}"), code=0)
    (problem,) = checked["problems"]
    assert (problem["severity"], problem["code"], problem["line"]) == ("warning", "kind_unknown", 4)
    assert "http" in problem["hint"]
    run = desk("run", "flow.yaml", "--json", code=3).json
    assert "htpp" in str(desk.events(run["id"])[-1])


@pytest.mark.parametrize(
    ("root", "loop", "meant"),
    [
        ("executor: {spec: {finalstep: a}}", "", "final_step"),
        ("executor: {spec: {policy: {pending_token: discard}}}", "", "pending_tokens"),
        ("", "loop: {in: [1], iterator: n, spec: {max_inflight: 2}}, ", "max_in_flight"),
    ],
)
def test_a_slip_among_hints_is_a_warning(desk: Desk, root: str, loop: str, meant: str) -> None:
    checked = desk.check(book(f"  - {{step: a, {loop}tool: {{kind: noop}}}}", root), code=0)
    (problem,) = checked["problems"]
    assert (problem["severity"], problem["code"]) == ("warning", "key_slip")
    assert meant in problem["hint"]
    assert not desk.check(
        book("  - {step: a, tool: {kind: noop}}", "executor: {spec: {pool: p, timeout: 5}}"), code=0
    )["problems"]
