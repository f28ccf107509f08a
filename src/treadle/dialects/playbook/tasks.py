"""Tasks of a step: shapes, names, outcome policies (seed 004 §5.4 and §7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.text import Path

from .reading import CONDITIONS, LEGACY, Reader, kind_of, reject_conditions, reject_legacy
from .spelling import output_as_result, rename, split_set
from .sugar import Placed, expand, is_sugar
from .templates import is_template

ACTIONS: Final = ("retry", "jump", "continue", "break", "fail")
BACKOFFS: Final = ("none", "linear", "exponential")
PREVIOUS: Final = ("previous", "prev", "_previous", "@previous")
_POLICY_KEYS: Final = ("mode", "on_unmatched", "before", "after", "finally", "rules")
_THEN_KEYS: Final = (
    "do",
    "attempts",
    "backoff",
    "delay",
    "max_delay",
    "jitter",
    "respect_retry_after",
    "to",
    "set_iter",
    "set_ctx",
)


def read_tool(
    reader: Reader, step: str, value: Value, path: Path, steps: frozenset[str]
) -> list[dict[str, Value]]:
    """Any of the accepted shapes as the canonical list of named tasks."""
    if isinstance(value, dict):
        if is_sugar(value):
            placed = expand(reader, [value], path)
        elif _label_sugar(value):
            return _reject_label(reader, value, path)
        else:
            name = value.get("name", f"{step}_task")
            placed = [({**value, "name": name}, path)]
    elif isinstance(value, list):
        placed = expand(reader, value, path)
    else:
        reader.error(
            "tool_invalid",
            path,
            f"tool must be a task or a list of tasks, not {kind_of(value)}",
            rule="004 §7",
        )
        return []
    if not placed and not reader.problems.errors:
        reader.error(
            "tool_empty",
            path,
            "tool is an empty list",
            hint="add a task, or leave tool out of a pure routing step",
        )
    return _read_list(reader, placed, path, steps)


def _read_list(
    reader: Reader, placed: list[Placed], path: Path, steps: frozenset[str]
) -> list[dict[str, Value]]:
    tasks: list[dict[str, Value]] = []
    seen: dict[str, None] = {}
    for index, (value, place) in enumerate(placed):
        reader.moved[(*path, index)] = place
        task = _read_task(reader, value, (*path, index), index)
        if task is None:
            continue
        if task["name"] in seen:
            reader.error(
                "task_duplicate",
                (*path, index, "name"),
                f"the task {task['name']!r} stands twice in this pipeline",
                hint="names are jump targets; give each task its own",
                rule="004 §7.5",
            )
        seen[task["name"]] = None
        tasks.append(task)
    for index, task in enumerate(tasks):
        _check_jumps(reader, task, (*path, index), seen, steps)
    return tasks


def _label_sugar(value: dict[str, Value]) -> bool:
    if "kind" in value or "tool" in value or len(value) != 1:
        return False
    (inner,) = value.values()
    return isinstance(inner, dict) and "kind" in inner


def _reject_label(reader: Reader, value: dict[str, Value], path: Path) -> list[dict[str, Value]]:
    (label,) = value
    reader.error(
        "task_label_sugar",
        (*path, label),
        f"the form {{{label}: {{kind: …}}}} is removed",
        hint=f"write - name: {label} with kind and the other fields beside it",
        rule="004 §7.4",
    )
    return []


def _read_task(reader: Reader, value: Value, path: Path, index: int) -> dict[str, Value] | None:
    if not isinstance(value, dict):
        reader.error("task_invalid", path, f"a task must be a mapping, not {kind_of(value)}", rule="004 §7")
        return None
    if _label_sugar(value):
        _reject_label(reader, value, path)
        return None
    reject_legacy(reader, value, path, "a task")
    for key, hint in (
        ("when", "guard an outcome with spec.policy.rules, a step with spec.policy.admit"),
        ("policy", "a task's policy stands under spec: spec.policy.rules"),
        ("next", "tasks never start steps; routing stands at step.next"),
    ):
        if key in value:
            reader.error(f"task_{key}", (*path, key), f"a task has no {key!r}", hint=hint, rule="004 §1")
    task = {key: item for key, item in value.items() if key not in LEGACY}
    task = rename(reader, task, path, "input", "args")
    task = split_set(reader, task, path, scopes=("ctx", "iter"))
    task = output_as_result(reader, task, path)
    return read_task_body(reader, task, path, default_name=f"task_{index}")


def read_task_body(
    reader: Reader, task: dict[str, Value], path: Path, *, default_name: str
) -> dict[str, Value] | None:
    kind = task.get("kind")
    if not isinstance(kind, str) or not kind:
        reader.error(
            "task_kind_missing",
            path,
            "a task needs a kind",
            hint="kind: http, python, postgres, …",
            rule="004 §7",
        )
        return None
    if kind == "sink":
        reader.error(
            "sink_removed",
            (*path, "kind"),
            "there is no sink kind",
            hint="use the storage tool itself (postgres, artifact, nats, …); it returns a reference",
            rule="004 §10",
        )
    if kind in ("loop", "iterator"):
        reader.error(
            "loop_is_no_kind",
            (*path, "kind"),
            f"{kind} is not a tool kind",
            hint="loop is a key of the step",
            rule="004 §8",
        )
    name = task.get("name", default_name)
    if not isinstance(name, str) or not name:
        reader.error("task_name_invalid", (*path, "name"), f"a task's name must be text, not {name!r}")
        name = default_name
    out = {**task, "name": name, "kind": kind}
    if kind == "workbook" and "task" not in task and isinstance(task.get("name"), str):
        out["task"] = task["name"]
    if "spec" in task:
        spec = reader.mapping(task["spec"], "spec_invalid", (*path, "spec"), "spec")
        out["spec"] = spec or {}
        if spec and "policy" in spec:
            out["spec"] = {**spec, "policy": _read_policy(reader, spec["policy"], (*path, "spec", "policy"))}
    for key in ("set_ctx", "set_iter"):
        if key in task and not isinstance(task[key], dict):
            reader.error(f"{key}_invalid", (*path, key), f"{key} must be a mapping, not {kind_of(task[key])}")
    return out


def _read_policy(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    if not isinstance(value, dict):
        reader.error(
            "policy_shape",
            path,
            f"a task's policy must be an object with rules, not {kind_of(value)}",
            hint="write policy: {rules: [{when: …, then: {do: …}}, {else: {then: {do: …}}}]}",
            rule="004 §5.4",
        )
        return {"rules": []}
    for key in value:
        if key in ("admit", "lifecycle", "failure", "exec"):
            scope = "loop" if key == "exec" else "step"
            reader.error(
                "policy_scope",
                (*path, key),
                f"{key!r} is a {scope} policy",
                hint=f"move it to {scope}.spec.policy",
                rule="004 §5",
            )
        elif key in ("eval", "expr"):
            reject_legacy(reader, {key: None}, path, "a policy")
        elif key not in _POLICY_KEYS:
            reader.unknown_key("policy_unknown_key", path, key, _POLICY_KEYS, "a task's policy")
    if "rules" not in value:
        reader.error(
            "policy_rules_missing",
            path,
            "a task's policy needs rules",
            hint="add rules: [ … ]",
            rule="004 §5.4",
        )
        return {**value, "rules": []}
    return {**value, "rules": read_rules(reader, value["rules"], (*path, "rules"), _read_then)}


def read_rules(
    reader: Reader, value: Value, path: Path, read_then: Callable[[Reader, Value, Path], Value]
) -> list[dict[str, Value]]:
    """Ordered rules with an optional last else; used by task policies and by admission."""
    if not isinstance(value, list):
        reader.error("rules_invalid", path, f"rules must be a list, not {kind_of(value)}", rule="004 §5.4")
        return []
    rules: list[dict[str, Value]] = []
    for index, rule in enumerate(value):
        place = (*path, index)
        if not isinstance(rule, dict):
            reader.error("rule_invalid", place, f"a rule must be a mapping, not {kind_of(rule)}")
            continue
        reject_legacy(reader, rule, place, "a rule")
        reject_conditions(reader, rule, place, "a rule", 'write when: "{{ … }}"')
        if extra := [key for key in rule if key not in ("when", "then", "else", *CONDITIONS, *LEGACY)]:
            reader.unknown_key(
                "rule_unknown_key", place, extra[0], ("when", "then", "else"), "a rule", fatal=True
            )
        if "else" in rule:
            if index != len(value) - 1:
                reader.error("else_not_last", place, "else must be the last rule", rule="PLAYBOOK §5.16")
            inner = rule["else"]
            nested = isinstance(inner, dict) and "then" in inner
            then = inner["then"] if nested else rule.get("then", inner)
            where = (*place, "else", "then") if nested else (*place, "then" if "then" in rule else "else")
            if not nested:
                reader.moved[(*place, "else", "then")] = reader.source(where)
            rules.append({"else": {"then": read_then(reader, then, where)}})
            continue
        if "when" not in rule:
            if not {"eval", "expr", "case", *CONDITIONS} & set(rule):
                reader.error("rule_when_missing", place, "a rule needs when or else", rule="004 §5.4")
            continue
        condition = reader.condition(rule["when"], (*place, "when"))
        if "then" not in rule:
            reader.error(
                "rule_then_missing", place, "a rule needs then", hint="then: {do: continue}", rule="004 §5.4"
            )
            continue
        rules.append({"when": condition, "then": read_then(reader, rule["then"], (*place, "then"))})
    return rules


def _read_then(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    if not isinstance(value, dict):
        reader.error(
            "then_invalid", path, f"then must be a mapping, not {kind_of(value)}", hint="then: {do: continue}"
        )
        return {"do": "continue"}
    then = split_set(reader, value, path, scopes=("ctx", "iter"))
    for key in then:
        if key not in _THEN_KEYS:
            reader.unknown_key("then_unknown_key", path, key, _THEN_KEYS, "then")
    do = then.get("do")
    if do is None:
        reader.error(
            "do_missing", path, "then needs do", hint=f"do: one of {', '.join(ACTIONS)}", rule="004 §5.4"
        )
        return {**then, "do": "continue"}
    if do not in ACTIONS:
        hint = "continue goes on to the next task" if do == "skip" else f"do: one of {', '.join(ACTIONS)}"
        reader.error("do_unknown", (*path, "do"), f"do: {do!r} is not an action", hint=hint, rule="004 §5.4")
    if do == "jump" and not isinstance(then.get("to"), str):
        reader.error("jump_to_missing", path, "do: jump needs to: <task name>", rule="004 §5.4")
    if do == "retry":
        if then.get("backoff") == "fixed":
            reader.spelled_b((*path, "backoff"), "backoff: fixed", "backoff: none")
            then = {**then, "backoff": "none"}
        _check_retry(reader, then, path)
    for key in ("set_iter", "set_ctx"):
        if key in then and not isinstance(then[key], dict):
            reader.error(f"{key}_invalid", (*path, key), f"{key} must be a mapping, not {kind_of(then[key])}")
    return then


def _check_retry(reader: Reader, then: dict[str, Value], path: Path) -> None:
    attempts = then.get("attempts", 1)
    if not is_template(attempts) and (
        isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1
    ):
        reader.error(
            "attempts_invalid",
            (*path, "attempts"),
            f"attempts is {attempts!r}",
            hint="the total number of tries, 1 or more",
        )
    if (backoff := then.get("backoff", "none")) not in BACKOFFS:
        reader.choice(backoff, BACKOFFS, "backoff_invalid", (*path, "backoff"), "backoff")
    for key in ("delay", "max_delay"):
        delay = then.get(key, 0)
        if not is_template(delay) and (
            isinstance(delay, bool) or not isinstance(delay, int | float) or delay < 0
        ):
            reader.error(f"{key}_invalid", (*path, key), f"{key} is {delay!r}", hint="seconds, 0 or more")


def _check_jumps(
    reader: Reader, task: dict[str, Value], path: Path, labels: dict[str, None], steps: frozenset[str]
) -> None:
    policy = (task.get("spec") or {}).get("policy") or {}
    for index, rule in enumerate(policy.get("rules") or ()):
        then = rule["else"]["then"] if "else" in rule else rule["then"]
        to = then.get("to")
        if then.get("do") != "jump" or not isinstance(to, str) or to in labels or to in PREVIOUS:
            continue
        place = (*path, "spec", "policy", "rules", index)
        place = (*place, "else", "then", "to") if "else" in rule else (*place, "then", "to")
        if to in steps:
            reader.error(
                "jump_to_step",
                place,
                f"jump goes to the step {to!r}; a task policy never starts steps",
                hint="route with next.arcs, or jump to a task of this pipeline",
                rule="004 §1",
            )
        else:
            reader.error(
                "jump_unknown",
                place,
                f"jump goes to {to!r}, which is no task of this pipeline",
                hint=f"tasks here: {', '.join(labels)}",
                rule="004 §5.4",
            )
