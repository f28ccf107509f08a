"""People, children, time: approvals, calls in doubt, sub-workflows, provider retries (§4, §8)."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.agent import ProviderError, Skill
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.work.job import StaysOpen

APPROVE = {"approve": {"roles": ["lead"], "prompt": "Ship it?"}}


def data(**value: Any) -> list[dict[str, Any]]:
    return [{"data": value}]


# --- approvals ----------------------------------------------------------------------------------


def test_an_approval_opens_a_task_before_the_model_is_asked(prepared, flow):
    run = prepared(flow({"a": APPROVE, "b": {}}, "a b"), {"run": {"a": data(), "b": data()}}).start().go()
    (task,) = run.driver.open("task")
    assert run.asked() == []
    assert task.params["roles"] == ["lead"]
    assert task.params["payload"]["prompt"] == "Ship it?"
    assert run.status == "waiting"
    assert run.of("node:waiting") == [{"node": "a", "task": task.id}], "the event names the task's own id"
    assert [e["type"] for e in run.events][-2:] == ["node:enter", "node:waiting"]
    run.driver.ok(task, {"approved": True, "note": "go", "level": 3}, by="ann")
    run.go()
    assert run.asked()[0]["context"]["approval"] == {"approved": True, "note": "go", "level": 3}
    assert "approval" not in run.asked()[1]["context"], "only that node's turns see it"
    assert run.status == "completed"
    run.driver.assert_replays()


def test_a_denied_approval_skips_the_node_and_routing_goes_on(prepared, flow):
    run = prepared(flow({"a": APPROVE, "b": {}}, "a b"), {"run": {"b": data()}}).start().go()
    run.driver.ok(run.driver.open("task")[0], {"approved": False, "note": "too late"})
    run.go()
    assert run.results["a"] == {
        "status": "skipped",
        "data": {"skipped_reason": "not approved: too late"},
        "toolCalls": [],
    }
    assert run.path() == ["a", "b"]
    assert run.status == "completed"


def test_on_deny_fail_fails_it_and_a_deadline_denies(prepared, flow):
    node = {"approve": {**APPROVE["approve"], "on_deny": "fail", "timeout": "2h"}}
    run = prepared(flow({"a": node}), {"run": {}}).start().go()
    run.driver.advance(2 * 3600)
    assert run.results["a"]["data"]["error"] == "not approved: nobody answered in time"
    assert run.status == "failed"


def test_requires_comes_before_the_approval(prepared, flow):
    node = {**APPROVE, "requires": {"output_required": ["input.x"], "on_fail": "skip"}}
    run = prepared(flow({"a": node}), {"run": {}}).start().go()
    assert run.driver.open("task") == []
    assert run.status == "completed"


# --- calls in doubt -----------------------------------------------------------------------------


def mailer(sent: list[str], *, idempotent: bool = False) -> Skill:
    skill = Skill("mail", name="Mail")

    @skill.tool("send", idempotent=idempotent)
    def send(input: dict, ctx: Any) -> Any:
        sent.append(ctx.idempotency_key)
        return {"sent": True}

    return skill


def interrupted(prepared, flow, sent, **node):
    """A run whose call to `send` was started by a process that died."""
    wf = flow({"a": {"skills": ["mail"], **node}})
    script = {"run": {"a": [{"tool_calls": [{"tool": "send", "input": {"to": "x"}}], "data": {"ok": 1}}]}}
    run = prepared(wf, script, skills=(mailer(sent),)).start().go(2)
    (call,) = run.driver.open("call")
    run.checkpoints[call.id] = {"started": True}
    return run, call


def test_a_call_in_doubt_waits_for_a_decision(prepared, flow):
    sent: list[str] = []
    run, call = interrupted(prepared, flow, sent)
    run.go()
    assert sent == []
    (task,) = run.driver.open("task")
    assert (task.params["name"], task.params["type"]) == ("in_doubt", "in_doubt")
    assert task.params["payload"]["tool"] == "send"
    assert run.of("node:waiting") == [{"node": "a", "task": task.id}]
    run.driver.ok(task, {"decision": "retry"})
    run.go()
    assert sent == [call.id], "repeated under the key of the first call"
    assert run.status == "completed"
    assert len(run.of("tool:call")) == len(run.of("tool:result")) == 1
    run.driver.assert_replays()


@pytest.mark.parametrize(
    ("policy", "status", "count"), [("retry", "success", 1), ("skip", "success", 0), ("fail", "failed", 0)]
)
def test_a_policy_decides_without_asking(prepared, flow, policy, status, count):
    sent: list[str] = []
    run, _ = interrupted(prepared, flow, sent, in_doubt=policy)
    run.go()
    assert run.driver.open("task") == []
    assert run.results["a"]["status"] == status
    assert len(sent) == count
    if policy == "skip":
        assert run.results["a"]["toolCalls"][0]["error"].startswith("in doubt")


def test_an_idempotent_call_is_simply_repeated(prepared, flow):
    sent: list[str] = []
    wf = flow({"a": {"skills": ["mail"]}})
    script = {"run": {"a": [{"tool_calls": [{"tool": "send", "input": {}}], "data": {}}]}}
    run = prepared(wf, script, skills=(mailer(sent, idempotent=True),)).start().go(2)
    (call,) = run.driver.open("call")
    run.checkpoints[call.id] = {"started": True}
    run.go()
    assert sent == [call.id]


def test_a_call_whose_tool_is_unknown_here_stays_open(prepared, flow):
    sent: list[str] = []
    run, call = interrupted(prepared, flow, sent)
    run.work.skills._registered.clear()
    with pytest.raises(StaysOpen, match="mail"):
        run.perform(call)
    assert run.driver.open("call") == [call]


# --- children -----------------------------------------------------------------------------------


def test_a_node_may_run_another_workflow(prepared, flow):
    child = {
        "name": "Child",
        "run": {"workflow": "sub", "input": {"n": "{{ a.n }}", "text": "got {{ a.n }} of {{ input.max }}"}},
    }
    wf = flow({"a": {}}, "a b", "b c")
    wf["nodes"]["b"] = child
    wf["nodes"]["c"] = {"name": "C", "instruction": "x"}
    run = prepared(wf, {"run": {"a": data(n=[1, 2]), "c": data()}}).start({"max": 3}).go()
    (intent,) = run.driver.open("child")
    assert intent.params["workflow"] == "sub"
    assert intent.params["input"] == {"n": [1, 2], "text": "got 1,2 of 3"}
    run.driver.ok(intent, {"run": "x", "workflow": "sub", "version": None, "result": {"done": True}})
    run.go()
    assert run.results["b"]["data"] == {"done": True}
    assert run.asked("run")[-1]["context"]["b"] == {"done": True}
    run.driver.assert_replays()


def test_a_child_that_fails_fails_its_node(prepared, flow):
    wf = flow({"a": {}})
    wf["nodes"]["a"] = {"name": "A", "run": {"workflow": "sub"}}
    run = prepared(wf, {"run": {}}).start({"k": 1}).go()
    assert run.driver.open("child")[0].params["input"] == {"k": 1}
    run.driver.error(run.driver.open("child")[0], "it broke")
    assert run.results["a"]["status"] == "failed"
    assert "sub: it broke" in run.results["a"]["data"]["error"]


# --- providers that do not answer ---------------------------------------------------------------


class Flaky:
    """Fails a number of times, then answers."""

    default_model = small_model = None
    keeps_history = False

    def __init__(self, failures: list[ProviderError]) -> None:
        self.failures, self.calls = failures, 0

    async def turn(self, request: Any) -> Any:
        from treadle.agent import TurnReply

        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return TurnReply(data={"ok": True})


def test_rate_limits_are_waited_out_with_timers(prepared, flow):
    limited = ProviderError("slow down", retryable=True, retry_after_s=7.5)
    model = Flaky([limited, ProviderError("503", retryable=True)])
    run = prepared(flow("a"), model).start().go()
    (timer,) = run.driver.open("timer")
    assert timer.due_ns == run.driver.now_ns + 7_500_000_000, "the server's own Retry-After"
    assert run.status == "waiting"
    run.driver.advance(7.5)
    run.go()
    run.driver.advance(2)
    run.go()
    assert (run.status, model.calls) == ("completed", 3)
    run.driver.assert_replays()


def test_four_attempts_are_the_limit(prepared, flow):
    model = Flaky([ProviderError("503", retryable=True) for _ in range(4)])
    run = prepared(flow("a b", "a b"), model).start().go()
    pauses = []
    while timers := run.driver.open("timer"):
        pauses.append((timers[0].due_ns - run.driver.now_ns) / 10**9)
        run.driver.advance(pauses[-1])
        run.go()
    assert pauses == [1, 2, 4]
    assert run.results["a"] == {"status": "failed", "data": {"error": "503"}, "toolCalls": []}
    assert run.results["b"]["status"] == "success", "the node after it begins with four of its own"
    assert model.calls == 4 + 1


def test_everything_else_fails_at_once(play, flow):
    run = play(flow("a"), Flaky([ProviderError("bad request")]))
    assert run.results["a"]["data"]["error"] == "bad request"


# --- a person sends a failed run on -------------------------------------------------------------


def test_retry_goes_on_from_the_first_failed_node(prepared, flow):
    script = {
        "run": {
            "a": data(n=1),
            "b": [{"status": "failed", "data": {"error": "x"}}, {"data": {}}],
            "c": data(),
        }
    }
    wf = flow("a b c", "a b", "b c", on_failure="halt")
    run = prepared(wf, script).start().go()
    assert run.status == "failed"
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b", "b", "c"]
    assert run.asked("run")[-1]["context"] == {"input": {}, "a": {"n": 1}, "b": {}}


def test_retry_resolves_sources_again_if_they_were_the_trouble(prepared, flow, tmp_path):
    run = (
        prepared(flow({"a": {"instruction": "./late.md"}}), {"run": {"a": data()}}, base=str(tmp_path))
        .start()
        .go()
    )
    assert run.error["code"] == "SOURCE_FILE_NOT_FOUND"
    (tmp_path / "late.md").write_text("Here it is.")
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.asked("run")[0]["instruction"] == "Here it is."
    run.driver.assert_replays()


def test_retry_asks_a_route_that_failed_and_nothing_that_was_answered(prepared, flow):
    wf = flow("a b c", "a b", ("b", "c", {"when": "x"}))
    script = {
        "run": {"a": data(), "b": data(), "c": data()},
        "evaluate": {"b": [{"throw": "no answer"}, "c"]},
    }
    run = prepared(wf, script).start().go()
    assert run.error["code"] == "ROUTE_FAILED"
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b", "c"]
    run.driver.assert_replays()


def test_retry_after_max_steps_goes_on_at_the_node_that_was_refused(prepared, flow):
    run = prepared(flow("a b c", "a b", "b c", max_steps=2), {"run": {n: data() for n in "abc"}}).start().go()
    assert run.error["code"] == "MAX_STEPS"
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b", "c"]


def test_retry_of_a_halted_parallel_run_sends_on_every_branch(prepared, flow):
    wf = flow("a b c d", "a b", "a c", "b d", "c d", parallel=True, on_failure="halt")
    fails = {"status": "failed", "data": {"error": "no"}}
    script = {"run": {"a": data(), "b": [fails, {"data": {"b": 1}}], "c": data(c=1), "d": data()}}
    run = prepared(wf, script).start()
    while run.status == "running":
        (intent, *_) = [i for i in run.driver.open() if i.params.get("node") != "c"]
        run.perform(intent)
    assert run.results["c"]["data"]["error"] == "stopped: node failed at b"
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b", "c", "b", "c", "d"], "the join runs once, after both"
    assert run.asked("run")[-1]["context"] == {"input": {}, "a": {}, "b": {"b": 1}, "c": {"c": 1}}
    run.driver.assert_replays()


def test_retry_from_a_named_node(prepared, flow):
    script = {"run": {"a": [{"status": "failed", "data": {"error": "x"}}, {"data": {}}], "b": data() * 2}}
    run = prepared(flow("a b", "a b"), script).start().go()
    with pytest.raises(TreadleError, match="no node 'zz'"):
        run.driver.retry(**{"from": "zz"})
    run = prepared(flow("a b", "a b"), script).start().go()
    run.driver.retry(**{"from": "a"})
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b", "a", "b"]


def test_retry_after_a_step_that_raised(prepared, flow, monkeypatch):
    run = prepared(flow("a b", "a b"), {"run": {"a": data() * 2, "b": data()}}).start()
    run.perform(run.next())
    with monkeypatch.context() as patch:
        patch.setattr("treadle.dialects.agent.visiting.settle", None)
        run.perform(run.next())
    assert run.error["code"] == "MACHINE_ERROR"
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert run.path() == ["a", "b"]


def test_a_budget_is_checked_again_after_a_pause(prepared, flow):
    """b's route and c's judge wait out a rate limit; meanwhile d uses up what there was."""
    judge = {"eval": [{"name": "j", "kind": "judge", "rubric": "r"}]}
    wf = flow(
        {"a": {}, "b": {}, "c": judge, "d": {}, "e": {}},
        *("a b", "a c", "a d", ("b", "e", {"when": "x"})),
        parallel=True,
        budget={"tokens": 10},
    )
    script = {
        "run": {"a": data(), "b": data(), "c": data(), "d": [{"data": {}, "usage": {"input_tokens": 10}}]},
        "evaluate": {"b": ["e"]},
        "ask": ["yes"],
    }
    for first in ("b", "c"):
        run = prepared(wf, script).start()
        error = {"code": "RATE_LIMITED", "message": "slow", "details": {"retryable": True}}
        while (intent := run.next()) is not None and run.status in ("running", "waiting"):
            if intent.params.get("node") == "d":
                rest = [i for i in run.driver.open() if i.kind != "timer" and i.params.get("node") != "d"]
                intent = rest[0] if rest else intent
            if intent.kind in ("route", "ask"):
                run.driver.feed(Receipt(intent=intent.id, status="error", error=error))
            else:
                run.perform(intent)
        timers = {i.params["name"]: i for i in run.driver.open("timer")}
        assert set(timers) == {"b: retry", "c: retry"}
        run.driver.feed(Receipt(intent=timers[f"{first}: retry"].id))
        run.go()
        assert run.asked("evaluate") == run.asked("ask") == []
        assert run.status == "failed"
        assert run.error["code"] == ("BUDGET_EXCEEDED" if first == "b" else "NODE_FAILED")
        assert run.of("workflow:halted") == [{"node": first, "reason": "budget exceeded"}]


def test_a_childs_cost_is_its_parents_cost(prepared, flow):
    usage = {"input_tokens": 900, "output_tokens": 100, "usd": 0.5}
    wf = flow({"a": {"run": {"workflow": "sub"}}, "b": {}}, "a b", budget={"tokens": 100})
    result = {"results": {}, "trace": {"steps": [], "edges": [], "sources": {}, "usage": usage}}
    failed = {"code": "CHILD_FAILED", "message": "it broke", "details": {"result": result}}
    for receipt in ({"value": {"run": "x", "result": result}}, {"status": "error", "error": failed}):
        run = prepared(wf, {"run": {}}).start().go()
        (child,) = run.driver.open("child")
        assert child.params["options"]["within"] == [["a", 1]]
        run.driver.feed(Receipt(intent=child.id, **receipt))
        run.go()
        assert run.trace["steps"][0]["usage"] == usage
        assert run.results["b"]["data"]["error"] == "budget exceeded: 1000 of 100 tokens"


HALTS = {"on_failure": "halt"}
FAILS = {"status": "failed", "data": {"error": "no"}}


@pytest.mark.parametrize("more", [{}, HALTS])
def test_a_person_skips_a_node_that_failed(prepared, flow, more):
    script = {"run": {"a": data(), "b": [FAILS], "c": data() * 2}}
    run = prepared(flow("a b c", "a b", "b c", **more), script).start().go()
    run.driver.retry(skip={"kept": 1})
    run.go()
    assert run.status == "completed"
    assert run.results["b"] == {
        "status": "skipped",
        "data": {"skipped_reason": "skipped", "kept": 1},
        "toolCalls": [],
    }
    assert [call["node"] for call in run.asked("run")].count("b") == 1, "it was not asked again"
    entered = [event["node"] for event in run.of("node:enter")]
    assert entered == [event["node"] for event in run.of("node:exit")]


def test_a_person_fails_a_node_for_good(prepared, flow):
    script = {"run": {"a": [FAILS], "b": data() * 2}}
    run = prepared(flow("a b", "a b"), script).start().go()
    run.driver.retry(fail="give up")
    run.go()
    assert run.status == "failed"
    assert run.results["a"]["data"] == {"error": "give up"}
    assert run.path() == ["a", "b", "a", "b"]
    assert len(run.asked("run")) == 3


def test_a_retry_that_means_nothing_is_refused(prepared, flow):
    run = prepared(flow("a"), {"run": {"a": [FAILS]}}).start().go()
    with pytest.raises(TreadleError, match="cannot be retried with input"):
        run.driver.retry(input={"x": 1})
    wf = flow("a b", ("a", "b", {"when": "x"}))
    run = prepared(wf, {"run": {"a": data()}, "evaluate": {"a": [{"throw": "x"}]}}).start().go()
    with pytest.raises(TreadleError, match="between two nodes"):
        run.driver.retry(skip=None)


def test_a_route_that_fails_after_a_failed_node_is_that_nodes_failure(prepared, flow):
    wf = flow("a b", ("a", "b", {"when": "x"}))
    script = {"run": {"a": [FAILS]}, "evaluate": {"a": [{"throw": "down"}]}}
    run = prepared(wf, script).start().go()
    assert (run.error["code"], run.error["where"]) == ("NODE_FAILED", "a")
    assert run.of("workflow:halted") == [{"node": "a", "reason": "routing failed: down"}]
    assert run.of("route") == []


def test_retries_are_counted(prepared, flow):
    check = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]
    run = prepared(flow({"a": {"eval": check, "retry": {"max": 2}}}), {"run": {"a": data() + data(x=1)}})
    assert run.start().go().driver.view()["stats"]["retries"] == 1
    run = prepared(flow("a"), Flaky([ProviderError("503", retryable=True)])).start().go()
    run.driver.advance(2)
    assert run.go().driver.view()["stats"]["retries"] == 1


def test_a_run_goes_on_under_another_definition_only_if_its_texts_are_the_same(prepared, flow):
    old = prepared(flow("a b", "a b"), {"run": {"a": data()}}).start()
    machine, compiled = old.driver.machine, lambda wf: prepared(wf, {}).driver.definition
    other = compiled(flow({"a": {}, "b": {"instruction": "Other."}}, "a b"))
    assert machine.compatible(other, old.driver.run.state) is None, "nothing has been resolved yet"
    old.perform(old.next())
    why = machine.compatible(other, old.driver.run.state)
    assert why is not None
    assert "fork at record 1" in why
    more = compiled(flow({"a": {"max_turns": 3}, "b": {}}, "a b"))
    assert machine.compatible(more, old.driver.run.state) is None


def paying(paid: list[str], *, idempotent: bool = False) -> Skill:
    skill = Skill("bank", name="Bank")

    @skill.tool("pay", idempotent=idempotent)
    def pay(input: dict, ctx: Any) -> Any:
        paid.append(ctx.idempotency_key)
        return {"paid": True}

    return skill


def stopped_beside(prepared: Any, flow: Any, bank: Skill, until: Any, **node: Any) -> Any:
    """A run whose node c fails, and halts it, when its branch b has come as far as `until`."""
    wf = flow(
        {"a": {}, "b": {"skills": ["bank"], **node}, "c": {}, "j": {}},
        *("a b", "a c", "b j", "c j"),
        parallel=True,
        on_failure="halt",
    )
    calls = {"tool_calls": [{"tool": "pay", "input": {"n": 1}}], "data": {"k": 1}}
    script = {"run": {"a": data(), "b": [calls], "c": [FAILS, {"data": {}}], "j": data()}, "ask": ["yes"] * 2}
    run = prepared(wf, script, skills=(bank,)).start()
    while not (at := [i for i in run.driver.open() if i.params.get("node") == "b" and until(i)]):
        (intent, *_) = [i for i in run.driver.open() if i.params.get("node") != "c"]
        run.perform(intent)
    (last,) = [i for i in run.driver.open() if i.params.get("node") == "c"]
    run.perform(last)
    assert run.status == "failed"
    return run, at[0]


def test_a_stopped_node_goes_on_where_it_was_and_pays_for_nothing_twice(prepared, flow):
    paid: list[str] = []
    judge = {"eval": [{"name": "j", "kind": "judge", "rubric": "r"}]}
    run, _ = stopped_beside(prepared, flow, paying(paid), lambda intent: intent.kind == "ask", **judge)
    assert run.results["b"]["data"] == {"k": 1, "error": "stopped: node failed at c"}
    assert [call["tool"] for call in run.results["b"]["toolCalls"]] == ["pay"]
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert len(paid) == 1
    turns = [(call["node"], call["turn"]) for call in run.asked("run") if call["node"] == "b"]
    assert turns == [("b", 1), ("b", 2)], "what was answered is not asked again"
    assert run.results["b"]["data"] == {"k": 1}
    assert len(run.results["b"]["toolCalls"]) == 1
    entered = [event["node"] for event in run.of("node:enter")]
    assert sorted(entered) == sorted(event["node"] for event in run.of("node:exit"))
    run.driver.assert_replays()


@pytest.mark.parametrize("decision", ["retry", "skip"])
def test_a_call_that_a_stop_cut_off_is_recorded_and_in_doubt(prepared, flow, decision):
    paid: list[str] = []
    run, call = stopped_beside(prepared, flow, paying(paid), lambda intent: intent.kind == "call")
    error = "stopped: node failed at c; it may have taken effect"
    assert run.results["b"]["toolCalls"] == [{"tool": "pay", "input": {"n": 1}, "error": error}]
    (told,) = [event for event in run.of("tool:result") if event["node"] == "b"]
    assert told["output"] == {"error": error}
    run.driver.retry()
    run.go()
    (task,) = run.driver.open("task")
    run.driver.ok(task, {"decision": decision})
    run.go()
    assert run.status == "completed"
    assert paid == ([call.id] if decision == "retry" else []), "under the key it had"
    assert len(run.results["b"]["toolCalls"]) == 1
    told = [event["type"] for event in run.events if event.get("node") == "b"]
    assert told == [
        *("node:enter", "tool:call", "tool:result", "node:exit"),
        *("node:enter", "tool:call", "node:waiting", "tool:result", "node:exit"),
    ]
    run.driver.assert_replays()


def test_an_idempotent_call_that_a_stop_cut_off_is_simply_repeated(prepared, flow):
    paid: list[str] = []
    bank = paying(paid, idempotent=True)
    run, call = stopped_beside(prepared, flow, bank, lambda intent: intent.kind == "call")
    run.driver.retry()
    run.go()
    assert run.status == "completed"
    assert paid == [call.id]
    run.driver.assert_replays()


def test_cancel_records_the_call_that_was_under_way(prepared, flow):
    script = {"run": {"a": [{"tool_calls": [{"tool": "pay", "input": {}}], "data": {}}]}}
    run = prepared(flow({"a": {"skills": ["bank"]}}), script, skills=(paying([]),)).start().go(2)
    run.driver.cancel("enough")
    (call,) = run.results["a"]["toolCalls"]
    assert call["error"] == "stopped: enough; it may have taken effect"
    assert [event["type"] for event in run.events][-3:] == ["tool:result", "node:exit", "workflow:end"]
