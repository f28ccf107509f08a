"""From what people write (YAML, JSON, the Python builder) to the one canonical definition.

The canonical form has the shape of the text, with every choice made: expressions are trees,
durations are spelled one way, defaults are written out, sugar is gone. So it can be read again,
and reading it again changes nothing. All problems of a document are reported at once, each with
its place. What needs a registry (is a child deployed?) is left to whoever has one; `requires`
says what to look for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value, encode
from treadle.lang.definition import STANDING
from treadle.lang.problems import Problems
from treadle.lang.text import Document, Path

from .reader import CHILD_NOT_DEPLOYED, LoopNames, Reader
from .steps import StepReader

RETENTION_DEFAULT: Final = "30d"
__all__ = ["CHILD_NOT_DEPLOYED", "RETENTION_DEFAULT", "normalise"]

_TOP: Final = (
    "dialect",
    "name",
    "version",
    "title",
    "description",
    "start",
    "retention",
    "tasks",
    "steps",
    "requires",
    *STANDING,
)
_TASK: Final = (
    "title", "description", "type", "roles", "payload", "schema", "timeout", "on_timeout", "escalate_to",
)  # fmt: skip


def normalise(document: Document, transports: Collection[str]) -> tuple[dict[str, Value] | None, Problems]:
    """The canonical body of a document, or None if it has errors."""
    problems = Problems(document)
    reader = StepReader(problems, transports)
    top = reader.fields(document.value, (), _TOP, "a process")
    if top is None:
        return None, problems
    body: dict[str, Value] = {}
    name = reader.text(top.get("name"), ("name",), "the name of a process")
    if name and "@" in name:
        reader.error("BAD_NAME", ("name",), "a name has no @, which separates it from the version")
    body["name"] = name
    _metadata(reader, top, body)
    reader.tasks = _declared(reader, top)
    body["steps"] = reader.block(top.get("steps"), ("steps",), LoopNames())
    body["tasks"] = {task: _task(reader, reader.tasks[task], ("tasks", task), task) for task in reader.tasks}
    for task in reader.tasks:
        if task not in reader.asked:
            message = f"nothing asks for the task {task}"
            reader.warning("UNUSED_TASK", ("tasks", task), message, f"add the step `task: {task}`")
    for workflow, path in reader.started_at.items():
        if workflow.partition("@")[0] != name:
            message = f"the workflow {workflow} must be deployed when this one runs"
            reader.warning(CHILD_NOT_DEPLOYED, path, message, "deploy it first")
    body["requires"] = reader.requires.to_value()
    if not problems.errors:
        _check_size(reader, body)
    return (None if problems.errors else body), problems


def _metadata(reader: Reader, top: dict[str, Value], body: dict[str, Value]) -> None:
    version = top.get("version")
    if isinstance(version, float):
        reader.warning(
            "VERSION_NUMBER", ("version",), f"the version is read as {version}", "put it in quotes"
        )
    if isinstance(version, int | float) and not isinstance(version, bool):
        version = str(version)
    if version is not None and reader.text(version, ("version",), "the version"):
        body["version"] = version
    for field_name in ("title", "description"):
        if top.get(field_name) is not None and reader.text(top[field_name], (field_name,), field_name):
            body[field_name] = top[field_name]
    body |= {field_name: top[field_name] for field_name in STANDING if top.get(field_name) is not None}
    if top.get("start") is not None:
        start = reader.fields(top["start"], ("start",), ("schema",), "start")
        if start and start.get("schema") is not None:
            body["start"] = {"schema": reader.schema(start["schema"], ("start", "schema"))}
    retention = top.get("retention", RETENTION_DEFAULT)
    body["retention"] = reader.duration(retention, ("retention",))


def _declared(reader: Reader, top: dict[str, Value]) -> Mapping[str, Value]:
    tasks = top.get("tasks")
    if tasks is None:
        return {}
    if not isinstance(tasks, dict):
        reader.error("NOT_A_MAPPING", ("tasks",), "tasks must be a mapping of name to declaration")
        return {}
    return {key: {} if value is None else value for key, value in tasks.items()}


def _task(reader: StepReader, value: Value, path: Path, name: str) -> Value:
    declaration = reader.fields(value, path, _TASK, f"the task {name}")
    if declaration is None:
        return None
    uses = reader.asked.get(name, [])
    # A declaration may read what every place that asks for it can see.
    names = LoopNames(frozenset.intersection(*(place.loops for place in uses))) if uses else LoopNames()
    out: dict[str, Value] = {"roles": reader.texts(declaration.get("roles", []), (*path, "roles"), "roles")}
    for field_name in ("title", "description", "type"):
        if declaration.get(field_name) is not None:
            out[field_name] = reader.text(declaration[field_name], (*path, field_name), field_name)
    if declaration.get("payload") is not None:
        out["payload"] = reader.template(declaration["payload"], (*path, "payload"), names)
    if declaration.get("schema") is not None:
        out["schema"] = reader.schema(declaration["schema"], (*path, "schema"))
    if declaration.get("timeout") is not None:
        out["timeout"] = reader.duration(declaration["timeout"], (*path, "timeout"))
    if declaration.get("escalate_to") is not None:
        out["escalate_to"] = reader.texts(declaration["escalate_to"], (*path, "escalate_to"), "escalate_to")
    if declaration.get("on_timeout") is not None:
        out["on_timeout"] = reader.block(declaration["on_timeout"], (*path, "on_timeout"), names)
    for field_name in ("on_timeout", "escalate_to"):
        if field_name in out and "timeout" not in out:
            reader.error(
                "NO_TIMEOUT",
                (*path, field_name),
                f"{field_name} needs a timeout beside it",
                "add `timeout: 3d`",
            )
    if "on_timeout" in out and "escalate_to" in out:
        reader.warning(
            "NEVER_ESCALATED", (*path, "escalate_to"), "on_timeout runs first, so nothing is escalated"
        )
    return out


def _check_size(reader: Reader, body: dict[str, Value]) -> None:
    try:
        encode(body)
    except TreadleError as error:
        reader.error(
            "BAD_VALUE", (), error.message, "a definition holds JSON values, nested at most 128 deep"
        )
