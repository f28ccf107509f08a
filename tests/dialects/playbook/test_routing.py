"""Seed 000: entry, admission, routing, termination, finalisation."""

from __future__ import annotations

import pytest

from .harness import Lab, problems_of

CHAIN = """
    workflow:
      - step: anything
        tool: {kind: echo, value: 1}
        next: {arcs: [{step: second}]}
      - step: second
        tool: {kind: echo, value: 2}
      - step: island
        tool: {kind: echo, value: 3}
"""


def test_e1_entry_is_the_first_step_whatever_its_name() -> None:
    lab = Lab(CHAIN).run().replays()
    assert lab.ran() == ["anything", "second"]
    assert (lab.status, lab.result) == ("completed", 2)


def test_e2_entry_step_overrides_the_order() -> None:
    lab = Lab("    executor: {spec: {entry_step: second}}" + CHAIN).run()
    assert lab.ran() == ["second"]


def test_e3_entry_step_must_exist() -> None:
    (problem,) = problems_of(
        "executor: {spec: {entry_step: nope}}\nworkflow: [{step: a, tool: {kind: noop}}]"
    )
    assert (problem.code, problem.severity, problem.line) == ("entry_step_unknown", "error", 1)


def test_e4_exactly_one_initial_token() -> None:
    lab = Lab(CHAIN).start()
    assert [token["step"] for token in lab.tokens] == ["anything"]
    assert "island" not in lab.work().steps


def test_e5_no_reserved_step_names() -> None:
    lab = Lab("workflow: [{step: solo, tool: {kind: echo, value: x}}]").run()
    assert (lab.status, lab.result) == ("completed", "x")


GATE = """
    workflow:
      - step: a
        tool: {kind: echo, value: 1}
        next: {arcs: [{step: gated, args: {n: 7}}]}
      - step: gated
        spec:
          policy:
            admit:
              %s
              rules:
                - when: "{{ ctx.approved == true }}"
                  then: {allow: true}
                - else:
                    then: {allow: false}
        tool: {kind: echo, value: "{{ args.n }}"}
"""


def test_a2_first_matching_rule_wins() -> None:
    text = """
    workflow:
      - step: a
        spec:
          policy:
            admit:
              rules:
                - {when: "{{ workload.n > 1 }}", then: {allow: true}}
                - {when: "{{ workload.n > 0 }}", then: {allow: false}}
                - else:
                  then: {allow: true}
        tool: {kind: noop}
    """
    assert Lab(text).run({"n": 2}).status == "completed"
    assert Lab(text).run({"n": 1}).status == "waiting"
    assert Lab(text).run({"n": 0}).status == "completed"


def test_a3_admit_omitted_is_admitted() -> None:
    """Admission is evaluated for every token; without rules the answer is yes (PLAYBOOK §5.2)."""
    lab = Lab(CHAIN).run()
    evaluated = lab.events("policy.admit.evaluated")
    assert [event["step"] for event in evaluated] == lab.ran()
    assert all(event["data"] == {"allow": True} for event in evaluated)


def test_routing_is_evaluated_after_every_terminal_step_event() -> None:
    """PLAYBOOK §5.2: always recorded, for leaves and failures too; final_step's next is not followed."""
    lab = Lab("""
    executor: {spec: {final_step: last}}
    workflow:
      - {step: a, tool: {kind: echo, fail: schema}, next: {spec: {mode: inclusive}, arcs: [{step: leaf}, {step: each}]}}
      - {step: leaf, tool: {kind: echo}}
      - {step: each, loop: {in: [1, 2], iterator: n}, tool: {kind: echo}, next: {arcs: [{step: a, when: "{{ false }}"}]}}
      - {step: last, tool: {kind: echo}}
    """).run()
    assert {e["step"]: e["data"] for e in lab.events("next.evaluated")} == {
        "a": {"mode": "inclusive", "matched": ["leaf", "each"], "selected": ["leaf", "each"]},
        "leaf": {"mode": "exclusive", "matched": [], "selected": []},
        "each": {"mode": "exclusive", "matched": [], "selected": []},
    }
    assert len(lab.events("next.evaluated")) == 3


