"""The transcript of an agent run: every question it asked, and every answer it got, in order.

Nothing is kept for it. A question is put together again from what the journal has: the Sources and skills
of step 0, the context items, the choices of a route. What was recorded has been cleaned of secrets before
it was stored, so what is read here is clean, too. A payload that is large stays a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from treadle.dialects.agent import routing, sources
from treadle.dialects.agent.context import entry, evals_of, routing_view
from treadle.dialects.agent.evals import judge_question, reflect_question
from treadle.dialects.agent.model import Workflow
from treadle.kernel.errors import BlobMissing, Unsupported
from treadle.kernel.model import child_id, is_reference
from treadle.kernel.values import Value, decode_trusted
from treadle.lang.duration import instant_text
from treadle.runtime import document
from treadle.runtime.registry import Registry

from .questions import QUESTION
from .tools import node_tools

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# A payload up to this size is shown in its place.
SHOWN_BYTES_MAX: Final = 32 * 1024
KINDS: Final = frozenset({"model", "route", "ask", "call", "task", "child"})


def transcript(reads: Reads, registry: Registry, id: str, *, node: str | None = None) -> list[dict[str, Any]]:
    """`{seq, at, kind, node, …question…, answer | error | open}` for each question; those of one node, if named."""
    row = document.row_of(reads, id)
    if row.dialect != "agent":
        raise Unsupported(
            f"{id} is a {row.dialect}: only agent runs have a transcript; see treadle trace {id}"
        )
    workflow = registry.load(row.definition).definition
    assert isinstance(workflow, Workflow)
    if node is not None and node not in workflow.nodes:
        raise Unsupported(f"there is no node {node!r}; there are: {', '.join(workflow.nodes)}")
    script = _Transcript(reads, workflow, row.id)
    for stored, _ in document.records(reads, row):
        script.read(stored.seq, stored.record())
    return [said for said in script.entries if node is None or said["node"] == node]


@dataclass(slots=True)
class _Transcript:
    reads: Reads
    workflow: Workflow
    run: str
    entries: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The node each branch is in: a task and a child do not name it.
    _at: dict[str, str] = field(default_factory=dict)

    def read(self, seq: int, record: Mapping[str, Any]) -> None:
        event = record["event"]
        asked = self._open.pop(str(event.get("intent")), None)
        if asked is not None:
            del asked["open"]
            asked["answered_at"] = instant_text(record["at"])
            self._answer(asked, event)
        for id in record.get("cancelled") or ():
            if (dropped := self._open.pop(str(id), None)) is not None:
                del dropped["open"]
                dropped["error"] = "the run ended before it was answered"
        for intent in record.get("opened") or ():
            if intent["kind"] in KINDS:
                params = intent["params"]
                said = {
                    "seq": seq,
                    "at": instant_text(record["at"]),
                    **self._question(intent, params),
                    "open": True,
                }
                self.entries.append(said)
                self._open[str(intent["id"])] = said

    # --- questions ---

    def _question(self, intent: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        branch = str(intent.get("ref"))
        node = params.get("node") or (params.get("payload") or {}).get("node") or self._at.get(branch, "")
        if intent["kind"] == "child":
            # Named by the workflow it starts; the node is where the branch is.
            within = (params.get("options") or {}).get("within") or [[""]]
            node = within[-1][0]
        self._at[branch] = node
        where = {"node": node, **{k: params[k] for k in ("iteration", "attempt") if k in params}}
        match intent["kind"]:
            case "model":
                return {"kind": "turn", **where, "turn": params["turn"], **self._turn(node, params)}
            case "route":
                return {"kind": "route", **where, **self._route(params)}
            case "ask":
                return {"kind": params["op"], **where, **self._ask(node, params)}
            case "call" if "run" in params:
                return {"kind": "function", **where, "run": params["run"], "context": self._context(params)}
            case "call":
                return {
                    "kind": "tool",
                    **where,
                    "tool": params["tool"],
                    "input": self._shown(params["input"]),
                }
            case "task":
                about = self._shown(params.get("payload"))
                return {
                    "kind": params.get("type") or "task",
                    **where,
                    "roles": params["roles"],
                    "payload": about,
                }
        called = child_id(self.run, str(intent["id"]))
        return {
            "kind": "child",
            **where,
            "workflow": params["workflow"],
            "run": called,
            "input": self._shown(params["input"]),
        }

    def _turn(self, node: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt, where a conversation begins; later turns are told the results of the calls before."""
        if params["turn"] > 1:
            return {}
        setup = self._setup(params)
        skills = self._load(setup["skills"])
        spec = self.workflow.nodes[node]
        found: dict[str, Any] = {
            "model": spec.model or self.workflow.model,
            "instruction": sources.assemble(
                spec, self._load(setup["sources"]), skills, params.get("preamble")
            ),
            "context": self._context(params),
            # Those of its skills; what an MCP server offered is not recorded.
            "tools": list(node_tools(spec, skills).by_name),
        }
        if spec.output is not None:
            found["output_schema"] = spec.output
        return found

    def _route(self, params: Mapping[str, Any]) -> dict[str, Any]:
        edges = [self.workflow.edges[index] for index in params["edges"]]
        return {
            "question": QUESTION,
            "choices": routing.choices(edges),
            "context": routing_view(self.workflow, self._context(params)),
        }

    def _ask(self, node: str, params: Mapping[str, Any]) -> dict[str, Any]:
        spec, data = self.workflow.nodes[node], self._load(params["data"])
        if params["op"] == "judge":
            calls = [
                {key: self._load(part) if key in ("input", "output") else part for key, part in call.items()}
                for call in params["calls"]
            ]
            evaluator = spec.evaluators[params["evaluator"]]
            return {"evaluator": evaluator.name, "question": judge_question(evaluator, data, calls)}
        assert spec.retry is not None
        written = self._load(self._setup(params)["sources"]).get(spec.told_by)
        base = str(written["content"]) if written else ""
        return {"question": reflect_question(spec.retry, base, data, params["evals"])}

    def _context(self, params: Mapping[str, Any]) -> dict[str, Value]:
        found: dict[str, Value] = {"input": self._shown(self._setup(params)["input"])}
        waiting = list(reversed([*params["base"], *params["own"]]))
        while waiting:
            item = waiting.pop()
            if is_reference(item):
                waiting.extend(reversed(self._load(item)))
            elif not isinstance(item, int):
                found[item[0]] = entry(self._shown(item[1]), evals_of(item))
        if "approval" in params:
            found["approval"] = self._shown(params["approval"])
        return found

    def _setup(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._load(params["setup"])
        return found

    # --- answers ---

    def _answer(self, asked: dict[str, Any], event: Mapping[str, Any]) -> None:
        if event.get("status", "ok") != "ok":
            error = event.get("error") or {}
            asked["error"] = error.get("message") or error.get("code") or event["status"]
            return
        value = self._load(event.get("value"))
        answer = value if isinstance(value, dict) else {}
        match asked["kind"]:
            case "turn":
                kept = {key: answer[key] for key in ("text", "status") if answer.get(key)}
                calls = self._load(answer.get("calls"))
                if calls:
                    kept = {
                        "text": answer.get("text", ""),
                        "calls": [{**c, "input": self._shown(c["input"])} for c in calls],
                    }
                else:
                    kept["data"] = self._shown(answer.get("data"))
                asked["answer"] = kept
            case "route":
                asked["answer"] = answer.get("choice")
            case "judge" | "reflect":
                asked["answer"] = self._shown(answer.get("text"))
            case "function":
                asked["answer"] = self._shown(answer.get("data"))
            case "tool" if "error" in answer:
                asked["error"] = answer["error"]
            case "tool":
                asked["answer"] = self._shown(answer.get("output"))
            case "child":
                asked["answer"] = self._shown(answer.get("result"))
            case _:
                asked["answer"] = self._shown(value)
        if answer.get("usage"):
            asked["usage"] = answer["usage"]
        if event.get("by"):
            asked["by"] = event["by"]

    # --- payloads ---

    def _load(self, value: Value) -> Any:
        if not is_reference(value):
            return value
        try:
            return decode_trusted(self.reads.blob(str(value["checksum"])))
        except BlobMissing:
            return {}

    def _shown(self, value: Value) -> Value:
        return self._load(value) if is_reference(value) and value["size"] <= SHOWN_BYTES_MAX else value
