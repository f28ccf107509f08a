"""One visit of a node: enter, requires, approval, then turns of the model and calls of its tools.

The loop of turn, calls, turn is here and not in a performer, so that a crash in the middle of a
node costs at most the one answer in flight, and a tool that has returned is never called again.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Intent, Receipt
from treadle.kernel.values import Value, encode

from . import handing, people
from .flow import Flow, new_visit, visit_of
from .judging import ask_again, evaluate
from .leaving import leave, stop_run
from .limits import NODE_CALLS_BYTES_MAX, NOTE_CHARS_MAX, TURN_CALLS_MAX
from .model import Node, Requires
from .paths import problems_of
from .provider_errors import FATAL, backs_off, code_of, message_of
from .states import Branch, VisitState

STATUSES: Final = ("success", "skipped", "failed")


def enter(flow: Flow, branch: Branch, node_id: str) -> None:
    state, workflow = flow.state, flow.workflow
    node = workflow.nodes[node_id]
    visits = state["visits"] = state["visits"] + 1
    if visits > workflow.max_steps:
        message = f"more than {workflow.max_steps} node visits; raise max_steps if that is meant"
        error = TreadleError(message, cls="user", code="MAX_STEPS", where=node_id)
        stop_run(flow, f"max_steps at {node_id}", error.to_value(), at=[branch["id"], "enter", node_id])
        return
    iterations = state["iterations"]
    iteration = iterations[node_id] = iterations.get(node_id, 0) + 1
    visit = branch["visit"] = new_visit(node_id, iteration)
    _tell_entry(flow, node)
    if warnings := state["warnings"].get(node_id):
        flow.warn(node_id, warnings)
    if node.requires is not None and not _requirements_hold(flow, branch, node, node.requires):
        return
    if "absent" in state and (absent := state["absent"].get(node_id)):
        fail(flow, branch, "; ".join(absent))
        return
    if node.approve is not None:
        people.ask_approval(flow, branch, node)
    else:
        _work(flow, branch, visit, node)


def settle_by_hand(
    flow: Flow, branch: Branch, node: str, status: str, data: Value, extra: dict[str, Value]
) -> None:
    """A person gives the node its result; nothing is asked and nothing called."""
    _come_in(flow, branch, node, new_visit(node, 0))
    leave(flow, branch, status, data, extra=extra)


def take_up(flow: Flow, branch: Branch) -> None:
    """A visit that the run's end had cut goes on where it was. Whether a call that was under way took
    effect is not known: it is repeated only if its tool is idempotent, which its performer knows."""
    visit = branch["paused"]
    assert visit is not None, "a visit was cut"
    _come_in(flow, branch, visit["node"], visit)
    match visit["stage"]:
        case "judge" | "reflect":
            ask_again(flow, branch)
        case "call":
            _announce(flow, branch)
            key = visit.pop("doubt", None)
            open_call(flow, branch, key=key, doubtful=key is not None)
        case "in_doubt":
            _announce(flow, branch)
            _ask_doubt(flow, branch)
        case _:
            turn(flow, branch)


def _come_in(flow: Flow, branch: Branch, node: str, visit: VisitState) -> None:
    state = flow.state
    state["visits"] += 1
    visit["iteration"] = state["iterations"][node] = state["iterations"].get(node, 0) + 1
    visit["tries"] = 0
    branch["visit"], branch["paused"] = visit, None
    _tell_entry(flow, flow.workflow.nodes[node])


def _tell_entry(flow: Flow, node: Node) -> None:
    """The node is entered; a long instruction stays a reference in what is told of it."""
    instruction = flow.state["long"].get(node.told_by) or flow.content(node.told_by)
    flow.events.append({"type": "node:enter", "node": node.id, "instruction": instruction})


def _requirements_hold(flow: Flow, branch: Branch, node: Node, needed: Requires) -> bool:
    root: dict[str, Value] = {}
    for path in (*needed.required, *(match.path for match in needed.matches)):
        name = path.segments[0][0]
        value = flow.load(flow.state["input"] if name == "input" else flow.lookup(branch, name))
        if value is not None:
            root[name] = value
    problems = problems_of(needed.required, needed.matches, root, old=flow.is_old)
    if not problems:
        return True
    listed = "; ".join(problems)
    if needed.skip:
        leave(flow, branch, "skipped", {"skipped_reason": f"requires not met: {listed}"})
    else:
        leave(flow, branch, "failed", {"error": f"requires failed: {listed}"})
    return False


# --- people -------------------------------------------------------------------------------------


def on_approval(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    visit, approve = visit_of(branch), flow.node(branch).approve
    assert approve is not None
    found = flow.load(receipt.value)
    answer = found if isinstance(found, dict) else {}
    if receipt.status == "ok" and answer.get("approved") is True:
        visit["approval"] = receipt.value
        begin(flow, branch)
        return
    note = "nobody answered in time" if receipt.status == "timeout" else answer.get("note") or "no note given"
    text = f"not approved: {str(note)[:NOTE_CHARS_MAX]}"
    if approve.fail:
        leave(flow, branch, "failed", {"error": text})
    else:
        leave(flow, branch, "skipped", {"skipped_reason": text})


# --- turns --------------------------------------------------------------------------------------


def begin(flow: Flow, branch: Branch) -> None:
    """Begins an attempt at the node: the first, or one more after its evaluation failed."""
    visit = visit_of(branch)
    visit["stage"], visit["turn"], visit["tries"], visit["bytes"] = "turn", 0, 0, 0
    visit["calls"], visit["evals"] = [], []
    _work(flow, branch, visit, flow.node(branch))


def _work(flow: Flow, branch: Branch, visit: VisitState, node: Node) -> None:
    """Has the node's work done by whoever does it, from its beginning."""
    runs, id = flow.state["runs"], node.id
    visit["results"], visit["history"], visit["text"] = [], None, ""
    visit["nth"] = runs[id] = runs.get(id, 0) + 1
    if node.child is not None:
        if (problem := handing.open_child(flow, branch, node)) is not None:
            fail(flow, branch, problem)
    elif node.function is not None:
        handing.open_function(flow, branch, node)
    else:
        turn(flow, branch)