def test_a4_a5_a_denied_token_stays_pending_and_no_worker_sees_it() -> None:
    lab = Lab(GATE % "").run()
    assert lab.status == "waiting"
    assert lab.tokens == [{"step": "gated", "status": "pending", "args": {"n": 7}}]
    assert lab.driver.view()["waiting_for"] == [{"kind": "gate", "id": "gate:gated", "name": "gated"}]
    assert not [
        e for e in lab.driver.events if e.get("step") == "gated" and e["type"].startswith(("step.", "task."))
    ]
    assert lab.events("policy.admit.evaluated", step="gated")[0]["data"]["allow"] is False


def test_a5_on_deny_discard() -> None:
    lab = Lab(GATE % "on_deny: discard").run()
    assert (lab.status, lab.tokens) == ("completed", [])
    assert lab.events("token.discarded", step="gated")


@pytest.mark.parametrize(("policy", "left"), [("discard", 0), ("complete", 1)])
def test_pending_tokens_policy_ends_the_run(policy: str, left: int) -> None:
    text = f"    executor: {{spec: {{policy: {{pending_tokens: {policy}}}}}}}" + GATE % ""
    lab = Lab(text).run()
    assert (lab.status, len(lab.tokens)) == ("completed", left)


def test_a6_a_ctx_patch_opens_the_gate() -> None:
    lab = Lab(GATE % "").run()
    lab.driver.patch(other=1)
    assert lab.status == "waiting"
    lab.driver.patch(approved=True)
    lab.work().replays()
    assert (lab.status, lab.result, lab.ctx) == ("completed", 7, {"other": 1, "approved": True})
    assert [e["data"] for e in lab.events("ctx.patched")] == [{"other": 1}, {"approved": True}]


def test_a6_a_task_opens_the_gate_of_another_branch() -> None:
    lab = Lab("""
    workflow:
      - step: fork
        next:
          spec: {mode: inclusive}
          arcs: [{step: gated}, {step: opener}]
      - step: gated
        spec: {policy: {admit: {rules: [{when: "{{ ctx.open }}", then: {allow: true}}]}}}
        tool: {kind: echo, value: through}
      - step: opener
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {open: true}}}}]}}}
    """).run()
    assert (lab.status, lab.ran()) == ("completed", ["fork", "opener", "gated"])


def test_no_rule_and_no_else_is_denied() -> None:
    lab = Lab("""
    workflow:
      - step: a
        spec: {policy: {admit: {rules: [{when: "{{ false }}", then: {allow: true}}]}}}
        tool: {kind: noop}
    """).run()
    assert lab.status == "waiting"


def test_c2_admission_sees_ctx_workload_args_event_and_execution_id() -> None:
    lab = Lab("""
    workflow:
      - step: a
        spec: {policy: {admit: {rules: [{when: "{{ event.name == 'playbook.started' }}", then: {allow: true}}]}}}
        tool: {kind: echo, value: 5}
        next: {arcs: [{step: b, args: {k: v}}]}
      - step: b
        spec:
          policy:
            admit:
              rules:
                - when: "{{ event.name == 'step.done' and event.result == 5 and args.k == 'v' and execution_id == 'r1' and workload.w == 1 }}"
                  then: {allow: true}
        tool: {kind: noop}
    """).run({"w": 1})
    assert lab.status == "completed"


ROUTES = """
    workflow:
      - step: a
        tool: {{kind: echo, value: {{n: 3}}, {fail}}}
        next:
          {spec}
          arcs:
            - {{step: x, when: "{{{{ event.result.n == 2 }}}}"}}
            - {{step: y, when: "{{{{ event.result.n > 1 }}}}", args: {{twice: "{{{{ event.result.n * 2 }}}}"}}}}
            - {{step: z}}
      - {{step: x, tool: {{kind: echo}}}}
      - {{step: y, tool: {{kind: echo, value: "{{{{ args.twice }}}}"}}}}
      - {{step: z, tool: {{kind: echo, value: z}}}}
"""


