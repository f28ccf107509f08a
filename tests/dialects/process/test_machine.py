"""What a run does, step by step, without an engine. One test per rule of PROCESS.md and the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle.kernel.errors import NotWaiting, TreadleError, Unsupported
from treadle.kernel.model import make_reference
from treadle.testing.driver import START_NS, Driver

Started = Callable[..., Driver]


def results(driver: Driver) -> Any:
    return driver.view()["results"]


def business(driver: Driver) -> Any:
    return driver.view()["state"]


# --- pure steps -----------------------------------------------------------------------------------


def test_pure_steps_share_one_record(started: Started) -> None:
    d = started(
        "steps: [{set: {state.a: 1}}, {if: {$: state.a == 1}, then: [{set: {state.b: 2}}]}, {wait: 1s}]"
    )
    assert len(d.journal) == 1
    assert business(d) == {"a": 1, "b": 2}
    assert d.status == "waiting"


def test_set_makes_parents_and_reads_the_values_from_before(started: Started) -> None:
    d = started(
        "steps: [{set: {state.a: 1, state.b: 2, state.x.y.z: 5}}, {set: {state.a: {$: state.b}, state.b: {$: state.a}}}]"
    )
    assert business(d) == {"a": 2, "b": 1, "x": {"y": {"z": 5}}}


def test_set_inside_something_else_is_an_expression_error(started: Started) -> None:
    d = started("steps: [{set: {state.a: 5}}, {set: {state.a.b: 1}}]")
    assert d.status == "failed"
    assert d.run.error is not None
    assert d.run.error["class"] == "expression"
    assert d.run.error["where"] == "steps[1]"


def test_values_are_copied_not_shared(started: Started) -> None:
    d = started(
        "steps: [{set: {state.a: {x: 1}}}, {set: {state.b: {$: state.a}, state.all: {$: state}}}, {wait: 1s}, {set: {state.b.x: 2, state.a.y: 3}}, {wait: 1s}]"
    )
    d.advance(1)
    assert business(d) == {"a": {"x": 1, "y": 3}, "b": {"x": 2}, "all": {"a": {"x": 1}}}


def test_reference_goes_with_the_commit(started: Started) -> None:
    d = started(
        "steps: [{reference: {$: start.n}}, {set: {state.r: {$: run.reference}}}, {wait: 1s}]", {"n": 12}
    )
    assert d.run.reference == "12"
    assert business(d) == {"r": "12"}


def test_run_root(started: Started) -> None:
    d = started(
        "dialect: process\nname: wf\nversion: 2.0.0\nsteps: [{set: {state.r: {$: run}}}, {wait: 1s}]",
        reference="R",
    )
    assert business(d)["r"] == {
        "id": "r1",
        "workflow": "wf",
        "version": "2.0.0",
        "reference": "R",
        "started_at": "2027-01-15T08:00:00.000000Z",
    }


def test_now_is_the_recorded_time(started: Started) -> None:
    d = started("steps: [{wait: 90s}, {complete: {$: now()}}]")
    d.advance(90)
    assert d.run.result == "2027-01-15T08:01:30.000000Z"


def test_one_branch_is_taken(started: Started) -> None:
    text = "steps: [{if: {$: start.n > 1}, then: [{set: {state.x: then}}], else: [{set: {state.x: else}}]}, {wait: 1s}]"
    assert business(started(text, {"n": 2})) == {"x": "then"}
    assert business(started(text, {"n": 1})) == {"x": "else"}


def test_the_last_step_completes_with_null(started: Started) -> None:
    d = started("steps: [{set: {state.a: 1}}]")
    assert (d.status, d.run.result) == ("completed", None)


def test_complete_ends_from_anywhere(started: Started) -> None:
    d = started(
        "steps: [{repeat: {each: i, in: [1, 2, 3], do: [{if: {$: i == 2}, then: [{complete: {at: {$: i}}}]}, {set: {state.last: {$: i}}}]}}, {fail: no}]"
    )
    assert (d.status, d.run.result) == ("completed", {"at": 2})
    assert business(d) == {"last": 1}


def test_fail_says_where_and_why(started: Started) -> None:
    d = started("steps: [{fail: {$: \"concat('no ', start.x)\"}}]", {"x": "quote"})
    assert d.status == "failed"
    assert d.run.error == {
        "class": "user",
        "code": "FAILED",
        "message": "no quote",
        "where": "steps[0]",
        "details": {},
    }
    d = started("steps: [{fail: {message: m, code: MY_CODE, details: {a: {$: start.x}}}}]", {"x": 1})
    assert d.run.error is not None
    assert (d.run.error["code"], d.run.error["details"]) == ("MY_CODE", {"a": 1})


def test_an_expression_error_fails_the_run(started: Started) -> None:
    d = started(
        "steps: [{set: {state.a: 1}}, {if: {$: 'true'}, then: [{set: {state.b: {$: state.a + state.missing}}}]}]"
    )
    assert d.status == "failed"
    assert d.run.error is not None
    assert d.run.error["class"] == "expression"
    assert d.run.error["where"] == "steps[1].then[0]"
    assert d.run.error["details"]["expression"] == "state.a + state.missing"
    assert business(d) == {"a": 1}


@pytest.mark.parametrize(
    "step",
    [
        "{if: {$: state.x + 1}, then: []}",
        "{repeat: {each: i, in: {$: start}, do: []}}",
        "{repeat: {while: {$: state.x + 1}, max: 3, do: []}}",
        "{repeat: {until: {$: state.x + 1}, max: 3, do: []}}",
        "{wait: {$: start.n}}",
        "{wait: {$: \"'soon'\"}}",
        "{wait: {until: {$: \"'soon'\"}}}",
        "{call: {transport: a, payload: {$: state.x + 1}}}",
        "{child: {workflow: w, input: {$: state.x + 1}}}",
        "{reference: {$: '[1]'}}",
        "{complete: {$: state.x + 1}}",
        "{fail: {$: state.x + 1}}",
    ],
)
def test_an_expression_error_anywhere_names_its_step(started: Started, step: str) -> None:
    d = started(f"steps: [{{set: {{state.ok: 1}}}}, {step}]", {"n": 5})
    assert d.status == "failed"
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["where"]) == ("expression", "steps[1]")


# --- loops ----------------------------------------------------------------------------------------


def test_each_binds_item_and_indexes(started: Started) -> None:
    d = started(
        """
