"""How a run ends: its status, its result, and the trace that people read.

Results and trace of a long run do not fit into one record. Then they are *sealed* first: handed to
a performer in slices, which stores them as one payload; the run's result is its reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.kernel.brief import brief
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Decision, Receipt
from treadle.kernel.values import Value, encode

from .flow import Flow
from .limits import RESULT_INLINE_BYTES_MAX, SEAL_SLICE_BYTES_MAX, TRACE_STEP_BYTES
from .states import AgentState, Branch


def finish(flow: Flow, error: dict[str, Value] | None = None) -> None:
    """The run ends after this step, whatever else is open."""
    flow.ending = error or {}
    flow.ready.clear()


def run_error(flow: Flow) -> dict[str, Value] | None:
    """A run has failed if a node's final result is failed; the first such node is named."""
    results = flow.state["results"]
    for step in flow.state["steps"]:
        result = results[step["node"]]
        if result["status"] == "failed":
            data = flow.load(result["data"])
            said = data.get("error") if isinstance(data, dict) else None
            message = f"{step['node']} failed: {said}" if said else f"{step['node']} failed"
            error = TreadleError(message, cls="user", code="NODE_FAILED", where=step["node"])
            return brief(error.to_value())
    return None


def trace(state: AgentState) -> dict[str, Value]:
    return {
        "steps": state["steps"],
        "edges": state["edges"],
        "sources": state["sources"],
        "usage": state["usage"],
    }


def end(flow: Flow, error: dict[str, Value] | None) -> None:
    """Ends the run now, or begins to seal what is too large for one record."""
    state = flow.state
    error = error or run_error(flow)
    if not state["resume"]:
        at_rest(state)
    if fits(state):
        _close(flow, error, state["results"], {"results": state["results"], "trace": trace(state)})
        return
    flow.cancel = [intent.ref for intent in flow.ctx.open.values()]
    flow.intents.clear()
    state["seal"] = {"error": error, "done": 0, "stored": None}
    _seal(flow)


def at_rest(state: AgentState) -> Branch:
    """The first branch stays, in case a person sends the run on."""
    root: Branch = state["branches"]["0"]
    root["visit"] = root["paused"] = None
    state["branches"], state["groups"] = {"0": root}, {}
    return root


def fits(state: AgentState) -> bool:
    """Whether results and trace are small enough to stand in one record."""
    size: int = state["bytes"] + TRACE_STEP_BYTES * len(state["steps"])
    return size <= RESULT_INLINE_BYTES_MAX


def _close(flow: Flow, error: dict[str, Value] | None, results: Value, result: Value) -> None:
    flow.intents.clear()
    flow.emit("workflow:end", results=results)
    flow.state["ended"] = "failed" if error else "completed"
    flow.decision = Decision(
        state=flow.state,
        events=flow.events,
        status="failed" if error else "completed",
        result=result,
        error=error,
    )


# --- sealing ------------------------------------------------------------------------------------


def _units(state: AgentState) -> Iterator[tuple[str, str, Value]]:
    """Everything that belongs to the result, in one fixed order: part, key, value."""
    for node in sorted(state["results"]):
        yield "results", node, state["results"][node]
    for name in ("steps", "edges"):
        for item in state[name]:
            yield name, "", item


def _seal(flow: Flow) -> None:
    seal = flow.state["seal"]
    parts: dict[str, Value] = {"results": {}, "steps": [], "edges": []}
    size, taken, last = 0, seal["done"], True
    for position, (part, key, value) in enumerate(_units(flow.state)):
        if position < seal["done"]:
            continue
        size += len(encode(value)) + len(key)
        if size > SEAL_SLICE_BYTES_MAX and taken > seal["done"]:
            last = False
            break
        if key:
            parts[part][key] = value
        else:
            parts[part].append(value)
        taken += 1
    params = {"name": "result", "op": "seal", "onto": seal["stored"], "last": last, **parts}
    if last:
        params["usage"], params["sources"] = flow.state["usage"], flow.state["sources"]
    seal["next"] = None if last else taken
    flow.open("source", "seal", params)


def on_sealed(flow: Flow, receipt: Receipt) -> None:
    seal = flow.state["seal"]
    if receipt.status != "ok":
        error = TreadleError.from_value(receipt.error or {"code": "SEAL_FAILED", "message": "not stored"})
        raise error
    value = receipt.value if isinstance(receipt.value, dict) else {}
    seal["stored"] = value.get("stored")
    if seal["next"] is not None:
        seal["done"] = seal["next"]
        _seal(flow)
        return
    flow.state["seal"] = None
    _close(flow, seal["error"], value.get("results"), value.get("stored"))