def test_r4_r5_exclusive_is_the_default_and_first_match_wins() -> None:
    lab = Lab(ROUTES.format(spec="", fail="")).run().replays()
    assert lab.ran() == ["a", "y"]
    assert lab.result == 6
    (evaluated,) = lab.events("next.evaluated", step="a")
    assert evaluated["data"] == {"mode": "exclusive", "matched": ["y"], "selected": ["y"]}


def test_r6_inclusive_fires_every_match() -> None:
    lab = Lab(ROUTES.format(spec="spec: {mode: inclusive}", fail="")).run().replays()
    assert sorted(lab.ran()) == ["a", "y", "z"]


def test_r1_arcs_are_evaluated_after_the_terminal_event() -> None:
    lab = Lab(ROUTES.format(spec="", fail="")).run()
    kinds = [(e["type"], e.get("step")) for e in lab.driver.events]
    assert (
        kinds.index(("step.done", "a"))
        < kinds.index(("next.evaluated", "a"))
        < kinds.index(("step.started", "y"))
    )


def test_r2_an_unconditional_arc_fires_on_failure_too_and_the_run_counts_it() -> None:
    lab = (
        Lab("""
    workflow:
      - {step: a, tool: {kind: echo, fail: connection}, next: {arcs: [{step: b}]}}
      - {step: b, tool: {kind: echo, value: went on}}
    """)
        .run()
        .replays()
    )
    assert lab.ran() == ["a", "b"]
    assert lab.status == "failed"
    assert lab.error["class"] == "transport"
    assert lab.error["where"] == "a"


def test_a_guarded_arc_handles_the_failure() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool: {kind: echo, fail: auth}
        next:
          arcs:
            - {step: ok, when: "{{ event.name == 'step.done' }}"}
            - {step: repair, when: "{{ event.name == 'step.failed' and event.error.kind == 'auth' }}"}
      - {step: ok, tool: {kind: noop}}
      - {step: repair, tool: {kind: echo, value: repaired}}
    """).run()
    assert (lab.status, lab.result, lab.ran()) == ("completed", "repaired", ["a", "repair"])


def test_r3_guards_see_event_workload_ctx_and_incoming_args() -> None:
    lab = Lab("""
    workload: {w: 1}
    workflow:
      - {step: a, next: {arcs: [{step: b, args: {k: 2}}]}}
      - step: b
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {c: 3}}}}]}}}
        next: {arcs: [{step: c, when: "{{ workload.w == 1 and ctx.c == 3 and args.k == 2 and event.name == 'step.done' and event.step == 'b' }}"}]}
      - {step: c, tool: {kind: echo, value: yes}}
    """).run()
    assert lab.result == "yes"


def test_r7_args_are_rendered_at_routing_time() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: {kind: echo, value: 1}, next: {arcs: [{step: b, args: {seen: "{{ ctx.x | default('unset') }}"}}]}}
      - step: b
        spec: {policy: {admit: {rules: [{when: "{{ ctx.x is defined }}", then: {allow: true}}]}}}
        tool: {kind: echo, value: "{{ args.seen }}"}
    """).run()
    lab.driver.patch(x="later")
    assert lab.work().result == "unset"


def test_r9_a_step_reached_by_two_tokens_runs_twice() -> None:
    lab = (
        Lab("""
    workflow:
      - {step: a, next: {spec: {mode: inclusive}, arcs: [{step: b}, {step: c}]}}
      - {step: b, tool: {kind: echo}, next: {arcs: [{step: d}]}}
      - {step: c, tool: {kind: echo}, next: {arcs: [{step: d}]}}
      - {step: d, tool: {kind: echo, value: d}}
    """)
        .run()
        .replays()
    )
    assert lab.steps["d"]["runs"] == 2


