"""Limits never refuse a legal playbook (PLAYBOOK §5.19, §5.37; KERNEL §2): slices, references, order."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.dialects.playbook.slices import SLICES, Slices
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Cancel, Patch
from treadle.tools.protocol import ToolCall

from .harness import Lab


def block(config: dict[str, Any], call: ToolCall) -> Any:
    return "x" * config.get("size", 60_000)


def test_results_held_back_by_one_slow_item_leave_in_chunks() -> None:
    lab = Lab(
        """
    workflow:
      - step: a
        loop: {in: "{{ range(40) }}", iterator: n, spec: {mode: parallel, max_in_flight: 40}}
        tool: {kind: block}
        next: {arcs: [{step: b, args: {n: "{{ a.results | length }}"}}]}
      - {step: b, tool: {kind: noop, result: "{{ args.n }}"}}
    """,
        {"block": block},
    ).start()
    first, *others = lab.driver.open("step")
    for intent in others:
        lab.perform(intent)
    lab.perform(first).work().replays()
    assert (lab.status, lab.result) == ("completed", 40)
    assert max(len(stored.body) for stored in lab.driver.journal) < 1024 * 1024


def test_what_a_timed_out_loop_has_given_is_put_away_first() -> None:
    lab = Lab(
        """
    workflow:
      - step: a
        spec: {policy: {lifecycle: {timeout_s: 15}}}
        loop: {in: "{{ range(20) }}", iterator: n, spec: {mode: parallel, max_in_flight: 20}}
        tool: [{kind: wait, seconds: "{{ 60 if n == 0 else 0 }}"}, {kind: block}]
        next: {arcs: [{step: b, when: "{{ event.error.kind == 'timeout' }}"}]}
      - {step: b, tool: {kind: noop, result: "{{ a.results | select | list | length }}"}}
    """,
        {"block": block},
    )
    lab.run().advance(1).advance(15).replays()
    assert (lab.status, lab.result) == ("completed", 19)


MANY = """
    workflow:
      - step: a
        spec: {policy: {lifecycle: {timeout_s: 3}}}
        loop: {in: "{{ range(40) }}", iterator: n, spec: {mode: parallel, max_in_flight: 40}}
        tool: {kind: wait, seconds: 60}
        next: {arcs: [{step: b, when: "{{ event.name == 'step.failed' }}"}]}
      - {step: b, tool: {kind: echo, value: done}}
"""


def test_events_stand_in_causal_order_however_many_one_decision_has() -> None:
    lab = Lab(MANY, slices=Slices(events=20, events_hard=25)).run().advance(3).replays()
    assert (lab.status, lab.result) == ("completed", "done")
    types = lab.types()
    last = len(types) - 1 - types[::-1].index("loop.iteration.failed")
    admitted = lab.driver.events.index(lab.events("policy.admit.evaluated", step="b")[0])
    order = [last, types.index("step.failed"), types.index("next.evaluated"), admitted]
    assert order == sorted(order)
    assert types.count("loop.iteration.failed") == 40
    assert not lab.driver.run.state["backlog"]


def test_a_cancelled_run_says_so_though_events_wait_to_be_told() -> None:
    lab = Lab(MANY).run()
    lab.driver.run.state["backlog"] = [{"type": "late", "step": str(n)} for n in range(2 * SLICES.events)]
    lab.driver.feed(Cancel(reason="enough"))
    assert lab.types()[-1] == "execution.cancelled"


def long_failure(config: dict[str, Any], call: ToolCall) -> Any:
    raise ValueError(str(config.get("n", "")) + "y" * config["size"])


def test_a_long_error_fails_its_task_not_the_run() -> None:
    lab = Lab(
        """
    workflow:
      - step: a
        tool: {kind: bad, size: 3000000}
        next: {arcs: [{step: b, when: "{{ event.name == 'step.failed' }}", args: {m: "{{ event.error.message }}"}}]}
      - {step: b, tool: {kind: noop, result: "{{ args.m }}"}}
    """,
        {"bad": long_failure},
    )
    lab.run().replays()
    assert lab.status == "completed"
    assert isinstance(lab.result, str)
    assert lab.result.startswith("ValueError: yyyy")
    assert lab.result.endswith("… (3,000,000 characters)")
    assert lab.types("task.failed", "step.failed") == ["task.failed", "step.failed"]


MANY_FAIL = """
    executor: {spec: {final_step: last}}
    workflow:
      - step: fan
        next: {spec: {mode: inclusive}, arcs: [%s]}
      - {step: bad, tool: {kind: bad, size: 30000, n: "{{ args.n }}"}}
      - {step: last, tool: {kind: noop, result: "{{ args.failures | length }}"}}
