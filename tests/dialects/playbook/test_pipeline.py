"""Seed 004 §5.4, §6, §7, §9: task shapes, outcome policies, retry, jump, ctx and iter."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.dialects.playbook.dialect import DIALECT
from treadle.kernel.model import OpenIntent
from treadle.performers.playbook.performer import PipelinePerformer
from treadle.tools.protocol import Outcome, ToolCall
from treadle.tools.registry import ToolRegistry
from treadle.work.job import StaysOpen

from .harness import Lab, compile_text


def scripted(*outcomes: Any) -> Any:
    """A tool that gives these outcomes in order, the last one forever."""
    left = list(outcomes)

    def run(config: dict[str, Any], call: ToolCall) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return run


def failed(kind: str = "server_error", **more: Any) -> Outcome:
    return Outcome.failed(kind, f"{kind} happened", **more)


def test_k1_k2_k3_task_names() -> None:
    body = compile_text("""
    workflow:
      - {step: single, tool: {kind: echo}, next: {arcs: [{step: many}]}}
      - {step: many, tool: [{kind: echo}, {name: mine, kind: echo}, {kind: echo}]}
    """).body
    assert [t["name"] for t in body["workflow"][0]["tool"]] == ["single_task"]
    assert [t["name"] for t in body["workflow"][1]["tool"]] == ["task_0", "mine", "task_2"]


def test_k6_earlier_results_by_task_name() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - {name: first, kind: echo, value: {x: 1, data: inner}}
          - {name: second, kind: echo, value: {x: 2}}
          - {name: third, kind: echo, value: ["{{ first.x }}", "{{ first.data }}", "{{ second.data.x }}", "{{ second.status }}", "{{ _prev.x }}"]}
    """).run()
    assert lab.result == [1, "inner", 2, "ok", 2]


def test_p3_policy_without_match_continues_even_on_error() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - {kind: echo, value: kept}
          - {kind: echo, fail: schema, spec: {policy: {rules: [{when: "{{ outcome.status == 'ok' }}", then: {do: fail}}]}}}
          - {kind: echo, value: "{{ _prev }}"}
    """).run()
    assert (lab.status, lab.result) == ("completed", "kept")


def test_p4_no_policy_ok_continues_and_error_fails() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: [{kind: echo, value: 1}, {kind: echo, fail: parse}, {kind: echo, value: never}]}
    """).run()
    assert (lab.status, len(lab.tools["echo"].calls)) == ("failed", 2)
    assert lab.steps["a"]["error"]["kind"] == "parse"


def test_p2_else_is_the_fallback_and_first_match_wins() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - kind: echo
            value: 5
            spec:
              policy:
                rules:
                  - {when: "{{ outcome.result > 9 }}", then: {do: fail}}
                  - {when: "{{ outcome.result > 4 }}", then: {do: jump, to: end}}
                  - {when: "{{ outcome.result > 3 }}", then: {do: fail}}
                  - {else: {then: {do: fail}}}
          - {name: skipped, kind: echo, value: no}
          - {name: end, kind: echo, value: yes}
    """).run()
    assert lab.result == "yes"
    assert lab.events("task.done")[0]["data"] == {"rule": 1, "do": "jump"}


def test_p6_p7_break_ends_ok_and_fail_fails() -> None:
    text = """
    workflow:
      - step: a
        tool:
          - {kind: echo, value: here, spec: {policy: {rules: [{else: {then: {do: %s}}}]}}}
          - {kind: echo, value: never}
    """
    assert (Lab(text % "break").run().status, Lab(text % "break").run().result) == ("completed", "here")
    lab = Lab(text % "fail").run()
    assert (lab.status, lab.steps["a"]["error"]["code"]) == ("failed", "POLICY_FAIL")


RETRY = """
    workflow:
      - step: a
        tool:
          kind: net
          spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, %s}}]}}
