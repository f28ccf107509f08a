"""The result of a long run, whose results and trace do not fit into one record.

It is *sealed* before the run ends: handed to a performer in slices, which stores them as one payload; the run's
result is its reference.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value, encode

from .flow import Flow
from .limits import SEAL_SLICE_BYTES_MAX
from .states import AgentState


def begin(flow: Flow, error: dict[str, Value] | None) -> None:
    """The run ends, with this error if there is one, once its result is stored."""
    flow.cancel = [intent.ref for intent in flow.ctx.open.values()]
    flow.intents.clear()
    flow.state["seal"] = {"error": error, "done": 0, "stored": None}
    _seal(flow)


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
    flow.close(seal["error"], value.get("results"), value.get("stored"))