steps:
  - set: {state.out: []}
  - repeat:
      each: a
      in: [x, y]
      do:
        - repeat:
            each: b
            in: [1, 2]
            do:
              - set: {state.out: {$: "merge({o: state.out}, {}).o"}, state.last: {$: "[a, a_index, b, b_index, item_index]"}}
        - set: {state.outer: {$: "[a, item_index]"}}
"""
    )
    assert business(d)["last"] == ["y", 1, 2, 1, 1]
    assert business(d)["outer"] == ["y", 1]


def test_inner_loop_name_hides_the_outer(started: Started) -> None:
    d = started(
        "steps: [{repeat: {each: i, in: [1], do: [{repeat: {each: i, in: [2], do: [{set: {state.inner: {$: i}}}]}}, {set: {state.outer: {$: i}}}]}}]"
    )
    assert business(d) == {"inner": 2, "outer": 1}


def test_each_keeps_its_items_while_it_waits(started: Started) -> None:
    d = started(
        "steps: [{set: {state.list: [1, 2]}}, {repeat: {each: i, in: {$: state.list}, do: [{call: {transport: a, payload: {$: i}}}, {set: {state.list: []}}]}}, {complete: done}]"
    )
    assert d.open("call")[0].params["payload"] == 1
    d.ok(d.open("call")[0])
    assert d.open("call")[0].params["payload"] == 2
    d.ok(d.open("call")[0])
    assert d.run.result == "done"


def test_each_over_nothing(started: Started) -> None:
    assert (
        started("steps: [{repeat: {each: i, in: {$: start.none}, do: [{fail: no}]}}]").status == "completed"
    )
    assert started("steps: [{repeat: {each: i, in: [], do: [{fail: no}]}}]").status == "completed"


@pytest.mark.parametrize(
    ("kind", "condition", "rounds"), [("while", "state.n < 3", 3), ("until", "state.n >= 3", 3)]
)
def test_while_and_until(started: Started, kind: str, condition: str, rounds: int) -> None:
    d = started(
        f"steps: [{{set: {{state.n: 0}}}}, {{repeat: {{{kind}: {{$: {condition}}}, max: 3, do: [{{set: {{state.n: {{$: state.n + 1}}}}}}]}}}}]"
    )
    assert d.status == "completed"
    assert business(d)["n"] == rounds


def test_while_checks_before_and_until_after(started: Started) -> None:
    d = started(
        "steps: [{repeat: {while: {$: 'false'}, max: 1, do: [{set: {state.w: 1}}]}}, {repeat: {until: {$: 'true'}, max: 1, do: [{set: {state.u: 1}}]}}]"
    )
    assert business(d) == {"u": 1}


@pytest.mark.parametrize(
    "loop", ["while: {$: 'true'}, max: 3", "until: {$: 'false'}, max: 3", "each: i, in: [1, 2, 3, 4], max: 3"]
)
def test_reaching_max_fails_the_run(started: Started, loop: str) -> None:
    d = started(
        f"steps: [{{set: {{state.n: 0}}}}, {{repeat: {{{loop}, do: [{{set: {{state.n: {{$: state.n + 1}}}}}}]}}}}]"
    )
    assert d.status == "failed"
    assert d.run.error is not None
    assert (d.run.error["code"], d.run.error["where"]) == ("REPEAT_MAX", "steps[1]")
    assert business(d)["n"] == 3


def test_a_long_computation_is_sliced(started: Started) -> None:
    """However long a loop without waits, one record never computes without bound."""
    d = started(
        "steps: [{set: {state.n: 0}}, {repeat: {while: {$: state.n < 12000}, max: 100000, do: [{set: {state.n: {$: state.n + 1}}}]}}]"
    )
    assert d.status == "completed"
    assert business(d)["n"] == 12000
    assert 3 <= len(d.journal) <= 20


# --- calls ----------------------------------------------------------------------------------------

CALL = """
steps:
  - call: {transport: http, url: {$: "concat('http://x/', start.id)"}, headers: {h: {$: start.id}}, payload: {id: {$: start.id}}, into: quote, timeout: 10s,
           retry: {attempts: 3, backoff: exponential, delay: 2s}, deadline: 1m,
           on_success: [{set: {state.branch: success}}],
           on_failure: [{set: {state.branch: failure, state.error: {$: error}}}],
           on_timeout: [{set: {state.branch: timeout, state.error: {$: error}}}]}
  - set: {state.after: true}
  - wait: 1h