"""


def test_p9_attempts_are_total_tries() -> None:
    lab = Lab(RETRY % "attempts: 3, delay: 0", {"net": scripted(failed())}).run().replays()
    assert (lab.status, len(lab.tools["net"].calls)) == ("failed", 3)
    assert lab.error["class"] == "transport"
    assert lab.driver.run.retries == 2
    assert [e["attempt"] for e in lab.events("task.attempt.failed")] == [1, 2]
    assert [call.attempt for _, call in lab.tools["net"].calls] == [1, 2, 3]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [("none", [2, 2, 2]), ("linear", [2, 4, 6]), ("exponential", [2, 4, 8])],
)
def test_p9_backoff(backoff: str, delays: list[float]) -> None:
    lab = Lab(RETRY % f"attempts: 4, delay: 2, backoff: {backoff}", {"net": scripted(failed())}).run()
    for delay in delays:
        before = len(lab.tools["net"].calls)
        lab.advance(delay - 0.5)
        assert len(lab.tools["net"].calls) == before
        lab.advance(0.5)
        assert len(lab.tools["net"].calls) == before + 1
    assert lab.status == "failed"


def test_retry_defaults_max_delay_and_retry_after() -> None:
    lab = Lab(RETRY % "backoff: exponential", {"net": scripted(failed())}).run()
    lab.advance(1).advance(2)
    assert (lab.status, len(lab.tools["net"].calls)) == ("failed", 3)

    lab = Lab(RETRY % "delay: 100, max_delay: 5", {"net": scripted(failed(), 1)}).run().advance(5)
    assert lab.status == "completed"

    busy = failed("rate_limit")
    assert busy.error is not None
    busy.error["retry_after"] = 30
    lab = Lab(RETRY % "delay: 1, respect_retry_after: true", {"net": scripted(busy, "ok")}).run().advance(29)
    assert lab.status == "waiting"
    assert lab.advance(1).result == "ok"


def test_retry_counter_restarts_at_each_entry() -> None:
    """Each page fails once; with attempts: 2 that must never exhaust, however many pages."""
    pages = {"calls": 0}

    def fetch(config: dict[str, Any], call: ToolCall) -> Any:
        pages["calls"] += 1
        return failed() if call.attempt == 1 else {"page": config["page"], "more": config["page"] < 5}

    lab = Lab(
        """
    workflow:
      - step: a
        tool:
          - {name: init, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {page: 1}}}}]}}}
          - name: fetch
            kind: fetch
            page: "{{ iter.page }}"
            spec:
              policy:
                rules:
                  - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 0}}
                  - {when: "{{ outcome.result.more }}", then: {do: jump, to: fetch, set_iter: {page: "{{ iter.page + 1 }}"}}}
    """,
        {"fetch": fetch},
    ).run()
    assert (lab.status, pages["calls"]) == ("completed", 10)
    assert lab.result == {"page": 5, "more": False}


def test_retries_exhausted_on_an_ok_outcome_has_its_own_code() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool: {kind: echo, value: not yet, spec: {policy: {rules: [{when: "{{ outcome.result != 'ready' }}", then: {do: retry, attempts: 2, delay: 0}}]}}}
    """).run()
    assert lab.error["code"] == "RETRIES_EXHAUSTED"


def test_p10_sets_apply_with_any_do_and_rhs_is_evaluated_first() -> None:
    lab = (
        Lab("""
    workflow:
      - step: a
        tool:
          - kind: noop
            spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {a: 1, b: 2}}}}]}}
          - kind: noop
            spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {a: "{{ iter.b }}", b: "{{ iter.a }}"}, set_ctx: {sum: "{{ iter.a + iter.b }}"}}}}]}}
          - {kind: echo, value: ["{{ iter.a }}", "{{ iter.b }}", "{{ ctx.sum }}"]}
          - {kind: echo, fail: schema, spec: {policy: {rules: [{else: {then: {do: fail, set_ctx: {why: "{{ outcome.error.kind }}"}}}}]}}}
        next: {arcs: [{step: b, when: "{{ ctx.why == 'schema' and iter.a == 2 }}"}]}
      - {step: b, tool: {kind: echo, value: "{{ a.result }}"}}
    """)
        .run()
        .replays()
    )
    assert lab.result == [2, 1, 3]
    assert lab.ctx == {"sum": 3, "why": "schema"}
    assert lab.status == "completed"


