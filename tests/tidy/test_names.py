"""One meaning a name: no public class of the house has the name of another, but for those listed here."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"

# Each dialect has its own words, from its seed or for its authors, and no file sees two of them; the kernel's
# words are the same things one floor below. The lists only shrink.
WORDS_OF_DIALECTS = {
    "Absent": "playbook, reactive",
    "Await": "process, function",
    "Call": "process, reactive",
    "Context": "what a machine, a step function and a durable function are given",
    "Edge": "agent; graphs; patterns",
    "Field": "a playbook's field; a tool's",
    "Fork": "process; bodies; the simulator",
    "Frame": "reactive; kernel",
    "Loop": "playbook, function; patterns",
    "Names": "process; tools of models",
    "Node": "agent; graphs",
    "NotDeterministic": "reactive, function",
    "Output": "reactive; the command line; a child's output",
    "Program": "process; patterns",
    "Reader": "playbook, process",
    "Receipt": "reactive; kernel",
    "Record": "reactive's shape; a view of a record",
    "Rejected": "reactive; kernel",
    "Repeat": "process; patterns",
    "Requires": "process, agent",
    "Retry": "agent, function; kernel; bodies",
    "Rule": "agent, playbook",
    "Scope": "playbook; expressions",
    "Settled": "function; bus",
    "Source": "agent, function; rows",
    "Step": "playbook, function; kernel",
    "StepFailed": "reactive, function",
    "StepRun": "playbook: the errand, and who performs it",
    "Task": "playbook, process",
    "Tree": "playbook; patterns",
    "Turn": "playbook, process",
    "Watched": "function; visits",
    "Workflow": "agent, reactive, function",
}
# The JSON bodies of requests are called after what they ask for.
BODIES = {"Apply", "Assign", "Cancel", "Complete", "Definitions", "Patch", "Progress", "Signal", "Start"}
# The same thing for synchronous code, or as tests see it.
FACES = {"Engine", "Run", "Intent", "World"}
# Two rooms that never meet; rename one when you are there.
FAR_APART = {
    "Actor",
    "Choice",
    "Connection",
    "Document",
    "Lease",
    "Member",
    "Place",
    "Refused",
    "Route",
    "Session",
}


def homes() -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(SRC).as_posix())
    return {name: where for name, where in found.items() if len(where) > 1}


def test_a_class_has_a_name_of_its_own() -> None:
    allowed = {*WORDS_OF_DIALECTS, *BODIES, *FACES, *FAR_APART}
    found = homes()
    new = {name: where for name, where in found.items() if name not in allowed}
    assert not new, f"these names are taken; give the newer one a name of its own: {new}"
    gone = sorted(allowed - found.keys())
    assert not gone, f"these stand once now; drop them from the lists: {gone}"