def turn(flow: Flow, branch: Branch) -> None:
    """Asks the model for its next answer, if it may have one."""
    visit, state = visit_of(branch), flow.state
    id, asked = visit["node"], visit["turn"]
    node = flow.workflow.nodes[id]
    if asked >= node.max_turns:
        fail(flow, branch, f"max_turns: no result within {node.max_turns} turns")
        return
    over, ends_run = flow.over_budget(visit)
    if over is not None:
        if not (asked or visit["tries"] or flow.is_old):
            state["runs"][id] -= 1  # nobody was asked: the next visit is this invocation
        fail(flow, branch, over, stop="budget exceeded" if ends_run else None)
        return
    nth, attempt, ref = visit["nth"], visit["attempt"], branch["id"]
    params = {
        "name": id,
        "node": id,
        "iteration": visit["iteration"],
        "attempt": attempt,
        "turn": asked + 1,
        "nth": nth,
        "session": f"{ref}/{id}/{nth}",
        "provider": str(flow.ctx.options.get("model") or "").partition(":")[0],
        "setup": state["setup"],
        "base": branch["base"],
        "own": branch["own"],
    }
    if asked or attempt or node.approve is not None:
        for name in ("preamble", "approval", "history", "results"):
            if visit.get(name):
                params[name] = visit[name]
    flow.add(Intent(kind="model", params=params, ref=ref, pool=node.pool))


def fail(
    flow: Flow,
    branch: Branch,
    message: str | None,
    *,
    data: Value = None,
    stop: str | None = None,
    error: dict[str, Value] | None = None,
) -> None:
    """The agent failed; its work so far is kept. With `fail_soft` the node succeeds all the same. No
    message: the data says why."""
    visit = visit_of(branch)
    if data is None:
        data = {"summary": visit["text"]} if visit.get("text") else {}
    extra: dict[str, Value] = {"error": message} if message is not None else {}
    visit["evals"] = []
    if flow.node(branch).fail_soft and stop is None:
        leave(flow, branch, "success", data, extra={**extra, "fail_soft": True})
    else:
        leave(flow, branch, "failed", data, extra=extra, stop=stop, error=error)


