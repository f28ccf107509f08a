"""One meaning a name: no public class of the house has the name of another, but for those listed here."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"

# Name: where it may stand. A name that is free to choose is chosen anew; these are not, or the two never meet.
# The lists only shrink.
# What authors write, from the seed of a dialect or as its public names; no file sees two of them.
WORDS_OF_AUTHORS = {
    "Call": {"dialects/process/program.py", "dialects/reactive/effects.py"},
    "Context": {"dialects/function/context.py", "dialects/reactive/step.py", "kernel/model.py"},
    "Edge": {"dialects/agent/model.py", "lang/graph.py"},
    "Frame": {"dialects/reactive/step.py", "kernel/model.py"},
    "Loop": {"dialects/function/loop.py", "dialects/playbook/model.py"},
    "Node": {"dialects/agent/model.py", "lang/graph.py"},
    "Output": {"cli/output.py", "dialects/reactive/step.py"},
    "Receipt": {"dialects/reactive/step.py", "kernel/model.py"},
    "Rejected": {"dialects/reactive/step.py", "kernel/model.py"},
    "Retry": {"dialects/agent/model.py", "dialects/function/steps.py", "kernel/model.py"},
    "Rule": {"dialects/agent/model.py", "dialects/playbook/model.py"},
    "Source": {"dialects/agent/sources.py", "dialects/function/source.py"},
    "Step": {"dialects/function/steps.py", "dialects/playbook/model.py", "kernel/run.py"},
    "Task": {"dialects/playbook/model.py", "dialects/process/builder.py"},
    "Workflow": {
        "dialects/agent/model.py",
        "dialects/function/workflow.py",
        "dialects/reactive/workflow.py",
    },
}
# Two dialects do the same thing, each in its own way.
ALIKE = {
    "Await": {"dialects/function/awaits.py", "dialects/process/program.py"},
    "NotDeterministic": {"dialects/function/errors.py", "dialects/reactive/guard.py"},
    "Reader": {"dialects/playbook/reading.py", "dialects/process/reader.py"},
    "StepFailed": {"dialects/function/errors.py", "dialects/reactive/machine.py"},
    "Turn": {
        "dialects/function/guard.py",
        "dialects/playbook/marking.py",
        "dialects/process/turn.py",
    },
}
# The same thing for synchronous code, or as tests see it.
FACES = {
    "Engine": {"engine.py", "sync.py"},
    "Intent": {"kernel/model.py", "testing/reactive/views.py"},
    "Run": {"runs.py", "sync.py"},
}
# Two rooms that never meet; rename one when you are there.
FAR_APART = {
    "Session": {"cli/command.py", "performers/agent/mcp.py"},
    "Settled": {"bus/data.py", "dialects/function/awaits.py"},
    "Watched": {"dialects/function/guard.py", "performers/agent/visits.py"},
}


def classes(body: list[ast.stmt]) -> Iterator[ast.ClassDef]:
    """Those of a module, also the ones that only type checkers see, or that stand in for what is not installed."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
        elif isinstance(node, ast.If):
            yield from classes([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from classes([*node.body, *handled, *node.orelse])


def homes() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(SRC.rglob("*.py")):
        for node in classes(ast.parse(path.read_text("utf-8")).body):
            if not node.name.startswith("_"):
                found[node.name].add(path.relative_to(SRC).as_posix())
    return {name: where for name, where in found.items() if len(where) > 1}


def test_a_class_has_a_name_of_its_own() -> None:
    allowed = {**WORDS_OF_AUTHORS, **ALIKE, **FACES, **FAR_APART}
    found = homes()
    new = {name: more for name, where in found.items() if (more := where - allowed.get(name, set()))}
    assert not new, f"these names are taken; give the newer one a name of its own: {new}"
    gone = {name: where for name, where in allowed.items() if where != found.get(name)}
    assert not gone, f"these stand in fewer places now; shorten the lists: {gone}"


def test_a_class_for_type_checkers_counts() -> None:
    source = "if TYPE_CHECKING:\n    class Host: ...\nelse:\n    class Guest: ...\n"
    assert [node.name for node in classes(ast.parse(source).body)] == ["Host", "Guest"]
