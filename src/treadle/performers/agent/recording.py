"""An agent run as a script for `--model scripted:FILE` that leads to the same run again.

One entry for each time a node, a route or a judge was asked, failures among them, so that no answer comes to
another question than its own. A node that runs another workflow has the script of that run for its entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from treadle.dialects.agent import DIALECT
from treadle.dialects.agent.provider_errors import FATAL
from treadle.kernel.model import child_id
from treadle.kernel.values import decode_trusted
from treadle.runtime import document
from treadle.store.run_rows import RunRow
from treadle.views.recording import Answer, answer_list, answers_of, unanswered_of

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# Stands where the recorded run had asked, and ended before it was answered.
UNANSWERED: Final = {"throw": "the recorded run had no answer to this"}
MAIN_BRANCH: Final = "0"

Entries = dict[str, dict[int, Any]]


@dataclass(slots=True)
class Script:
    """A script in the making: entries by node and number. `asked` is the order of all questions to judges."""

    run: Entries = field(default_factory=dict)
    evaluate: Entries = field(default_factory=dict)
    ask: Entries = field(default_factory=dict)
    asked: dict[int, Any] = field(default_factory=dict)
    # Judges of parallel branches are asked in no order that could be relied on.
    branched: bool = False

    def to_value(self) -> dict[str, Any]:
        return {
            "run": _listed(self.run),
            "evaluate": _listed(self.evaluate),
            "ask": _listed(self.ask) if self.branched else _in_place(self.asked),
        }

    def is_empty(self) -> bool:
        return not (self.run or self.evaluate or self.asked)


def script_of(reads: Reads, shown: Mapping[str, Any], *, asks_models: bool) -> dict[str, Any]:
    """A run as a test, of whatever dialect, and remarks on what it cannot repeat."""
    row = document.row_of(reads, shown["id"])
    remarks: list[str] = []
    if asks_models:
        return {"script": model_script(reads, row, remarks), "remarks": remarks}
    journal = document.journal(reads, row)
    script = answer_list(shown, journal, lambda digest: decode_trusted(reads.blob(digest)))
    return {"script": script, "remarks": remarks}


def model_script(reads: Reads, row: RunRow, remarks: list[str]) -> dict[str, Any]:
    """The script of an agent run and of what it called. `remarks` get what it cannot say."""
    return _script_of(reads, row, remarks).to_value()


def _script_of(reads: Reads, row: RunRow, remarks: list[str]) -> Script:
    journal = list(document.journal(reads, row))
    script = Script()
    if row.dialect == DIALECT.name:

        def blob(digest: str) -> Any:
            return decode_trusted(reads.blob(digest))

        # A question that was cut off is asked again by whoever replays the script: it must not run out.
        cut = unanswered_of(journal, blob, UNANSWERED["throw"])
        remarked = _Remarked(list(document.events(reads, row, DIALECT.machine)))
        _add_answers(script, [*cut, *answers_of(journal, blob)], remarked)
    for record in journal:
        for intent in record.get("opened") or ():
            child = reads.run(child_id(row.id, str(intent["id"]))) if intent["kind"] == "child" else None
            if child is not None:
                _add_child(script, child, intent["params"], _script_of(reads, child, remarks), remarks)
    return script


# --- what was answered --------------------------------------------------------------------------


def _add_answers(script: Script, answers: Sequence[Answer], remarked: _Remarked) -> None:
    turns: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for answer in answers:
        params, kind = answer.params, answer.intent["kind"]
        if kind not in ("model", "route", "ask") or answer.error.get("code") in FATAL:
            # A question that no script can answer fails again by having no entry.
            continue
        node, nth = params["node"], params["nth"]
        match kind:
            case "model":
                # The same turn again, after a pause of the provider: the last answer counts.
                turns.setdefault((node, nth), {})[params["turn"]] = _turn(answer, remarked)
            case "route":
                script.evaluate.setdefault(node, {})[nth] = _said(answer, "choice")
            case _:
                entry = script.asked[nth] = _said(answer, "text")
                of_node = script.ask.setdefault(node, {})
                of_node[params.get("node_nth") or len(of_node) + 1] = entry
                script.branched |= answer.intent.get("ref") != MAIN_BRANCH
    for (node, nth), found in turns.items():
        script.run.setdefault(node, {})[nth] = _invocation([found[turn] for turn in sorted(found)])


def _turn(answer: Answer, remarked: _Remarked) -> dict[str, Any]:
    """One answer of the model at a node."""
    value = answer.value
    turn: dict[str, Any] = {}
    if progress := remarked.during(answer):
        turn["progress"] = progress
    if not answer.is_ok:
        return {**turn, "throw": _message(answer)}
    if value.get("text"):
        turn["text"] = value["text"]
    if calls := value.get("calls"):
        turn["tool_calls"] = [{"tool": call["tool"], "input": call.get("input")} for call in calls]
    else:
        if value.get("status", "success") != "success":
            turn["status"] = value["status"]
        turn["data"] = value.get("data")
    return _with_usage(turn, answer)


def _invocation(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The turns of one invocation: in the short form (the calls, then the result) where that says it all."""
    if len(turns) == 1:
        return turns[0]
    first, *rest = turns
    last = rest[-1]
    short = len(turns) == 2 and "tool_calls" not in last and not last.keys() & {"progress", "usage"}
    if short and first.get("text") == last.get("text"):
        return {**first, **last}
    return {"turns": list(turns)}