def test_set_ctx_is_a_recorded_patch() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: {deep: 1}, k.other: 2}}}}]}}}}
    """).run()
    assert lab.ctx == {"k": {"deep": 1, "other": 2}}
    assert lab.events("ctx.patched", step="a")[0]["data"] == {"k": {"deep": 1}, "k.other": 2}


def test_p12_hooks_and_placeholders_are_accepted() -> None:
    lab = Lab("""
    workflow:
      - step: a
        spec: {policy: {emit: {events: [x]}, tracing: {}, quotas: {}, admit: {mode: inclusive, rules: [{else: {then: {allow: true}}}]}}}
        tool:
          kind: echo
          value: 1
          spec: {policy: {mode: exclusive, on_unmatched: continue, before: [], after: [], finally: [], rules: []}}
        next: {spec: {mode: exclusive, policy: {priority: 1}}, arcs: []}
    """).run()
    assert lab.status == "completed"


def test_s1_to_s4_spec_layers_and_s5_policies_stay_in_their_scope() -> None:
    seen: list[Any] = []
    Lab(
        """
    executor: {spec: {timeout: 1, http: {a: 1, b: 1, list: [1, 2]}, entry_step: a, policy: {defaults: {timeout: 0, region: eu}}}}
    workflow:
      - step: a
        spec: {timeout: 2, http: {b: 2, c: 2}, policy: {failure: {mode: best_effort}}}
        loop: {in: [1], iterator: x, spec: {mode: parallel, max_in_flight: 3, http: {c: 3, d: 3}, policy: {exec: local}}}
        tool: {kind: probe, spec: {http: {d: 4, list: [9]}, policy: {rules: []}}}
    """,
        {"probe": lambda config, call: seen.append(config["spec"])},
    ).run()
    assert seen == [{"timeout": 2, "region": "eu", "http": {"a": 1, "b": 2, "c": 3, "d": 4, "list": [9]}}]


def test_c3_task_rules_see_everything_they_should() -> None:
    lab = Lab("""
    workload: {w: 1}
    workflow:
      - {step: z, tool: {kind: echo, value: 1}, next: {arcs: [{step: a, args: {k: 3}}]}}
      - step: a
        tool:
          - {kind: echo, value: 2}
          - name: probe
            kind: echo
            value: 5
            spec:
              policy:
                rules:
                  - when: "{{ outcome.status == 'ok' and outcome.meta.attempt == 1 and _prev == 2 and _task.name == 'probe' and _task.kind == 'echo' and _task.index == 1 and _attempt == 1 and args.k == 3 and workload.w == 1 and execution_id == job.uuid }}"
                    then: {do: break}
                  - else: {then: {do: fail}}
    """).run()
    assert (lab.status, lab.result) == ("completed", 5)


def test_v1_one_outcome_per_tool_run_and_results_that_say_error() -> None:
    tools = {"odd": lambda config, call: {"status": "error", "error": "odd"}}
    text = "workflow: [{step: a, tool: {kind: odd%s}}]"
    lab = Lab(text % "", tools).run()
    assert (lab.status, lab.steps["a"]["error"]["message"]) == ("failed", "odd")
    lab = Lab(text % ", spec: {result: {error_status: ignore}}", tools).run()
    assert lab.status == "completed"


def test_idempotency_keys_are_shared_by_retries_and_differ_by_entry() -> None:
    keys: list[tuple[int, str]] = []

    def call_it(config: dict[str, Any], call: ToolCall) -> Any:
        keys.append((config["n"], call.idempotency_key))
        return failed() if call.attempt == 1 else 1

    Lab(
        """
    workflow:
      - step: a
        tool:
          - {name: init, kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {n: 1}}}}]}}}
          - name: t
            kind: net
            n: "{{ iter.n }}"
            spec:
              policy:
                rules:
                  - {when: "{{ outcome.status == 'error' }}", then: {do: retry, delay: 60, attempts: 2}}
                  - {when: "{{ iter.n < 2 }}", then: {do: jump, to: t, set_iter: {n: 2}}}
    """,
        {"net": call_it},
    ).run().advance(61).advance(61)
    assert [n for n, _ in keys] == [1, 1, 2, 2]
    assert keys[0][1] == keys[1][1] != keys[2][1] == keys[3][1]


def test_a_killed_worker_resumes_after_the_last_finished_task() -> None:
    """The checkpoint saved before a non-idempotent task is where the next worker goes on."""
    calls: list[str] = []

    def work(config: dict[str, Any], call: ToolCall) -> Any:
        calls.append(config["label"])
        if calls.count("second") == 1 and config["label"] == "second":
            raise StaysOpen("the worker dies")
        return config["label"]

    lab = Lab(
        """
    workflow:
      - {step: a, tool: [{kind: work, label: first}, {kind: work, label: second}, {kind: echo, value: "{{ _prev }}"}]}
    """,
        {"work": work},
    )
    lab.tools["work"].idempotent = False
    lab.start()
    (intent,) = lab.driver.open("step")
    with pytest.raises(StaysOpen):
        lab.done(intent)
    lab.work().replays()
    assert calls == ["first", "second", "second"]
    assert (lab.status, lab.result) == ("completed", "second")
    keys = [call.idempotency_key for config, call in lab.tools["work"].calls if config["label"] == "second"]
    assert keys[0] == keys[1]


def test_wait_await_ask_suspend_and_resume() -> None:
    lab = Lab("""
    workflow:
      - step: a
        tool:
          - {kind: echo, value: before}
          - {name: pause, kind: wait, duration: 2m}
          - {name: approval, kind: await, signal: approved, timeout: 1h}
          - {name: review, kind: ask, title: Look, roles: [boss], payload: {who: "{{ approval.by }}"}, schema: {type: object}}
          - {kind: echo, value: ["{{ approval.by }}", "{{ review.ok }}"]}
    """).run()
    assert lab.status == "waiting"
    lab.advance(120)
    assert [i.kind for i in lab.driver.run.open.values()] == ["signal"]
    lab.driver.signal("approved", {"by": "ann"})
    lab.work()
    (task,) = lab.driver.open("task")
    assert task.params == {
        "name": "Look",
        "roles": ["boss"],
        "payload": {"who": "ann"},
        "schema": {"type": "object"},
    }
    lab.driver.ok(task, {"ok": True}, by="bob")
    lab.work().replays()
    assert (lab.status, lab.result) == ("completed", ["ann", True])
    assert len(lab.events("step.started")) == 1


def test_await_times_out_as_an_error_outcome() -> None:
    lab = (
        Lab("""
    workflow:
      - step: a
        tool:
          - {kind: await, signal: never, timeout: 10, spec: {policy: {rules: [{when: "{{ outcome.error.kind == 'timeout' }}", then: {do: break, set_ctx: {late: true}}}]}}}
    """)
        .run()
        .advance(11)
    )
    assert (lab.status, lab.ctx) == ("completed", {"late": True})


def test_children_are_child_intents_and_their_failure_is_an_outcome() -> None:
    text = """
    workflow:
      - step: a
        tool:
          - {name: sub, kind: playbook, path: other.yaml, args: {n: 1}, return_step: x, version: 2}
          - {kind: echo, value: "{{ sub.total }}"}
    """
    lab = Lab(text).run()
    (child,) = lab.driver.open("child")
    assert child.params["workflow"] == "other.yaml@2"
    assert child.params["input"] == {"n": 1}
    assert child.params["options"]["return_step"] == "x"
    lab.driver.ok(child, {"run": "c", "workflow": "other", "version": "2", "result": {"total": 9}})
    assert lab.work().replays().result == 9

    lab = Lab(text).run()
    lab.driver.error(lab.driver.open("child")[0], "it broke", code="CHILD_FAILED")
    lab.work()
    assert lab.steps["a"]["error"]["kind"] == "child_failed"


def test_wait_false_starts_a_child_and_goes_on() -> None:
    lab = Lab(
        "workflow: [{step: a, tool: {kind: workflow, workflow: other, wait: false, input: {a: 1}}}]"
    ).run()
    (start,) = lab.driver.open("start")
    lab.driver.ok(start, {"run": "r9"})
    assert lab.work().result == {"run": "r9"}


def test_template_errors_name_step_field_and_expression() -> None:
    lab = Lab("workflow: [{step: calc, tool: {kind: echo, value: '{{ workload.n + 1 }}'}}]").run(
        {"n": "text"}
    )
    assert lab.error["class"] == "expression"
    for part in ("calc", "value", "workload.n + 1"):
        assert part in lab.error["message"]
    assert lab.steps["calc"]["error"]["kind"] == "template"


def test_a_guard_that_cannot_be_evaluated_fails_the_run_as_expression() -> None:
    lab = (
        Lab("""
    workflow:
      - {step: a, tool: {kind: echo, value: x}, next: {arcs: [{step: a, when: "{{ event.result > 3 }}"}]}}
    """)
        .run()
        .replays()
    )
    assert (lab.status, lab.error["class"]) == ("failed", "expression")
    assert "next.arcs[0].when" in lab.error["message"]


def test_steps_params_hold_only_what_the_templates_name() -> None:
    lab = Lab("""
    workload: {big: [1, 2, 3], url: http://x, api: bare}
    workflow:
      - {step: a, tool: {kind: echo, value: "{{ workload.url }}/{{ api }}"}, next: {arcs: [{step: b, args: {unused: 1}}]}}
      - {step: b, tool: {kind: echo, value: 1}, next: {arcs: [{step: c}]}}
      - {step: c, tool: {kind: echo, value: "{{ a }}"}}
    """).start()
    (intent,) = lab.driver.open("step")
    assert intent.params == {"name": "a", "step": "a", "workload": {"url": "http://x", "api": "bare"}}
    lab.perform(intent)
    (intent,) = lab.driver.open("step")
    assert intent.params == {"name": "b", "step": "b"}
    lab.perform(intent)
    (intent,) = lab.driver.open("step")
    assert intent.params["steps"] == {"a": {"status": "done", "result": "http://x/bare"}}
    assert lab.work().result == "http://x/bare"


def test_workbook_tasks_merge_args_and_layer_specs() -> None:
    text = """
    workbook:
      %s
    workflow:
      - step: a
        tool: {kind: workbook, task: greet, args: {name: ann}, spec: {timeout: 9}}
    """
    mapping = "tasks: {greet: {kind: probe, args: {greeting: hi, name: x}, spec: {timeout: 1, deep: {a: 1}}}}"
    listing = "[{name: greet, tool: {kind: probe, input: {greeting: hi, name: x}, spec: {timeout: 1, deep: {a: 1}}}}]"
    for shape in (mapping, listing.replace("[", "- ", 1)[:-1]):
        lab = Lab(text % shape, {"probe": lambda config, call: [config["args"], config["spec"]]}).run()
        assert lab.result == [{"greeting": "hi", "name": "ann"}, {"timeout": 9, "deep": {"a": 1}}]


def test_python_code_is_handed_over_verbatim() -> None:
    lab = Lab(
        "workflow: [{step: a, tool: {kind: python, code: \"f'{{x}} {{ y }}'\", args: {x: '{{ workload.n }}'}}}]",
        {"python": lambda config, call: [config["code"], config["args"]]},
    ).run({"n": 4})
    assert lab.result == ["f'{{x}} {{ y }}'", {"x": 4}]


def test_a_pipeline_that_only_spins_is_stopped() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: {name: n, kind: noop, spec: {policy: {rules: [{else: {then: {do: jump, to: n}}}]}}}}
    """).run()
    assert lab.error["code"] == "PIPELINE_SPINS"