def on_turn(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    visit = visit_of(branch)
    if receipt.status != "ok":
        _turn_failed(flow, branch, receipt)
        return
    value = flow.load(receipt.value)
    if not isinstance(value, dict):
        fail(flow, branch, "the model's answer cannot be read")
        return
    visit["turn"] += 1
    visit["tries"] = 0
    visit["results"] = []
    visit["history"] = value.get("history")
    if value.get("text"):
        visit["text"] = value["text"]
    if value.get("own") is not None:
        branch["own"] = [value["own"]]
    flow.charge(branch, value.get("usage"))
    if warnings := value.get("warnings"):
        flow.warn(visit["node"], warnings)
    calls = flow.load(value["calls"]) if "calls" in value else None
    if not calls:
        settle(flow, branch, value.get("status", "success"), value.get("data"))
    elif len(calls) > TURN_CALLS_MAX:
        fail(
            flow,
            branch,
            f"the model asked for {len(calls)} tool calls at once; {TURN_CALLS_MAX} is the limit",
        )
    else:
        visit["pending"] = list(calls)
        next_call(flow, branch)


def _turn_failed(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    if backs_off(flow, branch, receipt):
        return
    code, message = code_of(receipt), message_of(receipt)
    if code in FATAL:
        error = TreadleError(message, cls="user", code=code, where=visit_of(branch)["node"]).to_value()
        fail(flow, branch, message, stop=message, error=error)
    else:
        fail(flow, branch, message)


def settle(flow: Flow, branch: Branch, status: Value, data: Value) -> None:
    """The model is done with the node; now it counts what it says."""
    visit, workflow, loaded = visit_of(branch), flow.workflow, flow.load(data)
    if status not in STATUSES:
        fail(flow, branch, f"the model answered with the status {str(status)[:80]!r}, which is not one")
    elif not isinstance(loaded, dict):
        fail(flow, branch, "the model's result is not an object")
    elif status == "failed":
        # Its own error is its data, and stays what it is.
        fail(flow, branch, None if loaded.get("error") else "the model reported failure", data=data)
    elif status == "skipped":
        leave(flow, branch, "skipped", data)
    elif (id := visit["node"]) in workflow.only and workflow.nodes[id].unjudged:
        leave(flow, branch, "success", data)  # nobody asks for this visit any more
    else:
        visit["data"] = data
        evaluate(flow, branch)


# --- tools --------------------------------------------------------------------------------------


def next_call(flow: Flow, branch: Branch) -> None:
    """Calls of a turn run one after the other; when none is left, the model is told the results."""
    visit = visit_of(branch)
    if not visit["pending"]:
        turn(flow, branch)
        return
    _announce(flow, branch)
    open_call(flow, branch, key=None)


def _announce(flow: Flow, branch: Branch) -> None:
    visit = visit_of(branch)
    call = visit["pending"][0]
    flow.emit("tool:call", node=visit["node"], tool=call["tool"], input=call["input"])


def open_call(flow: Flow, branch: Branch, *, key: str | None, doubtful: bool = False) -> None:
    """`doubtful`: it was under way before, so it may have taken effect already."""
    visit = visit_of(branch)
    visit["stage"] = "call"
    call = visit["pending"][0]
    params = {
        "name": f"{visit['node']}: {call['tool']}",
        "node": visit["node"],
        "tool": call["tool"],
        "input": call["input"],
        "iteration": visit["iteration"],
        "attempt": visit["attempt"],
        "index": len(visit["calls"]),
        "session": f"{branch['id']}/{visit['node']}/{visit['nth']}",
        "setup": flow.state["setup"],
    }
    if len(visit["pending"]) == 1 and _is_last_turn(flow, branch):
        # Nothing follows this call: whoever makes it may stop the node's servers.
        params["last"] = True
    if doubtful:
        params["doubtful"] = True
    flow.open("call", branch["id"], params, key=key)


def _is_last_turn(flow: Flow, branch: Branch) -> bool:
    node, visit = flow.node(branch), visit_of(branch)
    return visit["turn"] >= node.max_turns or flow.over_budget(visit)[0] is not None


def on_call(flow: Flow, branch: Branch, receipt: Receipt) -> None:
    if receipt.status != "ok" and code_of(receipt) == "IN_DOUBT":
        _in_doubt(flow, branch)
        return
    value = flow.load(receipt.value)
    if isinstance(value, dict) and value.get("absent") is True:
        visit = visit_of(branch)
        flow.warn(visit["node"], [f"the model called {visit['pending'][0]['tool']!r}, which is not there"])
    if receipt.status != "ok":
        outcome: dict[str, Value] = {"error": message_of(receipt)}
    elif isinstance(value, dict) and "error" in value:
        outcome = {"error": str(value["error"])}
    else:
        outcome = {"output": value.get("output") if isinstance(value, dict) else None}
    if _returned(flow, branch, outcome):
        next_call(flow, branch)


def _returned(flow: Flow, branch: Branch, outcome: dict[str, Value]) -> bool:
    """Records one call; an error goes to the model like any other result. False if that was one
    too many, and the node has failed over it."""
    visit = visit_of(branch)
    call = visit["pending"].pop(0)
    record = {"tool": call["tool"], "input": call["input"], **outcome}
    visit["calls"].append(record)
    visit["results"].append({"id": call.get("id", ""), "tool": call["tool"], **outcome})
    shown = outcome["output"] if "output" in outcome else {"error": outcome["error"]}
    flow.emit("tool:result", node=visit["node"], tool=call["tool"], output=shown)
    visit["stage"] = "turn"
    visit["bytes"] += len(encode(record))
    if visit["bytes"] > NODE_CALLS_BYTES_MAX:
        fail(flow, branch, f"the tool calls of this node exceed {NODE_CALLS_BYTES_MAX // 1024} KiB of record")
        return False
    return True


def _in_doubt(flow: Flow, branch: Branch) -> None:
    """The process died between starting this call and recording its answer."""
    intent = flow.ctx.intent
    assert intent is not None
    visit_of(branch)["doubt"] = intent.idempotency_key or intent.id
    _ask_doubt(flow, branch)


def _ask_doubt(flow: Flow, branch: Branch) -> None:
    node = flow.node(branch)
    if node.in_doubt != "ask":
        decide(flow, branch, node.in_doubt)
        return
    visit_of(branch)["stage"] = "in_doubt"
    people.ask_doubt(flow, branch)


def decide(flow: Flow, branch: Branch, decision: Value) -> None:
    """What a person or the node's policy says about a call in doubt."""
    visit = visit_of(branch)
    key = visit.pop("doubt")
    if decision == "retry":
        open_call(flow, branch, key=key)
        return
    if not _returned(flow, branch, {"error": "in doubt: the call was interrupted and may have taken effect"}):
        return
    if decision == "skip":
        next_call(flow, branch)
    else:
        fail(
            flow, branch, f"in doubt: {visit['calls'][-1]['tool']} was interrupted and may have taken effect"
        )