def _said(answer: Answer, name: str) -> Any:
    """The answer to a route or a judge: a plain word where that is all."""
    if not answer.is_ok:
        return {"throw": _message(answer)}
    word = answer.value.get(name)
    entry = _with_usage({name: word}, answer)
    return entry if "usage" in entry or isinstance(word, dict) else word


def _message(answer: Answer) -> str:
    return str(answer.error.get("message") or answer.error.get("code") or "the provider failed")


def _with_usage(entry: dict[str, Any], answer: Answer) -> dict[str, Any]:
    usage = {name: amount for name, amount in (answer.value.get("usage") or {}).items() if amount}
    return {**entry, "usage": usage} if usage else entry


class _Remarked:
    """What was said during the work. Such events stand beside the journal: which intent they are of
    follows from the node and from the records around them."""

    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        placed = [event for event in events if event.get("record") is not None]
        self._records = [event["record"] for event in placed]
        self._seqs = [event["seq"] for event in placed]
        self._progress = [
            event for event in events if event["type"] == "node:progress" and event.get("record") is None
        ]

    def during(self, answer: Answer) -> list[str]:
        if not self._progress:
            return []
        opened = bisect_left(self._records, answer.opened + 1)
        settled = bisect_left(self._records, answer.settled)
        first = self._seqs[opened - 1] if opened else 0
        end = self._seqs[settled] if settled < len(self._seqs) else None
        return [
            str(event["message"])
            for event in self._progress
            if event["node"] == answer.params["node"]
            and first < event["seq"]
            and (end is None or event["seq"] < end)
        ]


# --- runs that were called ----------------------------------------------------------------------


def _add_child(
    script: Script, child: RunRow, params: Mapping[str, Any], own: Script, remarks: list[str]
) -> None:
    if own.is_empty():
        return
    place = (params.get("options") or {}).get("within")
    if place:
        node, nth = place[-1]
        value = {name: part for name, part in own.to_value().items() if part}
        script.run.setdefault(node, {})[nth] = {"script": value}
        return
    # Called by something that is no node of an agent: its models answer from the script around it.
    _merge(script, own, child, remarks)


def _merge(script: Script, own: Script, child: RunRow, remarks: list[str]) -> None:
    parts = ((script.run, own.run), (script.evaluate, own.evaluate), (script.ask, own.ask))
    clashes = sorted({node for mine, theirs in parts for node in theirs if node in mine})
    if clashes:
        remarks.append(
            f"{child.id} ({child.workflow}) asks at {', '.join(clashes)}, which another run of this family does "
            "too; the script has the answers of the first only"
        )
    script.branched |= bool(script.asked and own.asked) or own.branched
    script.asked = {**own.asked, **script.asked}
    for mine, theirs in parts:
        for node, entries in theirs.items():
            mine.setdefault(node, entries)


# --- lists --------------------------------------------------------------------------------------


def _listed(entries: Entries) -> dict[str, list[Any]]:
    return {node: _in_place(found) for node, found in entries.items()}


def _in_place(found: Mapping[int, Any]) -> list[Any]:
    """The entries by number, so that each comes to the question it answered."""
    return [found.get(number, UNANSWERED) for number in range(1, max(found, default=0) + 1)]