def test_jump_to_previous_replays_the_producer() -> None:
    calls: list[int] = []

    def count(config: dict[str, Any], call: ToolCall) -> int:
        calls.append(1)
        return len(calls)

    Lab(
        """
    workflow:
      - step: a
        tool:
          - {name: produce, kind: count}
          - {name: check, kind: noop, spec: {policy: {rules: [{when: "{{ _prev < 3 }}", then: {do: jump, to: previous}}]}}}
    """,
        {"count": count},
    ).run()
    assert len(calls) == 3


def test_keychain_is_proven_before_the_first_token_and_read_by_tasks_only() -> None:
    text = """
    keychain: [{name: api, kind: bearer}, {name: pg, kind: postgres_credential}]
    workflow:
      - {step: a, tool: {kind: echo, value: "{{ keychain.api.token }}"}}
    """
    lab = Lab(text, secrets={"api": {"token": "t0ken"}}).start()
    assert [i.params["prove"] for i in lab.driver.open("step")] == [["api", "pg"]]
    lab.work()
    assert (lab.status, lab.error["class"]) == ("failed", "authorization")
    assert "'pg'" in lab.error["message"]
    assert lab.ran() == []

    lab = Lab(text, secrets={"api": {"token": "t0ken"}, "pg": {"db_host": "x"}}).run()
    assert lab.result == "t0ken"
    assert all("t0ken" not in str(i.params) for i in lab.driver.run.open.values())