"""


def test_many_failures_fit_into_the_summary_of_final_step() -> None:
    arcs = ", ".join(f"{{step: bad, args: {{n: {n}}}}}" for n in range(60))
    lab = Lab(MANY_FAIL % arcs, {"bad": long_failure}).run().replays()
    assert (lab.status, lab.result) == ("failed", 60)
    assert len(lab.error["details"]["failures"]) == 20
    assert max(len(stored.body) for stored in lab.driver.journal) < 512 * 1024


KEYS = ", ".join(f"k{n}: \"{{{{ 'x' * 60000 }}}}\"" for n in range(25))


WRITES = """
    workflow:
      - step: a
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {%s}}}}]}}}
        next: {arcs: [{step: b}]}
      - {step: b, tool: {kind: noop, result: "{{ ctx | length }}"}}
    """


def test_a_step_may_name_and_write_as_many_keys_as_it_likes() -> None:
    lab = Lab(WRITES % KEYS)
    lab.run().replays()
    assert (lab.status, lab.result) == ("completed", 25)


def test_a_join_takes_what_its_tokens_bring() -> None:
    branches = [f"b{n}" for n in range(25)]
    arcs = ", ".join(f"{{step: {name}}}" for name in branches)
    steps = "\n".join(
        f"      - {{step: {name}, next: {{arcs: [{{step: j, args: {{x: \"{{{{ 'x' * 60000 }}}}\"}}}}]}}}}"
        for name in branches
    )
    lab = Lab(f"""
    workflow:
      - {{step: fan, next: {{spec: {{mode: inclusive}}, arcs: [{arcs}]}}}}
{steps}
      - step: j
        spec: {{policy: {{admit: {{join: {{from: [{", ".join(branches)}], mode: all}}}}}}}}
        tool: {{kind: noop, result: "{{{{ args.tokens | map(attribute='x') | map('length') | sum }}}}"}}
    """)
    lab.run().replays()
    assert (lab.status, lab.result) == ("completed", 25 * 60_000)


def test_an_appended_list_is_recorded_by_what_it_grew_by() -> None:
    lab = Lab("""
    workflow:
      - step: a
        loop: {in: "{{ range(60) }}", iterator: n, spec: {policy: {ctx: append}}}
        tool: {kind: noop, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {k: "{{ 'x' * 5000 }}"}}}}]}}}
    """)
    lab.run().replays()
    assert (lab.status, len(lab.ctx["k"])) == ("completed", 60)
    assert [len(event["data"]["k"]["append"]) for event in lab.events("ctx.patched")] == [5000] * 60
    assert sum(len(stored.body) for stored in lab.driver.journal) < 60 * 15_000


def test_large_defaults_patches_and_sets_are_taken() -> None:
    lab = Lab(f"""
    workload: {{big: {"y" * 1_500_000}}}
    workflow:
      - step: a
        set: {{ctx.big: "{{{{ 'x' * 2000000 }}}}"}}
        next: {{arcs: [{{step: b, args: {{n: "{{{{ ctx.big | length + workload.big | length }}}}"}}}}]}}
      - {{step: b, spec: {{policy: {{admit: {{rules: [{{when: "{{{{ ctx.go | length == 2000000 }}}}", then: {{allow: true}}}}]}}}}}}, tool: {{kind: noop, result: "{{{{ args.n }}}}"}}}}
    """)
    lab.run()
    lab.driver.patch(go="z" * 2_000_000)
    lab.work().replays()
    assert (lab.status, lab.result) == ("completed", 3_500_000)


@pytest.mark.parametrize("text", ["{{ 2**70 }}", "{{ 1e308 * 10 }}"])
def test_a_number_outside_the_data_model_is_an_error_of_its_expression(text: str) -> None:
    for place in ("set: {ctx.x: %r}", "next: {arcs: [{step: b, args: {x: %r}}]}"):
        lab = Lab(
            f"workflow: [{{step: a, tool: {{kind: noop}}, {place % text}}}, {{step: b, tool: {{kind: noop}}}}]"
        ).run()
        assert (lab.status, lab.error["class"], lab.error["where"]) == ("failed", "expression", "a")
        assert text in lab.error["message"]
        assert lab.types("step.done") == ["step.done"]
    lab = Lab(
        f"workflow: [{{step: a, loop: {{in: '{{{{ [{text[3:-3]}] }}}}', iterator: n}}, tool: {{kind: noop}}}}]"
    ).run()
    assert (lab.error["class"], lab.error["where"]) == ("expression", "a")


def test_a_sum_beyond_64_bits_fails_its_step_and_says_so() -> None:
    lab = Lab("""
    workflow:
      - step: a
        loop: {in: [1, 2, 3], iterator: n, spec: {policy: {reduce: sum}}}
        tool: {kind: noop, result: 9223372036854775807}
    """).run()
    assert (lab.error["code"], lab.error["where"]) == ("SCHEMA", "a")
    assert len(lab.events("loop.iteration.done")) == 3


@pytest.mark.parametrize("data", [[1], "x", None, {"": 1}, {"a..b": 1}, {"a.": 1}])
def test_a_patch_that_is_none_is_refused(data: Any) -> None:
    lab = Lab("workflow: [{step: a, tool: {kind: wait, seconds: 9}}]").run()
    with pytest.raises(TreadleError) as caught:
        lab.driver.feed(Patch(data=data))
    assert caught.value.code == "INPUT_INVALID"
