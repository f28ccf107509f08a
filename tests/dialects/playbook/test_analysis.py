"""`treadle check`: each finding of PLAYBOOK §4 in a seeded bad file, with its line and severity."""

from __future__ import annotations

import pytest

from treadle.dialects.playbook import DIALECT

from .harness import Lab, compile_text, problems_of

FINDINGS = {
    "step_unreachable": (
        4,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
          - step: island
            tool: {kind: noop}
        """,
    ),
    "arc_dead": (
        7,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
            next:
              arcs:
                - {step: b}
                - {step: b, when: "{{ event.name == 'step.failed' }}"}
          - {step: b, tool: {kind: noop}}
        """,
    ),
    "gate_closed": (
        4,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
            spec: {policy: {admit: {rules: [{else: {then: {allow: false}}}]}}}
        """,
    ),
    "gate_unopened": (
        4,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
            spec: {policy: {admit: {rules: [{when: "{{ ctx.approved }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
        """,
    ),
    "parallel_ctx_write": (
        5,
        """\
        workflow:
          - step: a
            loop: {in: [1, 2], iterator: x, spec: {mode: parallel}}
            tool:
              - {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: "{{ x }}"}}}}]}}}
        """,
    ),
    "else_missing": (
        7,
        """\
        workflow:
          - step: a
            tool:
              kind: noop
              spec:
                policy:
                  rules: [{when: "{{ outcome.status == 'error' }}", then: {do: fail}}]
        """,
    ),
    "name_unknown": (
        5,
        """\
        workflow:
          - step: a
            tool:
              kind: noop
              result: "{{ nobody_knows.this }}"
        """,
    ),
    "workload_key_unknown": (
        4,
        """\
        workload: {url: x}
        workflow:
          - step: a
            tool: {kind: noop, result: "{{ workload.ulr }}"}
        """,
    ),
    "name_out_of_scope": (
        6,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
            next:
              arcs:
                - {step: b, when: "{{ outcome.status == 'ok' }}"}
          - {step: b, tool: {kind: noop}}
        """,
    ),
    "tokens_unbounded": (
        4,
        """\
        workflow:
          - step: a
            tool: {kind: noop}
            next: {spec: {mode: inclusive}, arcs: [{step: a, when: "{{ ctx.x }}"}, {step: a, when: "{{ ctx.y }}"}]}
        """,
    ),
    "final_step_next": (
        6,
        """\
        executor: {spec: {final_step: b}}
        workflow:
          - {step: a, tool: {kind: noop}}
          - step: b
            tool: {kind: noop}
            next: {arcs: [{step: a}]}
        """,
    ),
}


@pytest.mark.parametrize("code", FINDINGS)
def test_findings_that_depend_on_data_are_warnings_with_a_line(code: str) -> None:
    line, text = FINDINGS[code]
    found = {p.code: p for p in problems_of(text)}
    assert code in found
    assert (found[code].severity, found[code].line) == ("warning", line)
    assert found[code].hint or found[code].rule
    compile_text(text)


def test_sibling_branches_that_write_one_key() -> None:
    writer = "tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: 1}}}}]}}}"
    found = problems_of(f"""
    workflow:
      - {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}, {{step: c}}]}}}}
      - {{step: b, {writer}}}
      - {{step: c, {writer}}}
    """)
    assert [(p.code, p.severity) for p in found] == [("parallel_ctx_write", "warning")]


def test_a_guarded_cycle_is_no_error() -> None:
    found = problems_of("""
    workflow:
      - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
      - {step: b, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ ctx.again }}"}]}}
    """)
    assert [p for p in found if p.severity == "error"] == []


def test_warnings_travel_with_the_definition() -> None:
    definition = compile_text(FINDINGS["step_unreachable"][1])
    assert [w.code for w in definition.warnings] == ["step_unreachable"]


def test_graph_of_a_definition_and_of_a_run() -> None:
    lab = Lab("""
    metadata: {name: picture}
    workflow:
      - {step: a, tool: {kind: echo}, next: {arcs: [{step: b, when: "{{ event.name == 'step.done' }}"}]}}
      - {step: b, spec: {policy: {admit: {rules: [{when: "{{ ctx.go }}", then: {allow: true}}]}}}, tool: {kind: wait, seconds: 1}, next: {arcs: [{step: c}]}}
      - {step: c, next: {arcs: []}}
    """)
    graph = DIALECT.graph(lab.driver.definition)
    assert graph.title == "picture"
    assert [(n.id, n.shape) for n in graph.nodes] == [
        ("(start)", "start"),
        ("a", "step"),
        ("b", "timer"),
        ("c", "choice"),
    ]
    assert [(e.source, e.target, e.label) for e in graph.edges] == [
        ("(start)", "a", ""),
        ("a", "b", "event.name == 'step.done'"),
        ("b", "c", ""),
    ]
    lab.run()
    states = {n.id: n.status for n in DIALECT.graph(lab.driver.definition, lab.driver.view()).nodes}
    assert states == {"(start)": "done", "a": "done", "b": "pending", "c": "idle"}


def test_the_fan_out_profile_is_an_ordinary_loop_and_says_so() -> None:
    loop = "loop: {in: [1], iterator: n}, tool: {kind: noop}"
    for text in (
        f"executor: {{spec: {{loop_mode: fanout}}}}\nworkflow: [{{step: a, {loop}}}]",
        f"workflow: [{{step: a, spec: {{loop_mode: fanout}}, {loop}}}]",
    ):
        assert [(p.severity, p.code) for p in problems_of(text)] == [("warning", "loop_fanout")]
    assert (
        problems_of("executor: {spec: {loop_mode: fanout}}\nworkflow: [{step: a, tool: {kind: noop}}]") == []
    )


CYCLE = """
    workflow:
      - {step: a, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}]}}
      - {step: b, tool: {kind: noop}, next: {arcs: [{step: j}]}}
      - {step: c, tool: {kind: noop}, next: {arcs: [{step: j}]}}
      - {step: j, %s tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ ctx.n < 3 }}"}]}}
"""


def test_a_cycle_whose_tokens_are_joined_does_not_grow() -> None:
    assert "tokens_unbounded" in {p.code for p in problems_of(CYCLE % "")}
    for admit in ("join: {mode: all}", "once: true"):
        found = problems_of(CYCLE % f"spec: {{policy: {{admit: {{{admit}}}}}}},")
        assert "tokens_unbounded" not in {p.code for p in found}


def test_a_cycle_that_admission_ends_has_an_exit() -> None:
    text = """
    workflow:
      - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}
      - {step: b, %s tool: {kind: noop}, next: {arcs: [{step: a}]}}
    """
    assert "cycle_without_exit" in {p.code for p in problems_of(text % "")}
    rules = "rules: [{when: '{{ ctx.n < 3 }}', then: {allow: true}}], on_deny: discard"
    for admit in (rules, "once: true"):
        found = problems_of(text % f"spec: {{policy: {{admit: {{{admit}}}}}}},")
        assert "cycle_without_exit" not in {p.code for p in found}
