"""From a parsed text to a canonical playbook: the root, and everything that concerns all steps.

All problems are reported at once. The result is spelling A, ready to be stored under its digest;
`model.load` makes it ready to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.problems import Problems
from treadle.lang.text import Document, Path

from .code import read_code
from .inputs import check_schema
from .pools import check_pool
from .reading import Reader, kind_of
from .steps import check_failure, read_loop, read_step, reject_control
from .tasks import read_task_body
from .templates import is_template

_EXECUTOR_KEYS: Final = (
    "entry_step",
    "final_step",
    "no_next_is_error",
    "on_failure",
    "on_cancel",
    "policy",
    "pool",
    "limits",
)
_EXECUTOR_POLICY_KEYS: Final = ("failure", "pending_tokens", "defaults", "limits", "results")
ROOTS: Final = ("apiVersion", "kind", "metadata", "keychain", "executor", "workload", "workflow", "workbook")
_PENDING: Final = ("wait", "discard", "complete")


def read_playbook(
    document: Document, *, strict: bool = False
) -> tuple[dict[str, Value] | None, Problems, Reader]:
    """What can be read of a playbook, and what is wrong with it. Only what is no mapping is not read at all."""
    problems = Problems(document)
    reader = Reader(problems, strict)
    root = document.value
    if not isinstance(root, dict):
        reader.error(
            "root_invalid",
            (),
            f"a playbook is a mapping, not {kind_of(root)}",
            hint="it starts with metadata: and workflow:",
        )
        return None, problems, reader
    body = _read_root(reader, root)
    _check_templates(reader, body)
    return body, problems, reader


def definition_of(document: Document, body: dict[str, Value]) -> Definition:
    """The definition of a body without errors."""
    metadata = body["metadata"]
    name = metadata.get("name") or _stem(document.file) or "playbook"
    body["metadata"] = {**metadata, "name": name}
    version = metadata.get("version")
    path = metadata.get("path")
    return Definition(
        dialect="playbook",
        name=str(name),
        version=None if version is None else str(version),
        body=body,
        path=path if isinstance(path, str) else None,
        file=document.file,
    )


def _stem(file: str | None) -> str | None:
    if not file:
        return None
    base = file.replace("\\", "/").rsplit("/", 1)[-1]
    return base.rsplit(".", 1)[0] or None


def _read_root(reader: Reader, root: dict[str, Value]) -> dict[str, Value]:
    for key in root:
        if key == "vars":
            reader.error(
                "root_vars",
                (key,),
                "there is no root vars",
                hint="inputs go to workload; state goes to ctx by set_ctx",
                rule="004 §2",
            )
        elif key not in ROOTS and key != "dialect" and not key.startswith("x-"):
            reader.unknown_key("root_unknown_key", (), key, ROOTS, "a playbook", fatal=True)
    kind = root.get("kind", "Playbook")
    if kind != "Playbook":
        reader.error(
            "kind_unknown", ("kind",), f"kind is {kind!r}", hint="kind: Playbook", rule="PLAYBOOK §5.31"
        )
    body: dict[str, Value] = {
        "metadata": reader.mapping(root.get("metadata"), "metadata_invalid", ("metadata",), "metadata") or {},
        "workload": reader.mapping(root.get("workload"), "workload_invalid", ("workload",), "workload") or {},
    }
    name = body["metadata"].get("name")
    if name is not None and (not isinstance(name, str) or not name):
        reader.error("metadata_invalid", ("metadata", "name"), f"metadata.name must be text, not {name!r}")
    check_schema(reader, body["metadata"])
    if keychain := _read_keychain(reader, root.get("keychain")):
        body["keychain"] = keychain
    if workbook := _read_workbook(reader, root.get("workbook")):
        body["workbook"] = workbook
    body["workflow"] = _read_workflow(reader, root.get("workflow"))
    names = [step["step"] for step in body["workflow"]]
    if root.get("executor") is not None:
        body["executor"] = _read_executor(reader, root["executor"], names)
    for task, path in _everywhere(body):
        task.update(read_code(reader, task, path, names))
        if "loop" in task:
            read_loop(reader, task["loop"], (*path, "loop"))
    _check_workbook_calls(reader, body)
    _check_join_sources(reader, body, names)
    return body


def _read_workflow(reader: Reader, value: Value) -> list[dict[str, Value]]:
    if not isinstance(value, list):
        reader.error(
            "workflow_missing",
            ("workflow",),
            f"workflow must be a list of steps, not {kind_of(value)}",
            hint="workflow: [{step: …}]",
            rule="004 §2",
        )
        return []
    if not value:
        reader.error("workflow_empty", ("workflow",), "workflow has no steps", rule="000 §2.1")
    steps = frozenset(
        step["step"] for step in value if isinstance(step, dict) and isinstance(step.get("step"), str)
    )
    out: list[dict[str, Value]] = []
    seen: dict[str, None] = {}
    for index, item in enumerate(value):
        path: Path = ("workflow", index)
        if len(out) != index:
            reader.moved[("workflow", len(out))] = path
        step = read_step(reader, item, path, steps)
        if step is None:
            continue
        if step["step"] in seen:
            reader.error(
                "step_duplicate", (*path, "step"), f"the step {step['step']!r} stands twice", rule="000 §1.1"
            )
        seen[step["step"]] = None
        out.append(step)
    return out


def _read_keychain(reader: Reader, value: Value) -> list[dict[str, Value]]:
    if value is None:
        return []
    if not isinstance(value, list):
        reader.error(
            "keychain_invalid",
            ("keychain",),
            f"keychain must be a list, not {kind_of(value)}",
            hint="- {name: …, kind: …}",
            rule="004 §2.1",
        )
        return []
    out: list[dict[str, Value]] = []
    seen: dict[str, None] = {}
    for index, entry in enumerate(value):
        path: Path = ("keychain", index)
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            reader.error(
                "keychain_invalid",
                path,
                "a keychain entry needs a name",
                hint="- {name: …, kind: …}",
                rule="004 §2.1",
            )
            continue
        if entry["name"] in seen:
            reader.error("keychain_duplicate", (*path, "name"), f"the entry {entry['name']!r} stands twice")
        if "map" in entry and not isinstance(entry["map"], dict):
            reader.error(
                "keychain_invalid", (*path, "map"), f"map must be a mapping, not {kind_of(entry['map'])}"
            )
        if "provider" in entry and entry["provider"] not in ("env", "file", "store"):
            reader.warning(
                "keychain_provider",
                (*path, "provider"),
                f"the provider {entry['provider']!r} is not reached from here: a secret named {entry['name']!r} "
                f"must be on this machine{_fields_text(entry.get('map'))}",
                hint=f"treadle secret set {entry['name']}, or --secrets FILE",
                rule="PLAYBOOK §6.54",
            )
        seen[entry["name"]] = None
        out.append(entry)
    return out


def _fields_text(wanted: Value) -> str:
    if not isinstance(wanted, dict) or not wanted:
        return ""
    if len(wanted) == 1:
        return f"; a plain text fills its field {next(iter(wanted))!r}"
    return f" with the fields {', '.join(wanted)}"


def _read_workbook(reader: Reader, value: Value) -> dict[str, Value]:
    """`{tasks: {name: task}}`, `{name: task}` or a list of `{name, tool: task}`."""
    if value is None:
        return {}
    entries: list[tuple[Value, Value, Path]]
    if isinstance(value, list):
        entries = [
            (item.get("name") if isinstance(item, dict) else None, item, ("workbook", index))
            for index, item in enumerate(value)
        ]
    elif isinstance(value, dict):
        nested = isinstance(value.get("tasks"), dict) and "kind" not in value["tasks"]
        tasks, base = (value["tasks"], ("workbook", "tasks")) if nested else (value, ("workbook",))
        entries = [(name, item, (*base, name)) for name, item in tasks.items()]
    else:
        reader.error(
            "workbook_invalid", ("workbook",), f"workbook must be a mapping or a list, not {kind_of(value)}"
        )
        return {}
    out: dict[str, Value] = {}
    for name, item, path in entries:
        task = item
        if isinstance(item, dict) and isinstance(item.get("tool"), dict):
            task = {**{k: v for k, v in item.items() if k not in ("tool", "name")}, **item["tool"]}
        if not isinstance(name, str) or not isinstance(task, dict):
            reader.error(
                "workbook_invalid", path, "a workbook entry needs a name and a task", hint="<name>: {kind: …}"
            )
            continue
        if name in out:
            reader.error("workbook_duplicate", path, f"the workbook entry {name!r} stands twice")
        if "input" in task:
            task = {"args": task["input"], **{k: v for k, v in task.items() if k != "input"}}
        reader.moved[("workbook", name)] = path
        read = read_task_body(reader, {**task, "name": name}, ("workbook", name), default_name=name)
        if read is not None:
            out[name] = {key: item for key, item in read.items() if key != "name"}
    return out


def _read_executor(reader: Reader, value: Value, names: list[str]) -> dict[str, Value]:
    executor = reader.mapping(value, "executor_invalid", ("executor",), "executor") or {}
    spec = reader.mapping(executor.get("spec"), "spec_invalid", ("executor", "spec"), "executor.spec") or {}
    reader.slips(spec, ("executor", "spec"), _EXECUTOR_KEYS, "executor.spec")
    check_pool(reader, spec, ("executor", "spec"))
    for key in ("entry_step", "final_step", "on_failure", "on_cancel"):
        if key in spec and spec[key] not in names:
            reader.error(
                f"{key}_unknown",
                ("executor", "spec", key),
                f"{key} is {spec[key]!r}, which is no step",
                hint=f"steps: {', '.join(names[:20])}",
                rule="000 §2.2",
            )
    if not isinstance(spec.get("no_next_is_error", False), bool):
        reader.error(
            "executor_invalid",
            ("executor", "spec", "no_next_is_error"),
            "no_next_is_error must be true or false",
        )
    path: Path = ("executor", "spec", "policy")
    policy = reader.mapping(spec.get("policy"), "policy_invalid", path, "executor.spec.policy") or {}
    reject_control(reader, policy, path, "executor")
    reader.slips(policy, path, _EXECUTOR_POLICY_KEYS, "executor.spec.policy")
    check_failure(reader, policy, path)
    _check_defaults(reader, policy.get("defaults"), (*path, "defaults"))
    reader.mapping(policy.get("limits"), "limits_invalid", (*path, "limits"), "limits")
    if "pending_tokens" in policy:
        reader.choice(
            policy["pending_tokens"],
            _PENDING,
            "pending_tokens_invalid",
            (*path, "pending_tokens"),
            "pending_tokens",
        )
    return executor


def _check_defaults(reader: Reader, value: Value, path: Path) -> None:
    """Knobs of all tasks, and under `kinds` those of one kind."""
    defaults = reader.mapping(value, "defaults_invalid", path, "defaults") or {}
    kinds = reader.mapping(defaults.get("kinds"), "defaults_invalid", (*path, "kinds"), "defaults.kinds")
    for kind, own in (kinds or {}).items():
        reader.mapping(own, "defaults_invalid", (*path, "kinds", kind), f"the defaults of {kind}")


def _check_workbook_calls(reader: Reader, body: dict[str, Value]) -> None:
    entries = body.get("workbook", {})
    for task, path in _everywhere(body):
        if task["kind"] != "workbook":
            continue
        if path[0] == "workbook":
            reader.error(
                "workbook_nested", path, "a workbook entry cannot call the workbook", hint="name a real kind"
            )
        elif task.get("task") not in list(entries):
            hint = f"entries: {', '.join(entries)}" if entries else "add workbook: {<name>: {kind: …}}"
            reader.error(
                "workbook_unknown",
                (*path, "task"),
                f"the workbook has no entry {task.get('task')!r}",
                hint=hint,
            )


def _check_join_sources(reader: Reader, body: dict[str, Value], names: list[str]) -> None:
    for index, step in enumerate(body["workflow"]):
        join = ((step.get("spec") or {}).get("policy") or {}).get("admit", {}).get("join")
        if isinstance(join, dict):
            sources = join.get("from")
            for position, source in enumerate(sources if isinstance(sources, list) else ()):
                if source not in names:
                    path = ("workflow", index, "spec", "policy", "admit", "join", "from", position)
                    reader.error("join_step_unknown", path, f"join waits for {source!r}, which is no step")


def _everywhere(body: dict[str, Value]) -> Iterator[tuple[dict[str, Value], Path]]:
    """The tasks of all steps and of the workbook."""
    yield from each_task(body)
    for name, task in body.get("workbook", {}).items():
        yield task, ("workbook", name)


def each_task(body: dict[str, Value]) -> Iterator[tuple[dict[str, Value], Path]]:
    for index, step in enumerate(body["workflow"]):
        for position, task in enumerate(step.get("tool") or ()):
            yield task, ("workflow", index, "tool", position)


def _check_templates(reader: Reader, body: dict[str, Value]) -> None:
    """Every template compiles; where the engine itself evaluates, no secret may be read."""
    for part in ("workload", "executor"):
        for path, text in _texts(body.get(part), (part,)):
            _check_template(reader, text, path, control=True)
    for index, step in enumerate(body["workflow"]):
        for key, value in step.items():
            if key == "tool":
                continue
            for path, text in _texts(value, ("workflow", index, key)):
                _check_template(reader, text, path, control=True)
    for path, text in _texts(body.get("keychain"), ("keychain",)):
        _check_template(reader, text, path, control=False)
    for task, path in _everywhere(body):
        for place, text in _texts(task, path):
            inside = place[len(path) :]
            if task["kind"] == "python" and inside in (("code",), ("code_b64",)):
                continue
            control = (
                "set_ctx" in inside
                or "set_iter" in inside
                or (inside[0] == "loop")
                or (task["kind"] in ("playbook", "workflow") and inside[0] in ("args", "input", "payload"))
            )
            _check_template(reader, text, place, control=control)


def _check_template(reader: Reader, text: str, path: Path, *, control: bool) -> None:
    compiled = reader.template(text, path)
    if compiled is None:
        return
    names = {name for name, _ in compiled.uses}
    if control and "keychain" in names:
        reader.error(
            "keychain_in_control",
            path,
            "keychain may be read by tasks only: what is evaluated here is written to the journal",
            hint="use the value inside a task, where it is resolved at the worker",
            rule="PLAYBOOK §5.20",
        )
    if reader.strict:
        for written, canonical in (("output", "outcome (in rules) or event (in arcs)"), ("input", "args")):
            if written in names:
                reader.spelled_b(path, f"{{{{ {written} }}}}", canonical)


def _texts(value: Value, path: Path) -> Iterator[tuple[Path, str]]:
    if is_template(value):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