def test_auth_names_a_keychain_entry() -> None:
    seen: list[Any] = []

    async def use(config: dict[str, Any], call: ToolCall) -> Any:
        seen.append(await call.secret(config["auth"]))

    lab = Lab(
        "keychain: [{name: pg, kind: postgres_credential}]\nworkflow: [{step: a, tool: {kind: use, auth: pg}}]",
        {"use": use},
        secrets={"pg": {"db_host": "h"}},
    ).run()
    assert lab.status == "completed"
    assert seen == [{"db_host": "h"}]


def test_a_tool_that_raises_gives_an_error_outcome() -> None:
    def crash(config: dict[str, Any], call: ToolCall) -> Any:
        raise LookupError("not there")

    lab = Lab(
        "workflow: [{step: a, tool: {kind: crash, spec: {policy: {rules: [{when: \"{{ outcome.error.code == 'LookupError' }}\", then: {do: break}}]}}}}]",
        {"crash": crash},
    ).run()
    assert lab.status == "completed"


def test_a_tool_cannot_change_the_definition_or_the_marking() -> None:
    def greedy(config: dict[str, Any], call: ToolCall) -> Any:
        config["list"].append("mine")
        config["given"]["deep"].append("mine")
        return len(config["list"]) + len(config["given"]["deep"])

    lab = Lab(
        """
    workload: {given: {deep: [1]}}
    workflow:
      - step: each
        loop: {in: [1, 2, 3], iterator: n}
        tool: {kind: greedy, list: [0], given: "{{ workload.given }}"}
    """,
        {"greedy": greedy},
    ).run()
    assert lab.result["results"] == [4, 4, 4]
    assert lab.driver.state["workload"] == {"given": {"deep": [1]}}