"""


def test_a_call_is_a_wait_boundary(started: Started) -> None:
    d = started(CALL, {"id": "7"})
    (call,) = d.open()
    assert d.status == "waiting"
    assert call.kind == "call"
    assert call.params == {
        "name": "quote",
        "path": "steps[0]",
        "timeout": "10s",
        "transport": "http",
        "url": "http://x/7",
        "headers": {"h": "7"},
        "payload": {"id": "7"},
    }
    assert call.due_ns == START_NS + 10 * 10**9
    d.ok(call, {"total": 5}, events=[{"type": "call.response", "status": 201, "headers": {"a": "b"}}])
    assert results(d) == {"quote": {"total": 5}, "quote_meta": {"status": 201, "headers": {"a": "b"}}}
    assert business(d) == {"branch": "success", "after": True}


def test_attempts_share_the_first_key_and_delays_are_timers(started: Started) -> None:
    d = started(CALL, {"id": "7"})
    first = d.open("call")[0]
    d.error(first, "boom", code="HTTP_500")
    (timer,) = d.open()
    assert (timer.kind, timer.due_ns) == ("timer", START_NS + 2 * 10**9)
    assert d.status == "waiting"
    d.advance(2)
    second = d.open("call")[0]
    assert second.id != first.id
    assert second.idempotency_key == first.id
    assert second.params == first.params
    d.timeout(second)
    (timer,) = d.open()
    assert timer.due_ns == d.now_ns + 4 * 10**9
    d.advance(4)
    third = d.open("call")[0]
    assert third.idempotency_key == first.id
    d.error(third, "boom", code="HTTP_503")
    assert business(d)["branch"] == "failure"
    assert business(d)["error"]["class"] == "transport"
    assert business(d)["error"]["code"] == "HTTP_503"
    assert business(d)["after"] is True


def test_the_last_attempt_picks_the_branch(started: Started) -> None:
    d = started(CALL, {"id": "7"})
    d.error(d.open("call")[0])
    d.advance(2)
    d.error(d.open("call")[0])
    d.advance(4)
    d.advance(10)
    assert business(d)["branch"] == "timeout"
    assert business(d)["error"]["class"] == "timeout"


def test_the_deadline_bounds_the_step(started: Started) -> None:
    d = started(
        "steps: [{call: {transport: a, timeout: 20s, deadline: 30s, retry: {attempts: 9, delay: 5s}, on_timeout: [{complete: late}]}}]"
    )
    d.advance(20)
    (timer,) = d.open()
    assert timer.kind == "timer"
    d.advance(5)
    (call,) = d.open("call")
    assert call.due_ns == START_NS + 30 * 10**9
    d.advance(5)
    assert (d.status, d.run.result) == ("completed", "late")
    assert d.now_ns == START_NS + 30 * 10**9


def test_no_retry_that_would_start_after_the_deadline(started: Started) -> None:
    d = started(
        "steps: [{call: {transport: a, deadline: 10s, retry: {attempts: 9, delay: 10s}, on_failure: [{complete: failed}], on_timeout: [{complete: late}]}}]"
    )
    d.error(d.open("call")[0])
    assert d.run.result == "failed"


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        ("{attempts: 5, backoff: none, delay: 2s}", [2, 2, 2, 2]),
        ("{attempts: 5, backoff: linear, delay: 2s}", [2, 4, 6, 8]),
        ("{attempts: 5, backoff: exponential, delay: 2s}", [2, 4, 8, 16]),
        ("{attempts: 5, backoff: exponential, delay: 2s, max_delay: 5s}", [2, 4, 5, 5]),
        ("{attempts: 3}", [1, 1]),
        ("{attempts: 1}", []),
    ],
)
def test_backoff(started: Started, retry: str, delays: list[int]) -> None:
    d = started(f"steps: [{{call: {{transport: a, retry: {retry}}}}}]")
    seen = []
    while d.open("call"):
        d.error(d.open("call")[0])
        for timer in d.open("timer"):
            seen.append((timer.due_ns - d.now_ns) / 10**9)
            d.advance(seen[-1])
    assert seen == delays
    assert d.status == "stalled"


def test_jitter_is_between_half_and_all_and_replays(started: Started) -> None:
    d = started("steps: [{call: {transport: a, retry: {attempts: 2, delay: 100s, jitter: true}}}]")
    d.error(d.open("call")[0])
    assert 50 * 10**9 <= d.open("timer")[0].due_ns - START_NS <= 100 * 10**9


def test_on_failure_also_takes_a_timeout_without_its_own_branch(started: Started) -> None:
    d = started("steps: [{call: {transport: a, timeout: 1s, on_failure: [{complete: {$: error.class}}]}}]")
    d.advance(1)
    assert d.run.result == "timeout"


def test_error_can_only_be_read_in_its_branch(started: Started) -> None:
    d = started(
        "steps: [{call: {transport: a, on_failure: [{set: {state.in: {$: error.code}}}]}}, {set: {state.after: {$: error}}}, {wait: 1s}]"
    )
    d.error(d.open("call")[0], code="X")
    assert business(d) == {"in": "X", "after": None}


# --- stalled --------------------------------------------------------------------------------------


def stalled(started: Started) -> Driver:
    d = started(
        "steps: [{set: {state.a: 1}}, {call: {transport: a, payload: {n: {$: state.a}}, into: r}}, {complete: {$: result.r}}]"
    )
    d.error(d.open("call")[0], "no route", code="CONNECT")
    assert d.status == "stalled"
    assert d.run.error is not None
    assert (d.run.error["class"], d.run.error["code"], d.run.error["where"]) == (
        "transport",
        "CONNECT",
        "steps[1]",
    )
    assert d.open() == []
    return d


def test_retry_goes_on_from_the_same_step(started: Started) -> None:
    d = stalled(started)
    first = d.journal[0].record()["opened"][0]
    d.retry()
    (call,) = d.open("call")
    assert (d.status, d.run.error) == ("waiting", None)
    assert call.params["payload"] == {"n": 1}
    assert call.idempotency_key == first["id"]
    d.ok(call, 9)
    assert (d.status, d.run.result) == ("completed", 9)


def test_retry_with_another_input(started: Started) -> None:
    d = stalled(started)
    d.retry(input={"n": 2})
    (call,) = d.open("call")
    assert call.params["payload"] == {"n": 2}
    assert call.idempotency_key is None, "another request must not be taken for the first"
    d.error(call)
    d.retry()
    assert d.open("call")[0].params["payload"] == {"n": 1}


def test_retry_after_a_patch_sends_what_is_true_now(started: Started) -> None:
    d = stalled(started)
    d.patch(a=5)
    d.retry()
    assert d.open("call")[0].params["payload"] == {"n": 5}


def test_skip_goes_on_with_a_value(started: Started) -> None:
    d = stalled(started)
    d.retry(skip={"by": "hand"})
    assert (d.status, d.run.result) == ("completed", {"by": "hand"})


def test_fail_gives_up(started: Started) -> None:
    d = stalled(started)
    d.retry(fail="not worth it")
    assert d.status == "failed"
    assert d.run.error is not None
    assert d.run.error["message"] == "not worth it"
    assert d.run.error["details"]["cause"]["code"] == "CONNECT"


def test_only_a_stalled_run_can_be_retried(started: Started) -> None:
    d = started("steps: [{wait: 1h}]")
    before = len(d.journal)
    with pytest.raises(NotWaiting):
        d.retry()
    assert len(d.journal) == before
    d = stalled(started)
    with pytest.raises(Unsupported):
        d.retry(skip=1, input=2)
    with pytest.raises(Unsupported):
        d.retry(unknown=1)
    assert d.status == "stalled"


def test_other_branches_go_on_while_one_is_stalled(started: Started) -> None:
    d = started(
        "steps: [{fork: {x: [{call: {transport: a, into: x}}], y: [{call: {transport: b, into: y}}]}}, {complete: {$: '[result.x, result.y]'}}]"
    )
    one, two = d.open("call")
    d.error(one)
    assert d.status == "stalled"
    d.ok(two, "y")
    assert d.status == "stalled"
    d.retry(skip="x")
    assert d.run.result == ["x", "y"]


def test_with_several_stalled_steps_a_person_says_which(started: Started) -> None:
    d = started(
        "steps: [{fork: {x: [{call: {transport: a, into: x}}], y: [{call: {transport: b, into: y}}]}}, {complete: {$: '[result.x, result.y]'}}]"
    )
    for call in d.open("call"):
        d.error(call)
    with pytest.raises(Unsupported, match="--from"):
        d.retry(skip=1)
    with pytest.raises(NotWaiting):
        d.retry(**{"from": "steps[9]", "skip": 1})
    d.retry(**{"from": "steps[0].fork.y[0]", "skip": "y"})
    assert d.status == "stalled"
    d.retry()
    d.ok(d.open("call")[0], "x")
    assert d.run.result == ["x", "y"]


# --- tasks ----------------------------------------------------------------------------------------


def test_a_task_is_opened_with_all_a_person_needs(started: Started) -> None:
    d = started(
        """