def test_r10_cycles() -> None:
    lab = Lab("""
    workflow:
      - step: count
        tool:
          kind: noop
          spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {n: "{{ (ctx.n | default(0)) + 1 }}"}}}}]}}
        next: {arcs: [{step: count, when: "{{ ctx.n < 300 }}"}]}
    """).run()
    assert (lab.status, lab.ctx["n"], lab.steps["count"]["runs"]) == ("completed", 300, 300)


def test_cycle_of_pure_routing_steps_goes_on_in_slices() -> None:
    lab = (
        Lab("""
    workflow:
      - step: a
        next: {arcs: [{step: a, set: {ctx.n: "{{ (ctx.n | default(0)) + 1 }}"}, when: "{{ (ctx.n | default(0)) < 500 }}"}]}
    """)
        .run()
        .replays()
    )
    assert lab.status == "completed"
    assert lab.steps["a"]["runs"] == 501
    assert len(lab.driver.journal) > 3


def test_b1_b2_leaves_and_unmatched_arcs_end_the_branch() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: {kind: echo, value: 9}, next: {arcs: [{step: b, when: "{{ false }}"}]}}
      - {step: b, tool: {kind: noop}}
    """).run()
    assert (lab.status, lab.ran(), lab.result) == ("completed", ["a"], 9)


def test_b3_no_next_is_error_is_opt_in() -> None:
    lab = Lab("""
    executor: {spec: {no_next_is_error: true}}
    workflow:
      - {step: a, tool: {kind: echo}, next: {arcs: [{step: b, when: "{{ false }}"}]}}
      - {step: b, tool: {kind: noop}}
    """).run()
    assert (lab.status, lab.error["code"]) == ("failed", "NO_MATCHING_ARC")


def test_t1_not_complete_while_a_retry_waits() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          kind: echo
          fail: connection
          spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 30}}]}}
    """).run()
    assert lab.status == "waiting"
    assert [i.kind for i in lab.driver.run.open.values()] == ["timer"]
    lab.advance(31).replays()
    assert lab.status == "failed"
    assert len(lab.tools["echo"].calls) == 2


def test_t2_other_branches_run_to_their_end_by_default() -> None:
    lab = Lab("""
    workflow:
      - {step: a, next: {spec: {mode: inclusive}, arcs: [{step: bad}, {step: good}]}}
      - {step: bad, tool: {kind: echo, fail: schema}}
      - {step: good, tool: {kind: echo}, next: {arcs: [{step: more}]}}
      - {step: more, tool: {kind: echo, value: done}}
    """).run()
    assert lab.status == "failed"
    assert lab.steps["more"]["status"] == "done"


FAILURES = """
    executor: {{spec: {{final_step: last, policy: {{failure: {{mode: {mode}}}}}}}}}
    workflow:
      - {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{{step: bad}}, {{step: good}}, {{step: gated}}]}}}}
      - {{step: bad, tool: {{kind: echo, fail: schema}}}}
      - {{step: good, tool: {{kind: echo}}, next: {{arcs: [{{step: more}}]}}}}
      - {{step: more, tool: {{kind: echo, value: done}}}}
      - step: gated
        spec: {{policy: {{admit: {{rules: [{{else: {{then: {{allow: {allow}}}}}}}]}}}}}}
        tool: {{kind: noop}}
      - {{step: last, tool: {{kind: echo, value: "{{{{ args.status }}}}"}}}}
"""


def test_fail_fast_stops_everything_and_still_runs_final_step() -> None:
    lab = Lab(FAILURES.format(mode="fail_fast", allow="false")).run().replays()
    assert lab.status == "failed"
    assert lab.result == "failed"
    assert "more" not in lab.steps
    assert lab.steps["good"]["error"]["kind"] == "cancelled"
    assert lab.events("token.discarded", step="gated")