def test_a_run_whose_keychain_failed_is_proven_again_on_retry_and_patches_wait_for_it() -> None:
    lab = Lab(
        "keychain: [{name: api, kind: bearer}]\nworkflow: [{step: a, tool: {kind: echo, value: '{{ ctx.x }}'}}]"
    ).start()
    lab.driver.patch(x=5)
    assert lab.status == "running"
    assert lab.work().status == "failed"
    lab.secrets["api"] = {"token": "here now"}
    lab.driver.retry()
    assert (lab.work().replays().status, lab.result) == ("completed", 5)


def test_every_evaluation_of_a_task_policy_is_recorded() -> None:
    """PLAYBOOK §1.3: policy.task.evaluated {matched_rule_index, action}; none without a policy."""

    def twice(config: dict[str, Any], call: ToolCall) -> Any:
        return Outcome.failed("connection", "no") if call.attempt == 1 else call.attempt

    lab = Lab(
        """
    workflow:
      - step: s
        tool:
          - {name: plain, kind: echo}
          - name: again
            kind: twice
            spec: {policy: {rules: [{when: "{{ false }}", then: {do: fail}}, {when: "{{ outcome.status == 'error' }}", then: {do: retry, delay: 0}}]}}
          - {name: give_up, kind: echo, fail: schema, spec: {policy: {rules: [{else: {then: {do: retry, attempts: 1}}}]}}}
    """,
        {"twice": twice},
    ).run()
    assert [
        (e["task"], e["attempt"], e["data"]["matched_rule_index"], e["data"]["action"])
        for e in lab.events("policy.task.evaluated")
    ] == [("again", 1, 1, "retry"), ("again", 2, None, "continue"), ("give_up", 1, 0, "fail")]
    mine = [e["type"] for e in lab.driver.events if e.get("task") == "again"]
    assert mine == [
        "task.started",
        "policy.task.evaluated",
        "task.attempt.failed",
        "policy.task.evaluated",
        "task.done",
    ]


