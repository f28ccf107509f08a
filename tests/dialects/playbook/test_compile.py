"""The loader: canonical form, both spellings, sugar, header, YAML (PLAYBOOK §3, §5; seed 004 §14)."""

from __future__ import annotations

from typing import Any

from treadle.dialects.playbook import DIALECT
from treadle.lang.text import parse

from .harness import Lab, compile_text


def test_both_spellings_have_one_canonical_form_and_one_digest() -> None:
    a = compile_text("""
    metadata: {name: x}
    workload: {}
    workflow:
      - step: a
        tool:
          - name: t
            kind: python
            args: {n: 1}
            spec:
              result: {inline_max_bytes: 9}
              policy:
                rules:
                  - when: "{{ outcome.status == 'ok' }}"
                    then: {do: continue, set_ctx: {x: 1}, set_iter: {y.z: 2}}
                  - else: {then: {do: fail}}
        set_ctx: {q: 4}
        next:
          arcs:
            - {step: b, when: "{{ event.name == 'step.done' }}", args: {k: 1}, set_ctx: {w: 3}}
      - {step: b, tool: {kind: noop}}
    """)
    b = compile_text("""
    metadata: {name: x}
    workflow:
      - step: a
        tool:
          - name: t
            kind: python
            input: {n: 1}
            output: {inline_max_bytes: 9}
            spec:
              policy:
                rules:
                  - when: "{{ outcome.status == 'ok' }}"
                    then: {do: continue, set: {ctx.x: 1, iter.y.z: 2}}
                  - else:
                    then: {do: fail}
        set: {ctx: {q: 4}}
        next:
          arcs:
            - {step: b, when: "{{ event.name == 'call.done' }}", input: {k: 1}, set: {ctx.w: 3}}
      - {step: b, tool: {name: b_task, kind: noop}}
    """)
    assert a.body == b.body
    assert a.digest == b.digest


def test_spelling_b_runs() -> None:
    lab = (
        Lab(
            """
    workflow:
      - step: fetch
        tool:
          kind: http
          set: {ctx.first: "{{ output.data.items[0] }}", iter.n: "{{ output.data.items | length }}"}
          spec:
            policy:
              rules:
                - {when: "{{ output.status == 'error' }}", then: {do: fail}}
                - {else: {then: {do: continue}}}
        set: {ctx.total: "{{ output.data.items | length }}"}
        next:
          arcs:
            - {step: calc, when: "{{ event.name == 'call.done' and output.data.items[1] == 5 }}", set: {ctx.by: arc}, input: {n: "{{ iter.n }}"}}
      - step: calc
        tool: {kind: echo, value: {twice: "{{ input.n * 2 }}"}}
        next: {arcs: [{step: last, when: "{{ output.data.twice == 4 }}"}]}
      - {step: last, tool: {kind: echo, value: "{{ ctx }}"}}
    """,
            {"http": lambda config, call: {"data": {"items": [4, 5]}, "status_code": 200}},
        )
        .run()
        .replays()
    )
    assert lab.result == {"first": 4, "total": 2, "by": "arc"}


def test_task_set_runs_on_ok_only_and_step_set_on_done_only() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool: {kind: echo, fail: schema, set: {ctx.task: 1}}
        set: {ctx.step: 1}
        next: {arcs: [{step: b, when: "{{ event.name == 'call.error' }}", set: {ctx.arc: 1}}, {step: b, set: {ctx.never: 1}}]}
      - {step: b, tool: {kind: noop}}
    """).run()
    assert lab.ctx == {"arc": 1}


def test_inclusive_guards_are_all_evaluated_before_the_first_set() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool: {kind: noop}
        next:
          spec: {mode: inclusive}
          arcs:
            - {step: b, set: {ctx.taken: true}}
            - {step: c, when: "{{ ctx.taken is defined }}"}
      - {step: b, tool: {kind: noop}}
      - {step: c, tool: {kind: noop}}
    """).run()
    assert "c" not in lab.steps