tasks:
  approve: {roles: [boss, ceo], type: form, title: Approve, payload: {n: {$: start.n}}, schema: {type: object}, timeout: 3d, escalate_to: [ceo]}
steps: [{reference: R1}, {task: approve}, {complete: {$: payload}}]
""",
        {"n": 4},
    )
    (task,) = d.open()
    assert task.kind == "task"
    assert task.params == {
        "name": "approve",
        "type": "form",
        "title": "Approve",
        "roles": ["boss", "ceo"],
        "payload": {"n": 4},
        "schema": {"type": "object"},
        "reference": "R1",
        "escalate_to": ["ceo"],
        "path": "steps[1]",
    }
    assert task.due_ns == START_NS + 3 * 86400 * 10**9
    d.ok(task, {"answer": "yes"}, by="ann")
    assert d.run.result == {"answer": "yes"}


def test_reactivation_is_a_new_token(started: Started) -> None:
    d = started(
        "tasks: {form: {roles: [a], payload: {round: {$: state.n}}}}\nsteps: [{set: {state.n: 0}}, {repeat: {until: {$: payload.ok}, max: 5, do: [{set: {state.n: {$: state.n + 1}}}, {task: form}]}}, {complete: {$: state.n}}]"
    )
    tokens = []
    for answer in (False, False, True):
        (task,) = d.open("task")
        tokens.append(task.id)
        d.ok(task, {"ok": answer})
    assert len(set(tokens)) == 3
    assert d.run.result == 3


def test_on_timeout_of_a_task(started: Started) -> None:
    d = started(
        "tasks: {a: {timeout: 1h, escalate_to: [x], on_timeout: [{set: {state.late: {$: error.class}}}]}}\nsteps: [{task: a}, {complete: {$: state.late}}]"
    )
    d.advance(3600)
    assert d.run.result == "timeout"


def test_a_task_is_escalated(started: Started) -> None:
    d = started(
        "tasks: {a: {roles: [clerk], timeout: 1h, escalate_to: [boss]}}\nsteps: [{task: a}, {complete: {$: payload}}]"
    )
    first = d.open("task")[0]
    d.advance(3600)
    (second,) = d.open("task")
    assert second.id != first.id
    assert second.params["roles"] == ["boss"]
    assert second.due_ns is None
    assert d.status == "waiting"
    d.ok(second, 1)
    assert d.run.result == 1


def test_an_expired_task_stalls_and_retry_opens_it_anew(started: Started) -> None:
    d = started("tasks: {a: {roles: [clerk], timeout: 1h}}\nsteps: [{task: a}, {complete: {$: payload}}]")
    first = d.open("task")[0]
    d.advance(3600)
    assert d.status == "stalled"
    assert d.run.error is not None
    assert d.run.error["class"] == "timeout"
    d.retry()
    (again,) = d.open("task")
    assert again.id != first.id
    assert again.due_ns == d.now_ns + 3600 * 10**9
    d.ok(again, "fine")
    assert d.run.result == "fine"


def test_a_task_declared_for_a_loop_reads_its_item(started: Started) -> None:
    d = started(
        "tasks: {a: {payload: {doc: {$: doc}}}}\nsteps: [{repeat: {each: doc, in: [p, q], do: [{task: a}]}}]"
    )
    assert d.open("task")[0].params["payload"] == {"doc": "p"}
    d.ok(d.open("task")[0])
    assert d.open("task")[0].params["payload"] == {"doc": "q"}


# --- timers and signals ---------------------------------------------------------------------------


def test_waits(started: Started) -> None:
    d = started(
        "steps: [{wait: PT2S}, {wait: {$: \"concat(start.n, 'm')\"}}, {wait: {until: '2027-01-15T09:00:00Z'}}, {wait: {until: {$: start.at}}}]",
        {"n": 5, "at": "2027-01-15T08:30:00Z"},
    )
    assert d.open("timer")[0].due_ns == START_NS + 2 * 10**9
    d.advance(2)
    assert d.open("timer")[0].due_ns == d.now_ns + 300 * 10**9
    d.advance(300)
    assert d.open("timer")[0].due_ns == START_NS + 3600 * 10**9
    d.advance(3298)
    # The last instant has passed already: its timer fires at once.
    assert d.journal[-2].record()["opened"][0]["due_ns"] == START_NS + 1800 * 10**9
    assert d.status == "completed"


def test_await_takes_a_signal(started: Started) -> None:
    d = started(
        "steps: [{await: {signal: docs, into: d, timeout: 7d}}, {await: go}, {complete: {$: '[result.d, payload]'}}]"
    )
    assert d.open("signal")[0].params == {"name": "docs", "path": "steps[0]"}
    d.signal("docs", {"a": 1})
    d.signal("go", "now")
    assert d.run.result == [{"a": 1}, "now"]


def test_early_signals_are_kept_in_order(started: Started) -> None:
    d = started(
        'steps: [{wait: 1h}, {repeat: {each: i, in: [1, 2], do: [{await: {signal: s, into: r}}, {set: {state.x: {$: "concat(state.x, result.r)"}}}]}}, {complete: {$: state.x}}]'
    )
    d.signal("s", "a").signal("other", "z").signal("s", "b")
    d.advance(3600)
    assert d.run.result == "ab"


def test_two_awaits_are_served_oldest_first(started: Started) -> None:
    d = started(
        "steps: [{fork: {x: [{await: {signal: s, into: x}}], y: [{await: {signal: s, into: y}}]}}, {complete: {$: '[result.x, result.y]'}}]"
    )
    d.signal("s", 1).signal("s", 2)
    assert d.run.result == [1, 2]


def test_an_await_that_times_out(started: Started) -> None:
    d = started("steps: [{await: {signal: s, timeout: 1h, on_timeout: [{complete: {$: error.class}}]}}]")
    d.advance(3600)
    assert d.run.result == "timeout"
    d = started("steps: [{await: {signal: s, timeout: 1h, into: r}}, {complete: {$: result.r}}]")
    d.advance(3600)
    assert d.status == "stalled"
    d.retry()
    d.signal("s", 5)
    assert d.run.result == 5


# --- children -------------------------------------------------------------------------------------


def test_a_child_gives_its_result(started: Started) -> None:
    d = started(
        "steps: [{child: {workflow: Sub@1.0.0, input: {n: {$: start.n}}, into: sub, on_success: [{set: {state.ok: true}}]}}, {complete: {$: result.sub}}]",
        {"n": 1},
    )
    (child,) = d.open("child")
    assert child.params == {
        "name": "Sub@1.0.0",
        "workflow": "Sub@1.0.0",
        "input": {"n": 1},
        "into": "sub",
        "path": "steps[0]",
    }
    d.ok(child, {"run": "c1", "workflow": "Sub", "version": "1.0.0", "result": {"x": 2}})
    assert d.run.result == {"x": 2}


def test_a_failed_child(started: Started) -> None:
    d = started("steps: [{child: {workflow: Sub, on_failure: [{complete: {$: error.message}}]}}]")
    d.error(d.open("child")[0], "child broke", cls="user", code="X")
    assert d.run.result == "child broke"
    d = started("steps: [{child: {workflow: Sub, into: sub}}, {complete: {$: result.sub}}]")
    d.error(d.open("child")[0], "child broke", cls="user", code="X")
    assert d.status == "stalled"
    assert d.run.error is not None
    assert (d.run.error["code"], d.run.error["message"]) == ("X", "child broke")
    d.retry(input={"other": 1})
    assert d.open("child")[0].params["input"] == {"other": 1}


def test_continue_with_starts_and_goes_on(started: Started) -> None:
    d = started("steps: [{continue_with: {workflow: Archive, input: {a: 1}}}, {complete: done}]")
    (start,) = d.open("start")
    assert start.params["workflow"] == "Archive"
    assert start.params["input"] == {"a": 1}
    d.ok(start, {"run": "n1"})
    assert d.run.result == "done"
    d = started("steps: [{continue_with: {workflow: Nobody}}, {complete: done}]")
    d.error(d.open("start")[0], "no such workflow", cls="definition", code="UNKNOWN_WORKFLOW")
    assert d.status == "stalled"


# --- forks ----------------------------------------------------------------------------------------


def test_fork_joins_when_all_are_done(started: Started) -> None:
    d = started(
        "steps: [{fork: {l: [{call: {transport: a, into: l}}], r: [{call: {transport: b, into: r}}, {wait: 1s}], n: [{set: {state.n: 1}}]}}, {complete: {$: '[result.l, result.r, state.n]'}}]"
    )
    left, right = d.open("call")
    assert (left.params["transport"], right.params["transport"]) == ("a", "b")
    d.ok(right, "R").ok(left, "L")
    assert d.status == "waiting"
    d.advance(1)
    assert d.run.result == ["L", "R", 1]


def test_payload_belongs_to_the_branch(started: Started) -> None:
    text = "tasks: {x: {}, y: {}, z: {}}\nsteps: [{task: z}, {fork: {l: [{task: x}, {await: go}, {set: {state.l: {$: payload}}}], r: [{task: y}, {set: {state.r: {$: payload}}}], n: [{set: {state.n: {$: payload}}}]}}, {complete: {$: payload}}]"
    d = started(text)
    d.ok(d.open("task", name="z")[0], "Z")
    d.ok(d.open("task", name="x")[0], "X")
    d.ok(d.open("task", name="y")[0], "Y")
    assert business(d) == {"n": "Z", "r": "Y"}
    d.signal("go", "G")
    assert business(d)["l"] == "G"
    assert d.run.result == "G"


def test_after_the_join_payload_is_that_of_the_last_completion(started: Started) -> None:
    d = started(
        "tasks: {x: {}, y: {}}\nsteps: [{fork: {l: [{task: x}], r: [{task: y}, {wait: 1h}]}}, {complete: {$: payload}}]"
    )
    d.ok(d.open("task", name="y")[0], "Y")
    d.ok(d.open("task", name="x")[0], "X")
    d.advance(3600)
    assert d.run.result == "X"


def test_complete_in_a_branch_cancels_the_others(started: Started) -> None:
    d = started("tasks: {x: {}}\nsteps: [{fork: {l: [{task: x}], r: [{wait: 1s}, {complete: early}]}}]")
    d.advance(1)
    assert (d.status, d.run.result) == ("completed", "early")
    assert d.open() == []
    assert len(d.journal[-1].record()["cancelled"]) == 1


def test_complete_in_the_first_branch_opens_nothing_of_the_others(started: Started) -> None:
    d = started("tasks: {x: {}}\nsteps: [{fork: {l: [{task: x}], r: [{complete: early}]}}]")
    assert (d.status, d.run.result) == ("completed", "early")
    assert "opened" not in d.journal[0].record()


def test_loop_variables_and_errors_reach_into_branches(started: Started) -> None:
    d = started(
        "steps: [{repeat: {each: i, in: [7], do: [{call: {transport: a, on_failure: [{fork: {l: [{wait: 1s}, {set: {state.x: {$: '[i, error.code]'}}}]}}]}}]}}, {complete: {$: state.x}}]"
    )
    d.error(d.open("call")[0], code="E")
    d.advance(1)
    assert d.run.result == [7, "E"]


def test_a_wide_fork_is_opened_in_slices(started: Started) -> None:
    branches = ", ".join(f"b{n}: [{{call: {{transport: a, payload: {n}, into: r{n}}}}}]" for n in range(150))
    d = started(f"steps: [{{fork: {{{branches}}}}}, {{complete: {{$: result}}}}]")
    assert len(d.open("call")) == 150
    assert [call.params["payload"] for call in d.open("call")] == list(range(150))
    for call in reversed(d.open("call")):
        d.ok(call, call.params["payload"])
    assert d.run.result == {f"r{n}": n for n in range(150)}


# --- the rest -------------------------------------------------------------------------------------


def test_large_payloads_stay_references(started: Started) -> None:
    d = started(
        "steps: [{call: {transport: a, into: big}}, {set: {state.kept: {$: result.big}, state.n: {$: length(result.big.items)}}}, {repeat: {each: i, in: {$: result.big.items}, max: 5, do: [{wait: 1s}, {set: {state.last: {$: i}}}]}}, {call: {transport: b, payload: {all: {$: state.kept}}}}]"
    )
    reference = make_reference(checksum="sha256:x", size=100_000)
    d.blobs["sha256:x"] = {"items": [1, 2, 3]}
    d.ok(d.open("call")[0], reference)
    assert business(d)["kept"] == reference
    assert business(d)["n"] == 3
    d.advance(3)
    assert d.open("call")[0].params["payload"] == {"all": reference}


def test_engine_state_is_beside_business_state(started: Started) -> None:
    d = started(
        "tasks: {t: {timeout: 1h}}\nsteps: [{set: {state.a: 1}}, {repeat: {each: i, in: [1, 2, 3], do: [{if: {$: i == 2}, then: [{task: t}]}]}}]"
    )
    view = d.view()
    assert view["state"] == {"a": 1}
    engine = view["engine"]
    (place,) = engine["places"]
    assert (place["kind"], place["path"]) == ("task", "steps[1].repeat.do[0].then[0]")
    assert d.open("task")[0].params["path"] == place["path"]
    assert place["due"] == "2027-01-15T09:00:00.000000Z"
    assert engine["resume_pointer"] == {
        "entry": "task",
        "task": "t",
        "thread": "0",
        "branch": "steps[1].repeat.do[0].then",
        "next": 1,
        "iterations": [{"loop": "steps[1]", "index": 1}],
    }
    assert [frame["branch"] for frame in engine["frames"]] == [
        "steps",
        "steps[1].repeat.do",
        "steps[1].repeat.do[0].then",
    ]
    assert engine["last_event"] == {"seq": 1, "kind": "started"}
    assert d.machine.retention_ns(d.definition) == 30 * 86400 * 10**9


def test_completion_clears_engine_state(started: Started) -> None:
    d = started("tasks: {t: {timeout: 1h}}\nsteps: [{task: t}, {complete: 1}]")
    d.ok(d.open("task")[0])
    engine = d.view()["engine"]
    assert (engine["places"], engine["frames"], engine["resume_pointer"]) == ([], [], None)
    assert d.open() == []


def test_cancel_ends_the_run(started: Started) -> None:
    d = started("steps: [{fork: {a: [{wait: 1h}], b: [{await: x}]}}]")
    d.cancel("no longer needed")
    assert d.status == "cancelled"
    assert d.open() == []


def test_patch_changes_business_state_only(started: Started) -> None:
    d = started("steps: [{set: {state.a: {b: 1}}}, {wait: 1h}, {complete: {$: state}}]")
    d.patch(**{"a.c": 2, "state.d": 3})
    assert d.status == "waiting"
    d.advance(3600)
    assert d.run.result == {"a": {"b": 1, "c": 2}, "d": 3}


def test_an_event_it_does_not_know_is_refused(started: Started) -> None:
    from treadle.kernel.model import Domain

    d = started("steps: [{wait: 1h}]")
    with pytest.raises(TreadleError):
        d.feed(Domain(schema="x", value=1))