def test_best_effort_gives_partial() -> None:
    lab = Lab(FAILURES.format(mode="best_effort", allow="true")).run().replays()
    assert (lab.status, lab.result) == ("partial", "partial")
    assert lab.steps["more"]["status"] == "done"


def test_f1_f2_f3_final_step_runs_once_after_quiescence_with_a_summary() -> None:
    lab = (
        Lab("""
    executor: {spec: {final_step: report}}
    workflow:
      - {step: a, next: {spec: {mode: inclusive}, arcs: [{step: ok}, {step: bad}]}}
      - {step: ok, tool: {kind: echo, value: payload}}
      - {step: bad, tool: {kind: echo, fail: not_found}}
      - {step: report, tool: {kind: echo, value: "{{ args }}"}}
    """)
        .run()
        .replays()
    )
    assert lab.ran()[-1] == "report"
    assert lab.steps["report"]["runs"] == 1
    args = lab.result
    assert args["execution_id"] == "r1"
    assert args["steps"] == {"total": 3, "done": 2, "failed": 1}
    assert args["branches"] == 2
    assert args["failures"][0]["step"] == "bad"
    assert args["failures"][0]["error"]["kind"] == "not_found"
    assert "payload" not in str(args["results"])
    assert args["results"]["ok"]["ref"] == "treadle://execution/r1/step/ok"
    assert lab.status == "failed"


def test_f4_a_failing_final_step_fails_the_run_unless_it_is_best_effort() -> None:
    text = """
    executor: {spec: {final_step: report}}
    workflow:
      - {step: a, tool: {kind: echo}}
      - {step: report, %s tool: {kind: echo, fail: schema}}
    """
    assert Lab(text % "").run().status == "failed"
    assert Lab(text % "spec: {policy: {failure: {mode: best_effort}}},").run().status == "partial"


def test_f5_final_step_that_routing_already_ran_is_not_run_again() -> None:
    lab = Lab("""
    executor: {spec: {final_step: b}}
    workflow:
      - {step: a, next: {arcs: [{step: b}]}}
      - {step: b, tool: {kind: echo, value: once}}
    """).run()
    assert (lab.steps["b"]["runs"], lab.result) == (1, "once")


def test_final_step_does_not_run_while_waiting_nor_after_cancel() -> None:
    lab = Lab(
        "    executor: {spec: {final_step: fin}}" + GATE % "" + "      - {step: fin, tool: {kind: noop}}\n"
    ).run()
    assert (lab.status, "fin" in lab.steps) == ("waiting", False)
    lab.driver.cancel("enough")
    assert (lab.status, "fin" in lab.steps) == ("cancelled", False)
    assert lab.events("execution.cancelled")[0]["data"]["reason"] == "enough"


def test_on_failure_and_on_cancel_compensate() -> None:
    text = """
    executor: {spec: {on_failure: undo, on_cancel: undo}}
    workflow:
      - {step: a, tool: {kind: echo, fail: "{{ workload.fail }}"}, next: {arcs: [{step: w, when: "{{ event.name == 'step.done' }}"}]}}
      - {step: w, tool: {kind: wait, seconds: 60}}
      - {step: undo, tool: {kind: echo, value: undone}}
    """
    failed = Lab(text).run({"fail": "schema"}).replays()
    assert (failed.status, failed.steps["undo"]["result"]) == ("failed", "undone")
    cancelled = Lab(text).run({"fail": None})
    cancelled.driver.cancel("stop")
    cancelled.work().replays()
    assert (cancelled.status, cancelled.steps["undo"]["result"]) == ("cancelled", "undone")