def test_header_is_optional_and_the_name_falls_back_to_the_file() -> None:
    text = "apiVersion: anything/v99\nkind: Playbook\nworkflow: [{step: a, tool: {kind: noop}}]\nx-note: ignored\n"
    definition, _ = DIALECT.compile(parse(text, file="/flows/nightly.load.yaml"))
    assert definition is not None
    assert (definition.name, definition.version, definition.path) == ("nightly.load", None, None)
    named = compile_text(
        "metadata: {name: n, version: 2, path: p/q}\nworkflow: [{step: a, tool: {kind: noop}}]"
    )
    assert (named.name, named.version, named.path) == ("n", "2", "p/q")


def test_yaml_1_2_words_stay_text() -> None:
    body = compile_text("workflow: [{step: on, tool: {kind: echo, value: [yes, NO, on, 012, 1e3]}}]").body
    assert body["workflow"][0]["tool"][0]["value"][:3] == ["yes", "NO", "on"]


def test_recognised_by_its_workflow_list() -> None:
    assert DIALECT.recognises({"workflow": []})
    assert not DIALECT.recognises({"nodes": [], "edges": []})
    assert not DIALECT.recognises([])


def test_executor_hints_of_both_kinds_are_accepted() -> None:
    compile_text("""
    executor: {kind: worker_pool, profile: local, version: x, requires: [a], spec: {pool: big, loop_mode: fanout}}
    workflow: [{step: a, tool: {kind: noop}}]
    """)


CHOOSE = """
    workflow:
      - step: a
        tool:
          - {kind: echo, value: "{{ workload.n }}"}
          - name: size
            choose:
              - when: "{{ _prev > 10 }}"
                then: [{kind: echo, name: big, value: big}]
              - when: "{{ _prev > 5 }}"
                then: [{kind: echo, name: mid, value: mid}, {kind: echo, name: mid2, value: "{{ _prev }}!"}]
              - else: [{kind: echo, name: small, value: small}]
          - {kind: echo, name: last, value: ["{{ _prev }}", "{{ big.status | default('not run') }}"]}
"""


def test_choose_runs_one_branch_and_merges() -> None:
    results = {n: Lab(CHOOSE).run({"n": n}).result for n in (20, 7, 1)}
    assert results == {20: ["big", "ok"], 7: ["mid!", "not run"], 1: ["small", "not run"]}


def test_choose_without_else_hands_prev_on() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - {kind: echo, value: kept}
          - choose: [{when: "{{ false }}", then: [{kind: echo, value: no}]}]
          - {kind: echo, value: "{{ _prev }}"}
    """).run()
    assert lab.result == "kept"


def test_while_and_until() -> None:
    text = """
    workflow:
      - step: a
        tool:
          - {name: init, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {n: %s}}}}]}}}
          - %s: {when: "{{ iter.n %s 3 }}", do: [{name: add, kind: echo, value: "{{ iter.n }}", spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {n: "{{ iter.n + 1 }}"}}}}]}}}]}
          - {kind: echo, name: out, value: "{{ iter.n }}"}
    """
    assert Lab(text % (0, "while", "<")).run().result == 3
    assert Lab(text % (9, "while", "<")).run().result == 9
    assert Lab(text % (0, "until", ">=")).run().result == 3
    assert Lab(text % (9, "until", ">=")).run().result == 10


def test_sugar_has_stable_labels_and_compiles_to_canonical_tasks() -> None:
    body: Any = compile_text(CHOOSE).body
    names = [task["name"] for task in body["workflow"][0]["tool"]]
    assert names == [
        "task_0", "size", "size.0", "big", "size.0.end", "size.1", "mid", "mid2", "size.1.end",
        "size.else", "small", "size.else.end", "size.end", "last",
    ]  # fmt: skip
    assert all("choose" not in task for task in body["workflow"][0]["tool"])
    assert compile_text(CHOOSE).digest == compile_text(CHOOSE).digest


def test_generated_names_are_made_once_wherever_sugar_stands() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - while: {when: "{{ false }}", do: [{while: {when: "{{ false }}", do: [{kind: noop}]}}]}
          - choose:
              - {when: "{{ false }}", then: [{until: {when: "{{ true }}", do: [{kind: noop, result: 1}]}}]}
              - {else: [{until: {when: "{{ true }}", do: [{kind: noop, result: 2}]}}]}
    """).run()
    assert (lab.status, lab.result) == ("completed", 2)