def test_an_exponential_backoff_stays_at_its_longest_delay_however_often_it_is_tried() -> None:
    given = "attempts: 1500, delay: 1, max_delay: 0, backoff: exponential"
    lab = Lab(RETRY % given, {"net": scripted(failed())}).run()
    assert (lab.status, len(lab.tools["net"].calls)) == ("failed", 1500)
    assert lab.error["class"] == "transport"


@pytest.mark.parametrize("delay", ["inf", "nan", "soon"])
def test_a_delay_that_is_no_number_is_an_expression_error(delay: str) -> None:
    lab = Lab(RETRY % f"delay: \"{{{{ '{delay}' }}}}\"", {"net": scripted(failed())}).run()
    assert (lab.status, lab.error["class"]) == ("failed", "expression")
    assert f"{delay!r} is not a number" in lab.error["message"]
    assert lab.types("task.failed") == ["task.failed"]


def test_a_delay_of_ages_is_a_delay() -> None:
    lab = Lab(RETRY % "delay: 1e30, max_delay: 1e30", {"net": scripted(failed())}).run()
    assert lab.status == "waiting"


def test_keys_stand_in_one_order_whether_or_not_the_pipeline_was_put_down() -> None:
    text = """
    workflow:
      - step: a
        tool:
          - {name: one, kind: tool, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {x: {zebra: 1, ant: 2, be: 3}}, set_ctx: {c: {zebra: 1, ant: 2}}}}}]}}}
          - {name: pause, kind: %s, seconds: 1}
          - {name: two, kind: noop, result: ["{{ one | list }}", "{{ iter.x | list }}", "{{ ctx.c | list }}"]}
    """

    def unsorted(config: dict[str, Any], call: ToolCall) -> Any:
        return Outcome(result={"zebra": 1, "ant": 2, "be": 3})

    kept = Lab(text % "noop", {"tool": unsorted}).run()
    resumed = Lab(text % "wait", {"tool": unsorted}).run().advance(1)
    assert kept.result == resumed.result


@pytest.mark.parametrize(("answers", "attempts"), [([failed(), "ok"], 2), ([failed()], 3)])
def test_event_attempt_is_the_attempt_that_ended_the_step(answers: list[Any], attempts: int) -> None:
    text = """
    workflow:
      - step: a
        tool: {kind: net, spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, delay: 0}}]}}}
        next: {arcs: [{step: b, when: "{{ true }}", args: {n: "{{ event.attempt }}"}}]}
      - {step: b, tool: {kind: noop, result: "{{ args.n }}"}}
    """
    assert Lab(text, {"net": scripted(*answers)}).run().replays().result == attempts


def test_a_tool_that_takes_the_place_of_another_is_asked_anew() -> None:
    playbook = DIALECT.machine.load(compile_text("workflow: [{step: a, tool: {kind: own}}]").body)
    tools = ToolRegistry(plugins=False)
    performer = PipelinePerformer(tools)
    intent = OpenIntent(id="i", kind="step", params={"step": "a"})

    def said() -> tuple[bool, bool]:
        return performer.never_waits(intent, playbook), performer.is_pure(intent, playbook)

    def plain() -> int:
        return 1

    async def waits() -> int:
        return 1

    assert said() == (False, False), "nobody knows it"
    tools.tool("own", pure=True)(plain)
    assert said() == said() == (True, True)
    tools.tool("own")(plain)
    assert said() == (True, False)
    tools.tool("own")(waits)
    assert said() == (False, False)