def test_n0_noop_and_tool_less_steps_route() -> None:
    lab = Lab("""
    workflow:
      - {step: a, next: {arcs: [{step: b}]}}
      - {step: b, tool: {kind: noop}, next: {arcs: [{step: c}]}}
      - {step: c, tool: {kind: noop, result: [1, 2]}}
    """).run()
    assert lab.result == [1, 2]
    assert lab.steps["b"]["result"] == {"status": "noop"}
    assert len([i for i in lab.ran() if i == "a"]) == 1
    assert lab.driver.run.intents == 2


def test_lifecycle_timeout_and_deadline_fail_the_step() -> None:
    lab = Lab("""
    workflow:
      - step: slow
        spec: {policy: {lifecycle: {timeout_s: 5}}}
        tool: {kind: wait, seconds: 60}
        next: {arcs: [{step: late, when: "{{ event.error.kind == 'timeout' }}"}]}
      - step: late
        spec: {policy: {lifecycle: {deadline_s: 4}}}
        tool: {kind: echo}
    """).run()
    lab.advance(10).replays()
    assert lab.steps["slow"]["error"]["kind"] == "timeout"
    assert lab.steps["late"]["error"]["code"] == "DEADLINE"
    assert (lab.status, lab.error["class"]) == ("failed", "timeout")


def test_lifecycle_timer_is_taken_back_when_the_step_ends() -> None:
    lab = Lab("""
    workflow:
      - {step: a, spec: {policy: {lifecycle: {timeout_s: 5}}}, tool: {kind: echo}, next: {arcs: [{step: b}]}}
      - {step: b, tool: {kind: wait, seconds: 60}}
    """).run()
    assert [intent.params["name"] for intent in lab.driver.run.open.values()] == ["wait"]


def test_retry_gives_failed_steps_their_tokens_again() -> None:
    lab = Lab(
        """
    workflow:
      - {step: a, tool: {kind: flaky}, next: {arcs: [{step: b, when: "{{ event.name == 'step.done' }}", args: {x: 1}}]}}
      - {step: b, tool: {kind: echo, value: "{{ args.x | default(1) }}"}}
    """,
        {"flaky": lambda config, call: 1 / 0 if len(lab.tools["flaky"].calls) == 1 else 1},
    ).start()
    intent = lab.driver.open("step")[0]
    lab.driver.error(intent, "boom")
    assert lab.status == "failed"
    lab.tools["flaky"].calls.append(({}, None))  # type: ignore[arg-type]
    lab.driver.retry()
    lab.work()
    assert (lab.status, lab.result) == ("completed", 1)
    lab.driver.retry(**{"from": "b"})
    assert lab.work().status == "completed"
    assert lab.steps["b"]["runs"] == 2


def test_more_arcs_than_one_step_may_open_go_on_in_slices() -> None:
    arcs = ", ".join(f"{{step: s{i}}}" for i in range(150))
    steps = "\n".join(f"      - {{step: s{i}, tool: {{kind: echo, value: {i}}}}}" for i in range(150))
    lab = Lab(f"""
    workflow:
      - {{step: a, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}
{steps}
    """).run()
    assert lab.status == "completed"
    assert len(lab.steps) == 151


def test_retry_reaches_behind_joins_and_latches() -> None:
    lab = Lab("""
    workflow:
      - {step: fork, next: {spec: {mode: inclusive}, arcs: [{step: a}, {step: b}]}}
      - {step: a, tool: {kind: echo}, next: {arcs: [{step: j, args: {n: 1}}]}}
      - {step: b, tool: {kind: echo}, next: {arcs: [{step: j, args: {n: 2}}]}}
      - step: j
        spec: {policy: {admit: {once: true, join: {from: [a, b], mode: all}}}}
        tool: {kind: echo, value: "{{ args.tokens }}"}
    """).start()
    for name in ("a", "b"):
        lab.perform(lab.driver.open("step", name=name)[0])
    lab.driver.error(lab.driver.open("step", name="j")[0], "boom")
    assert lab.status == "failed"
    lab.driver.retry()
    lab.work().replays()
    assert (lab.status, lab.result) == ("completed", [{"n": 1}, {"n": 2}])
