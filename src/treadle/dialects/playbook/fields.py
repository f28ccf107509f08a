"""Tasks held to the fields that their tools declare: unknown, missing and mistyped ones are told.

What is nearly a known name is an error, because the field it stands for is missing; what is like
nothing known is a warning, because a later version may know it. Templates fit everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.fields import Declared, Field, Fields
from treadle.lang.slips import likeness, nearest
from treadle.lang.sql import wrong_with
from treadle.lang.text import Path

from .layers import merge
from .own_fields import COMMON, OWN, SPEC
from .reading import Reader, kind_of
from .templates import is_template

_RULE: Final = "PLAYBOOK §6.51"
_NEAR: Final = 0.8


def check_fields(reader: Reader, body: dict[str, Value], declared: Declared) -> None:
    """Every task of the steps and of the workbook."""
    workbook = body.get("workbook") or {}
    for index, step in enumerate(body["workflow"]):
        for position, task in enumerate(step.get("tool") or ()):
            path: Path = ("workflow", index, "tool", position)
            if task["kind"] == "workbook":
                called = task.get("task")
                entry = workbook.get(called, {}) if isinstance(called, str) else {}
                _check_call(reader, task, entry, path, declared)
            elif (fields := OWN.get(task["kind"]) or declared(task["kind"])) is not None:
                _check_task(reader, task, fields, path)
                _check_missing(reader, task, fields, path)
    for name, entry in workbook.items():
        # A call may bring what an entry lacks, so nothing is missing here.
        if (fields := OWN.get(entry["kind"]) or declared(entry["kind"])) is not None:
            _check_task(reader, entry, fields, ("workbook", name))


def _check_call(
    reader: Reader, task: dict[str, Value], entry: dict[str, Value], path: Path, declared: Declared
) -> None:
    kind = entry.get("kind", "")
    if (fields := OWN.get(kind) or declared(kind)) is not None:
        own = {key: value for key, value in task.items() if key != "task"}
        _check_task(reader, {**own, "kind": kind}, fields, path)
        _check_missing(reader, {**merge(entry, own), "kind": kind}, fields, path)


def _check_task(reader: Reader, task: dict[str, Value], fields: Fields, path: Path) -> None:
    kind = task["kind"]
    for key, value in task.items():
        if (field := fields.find(key) or COMMON.find(key)) is not None:
            _check_type(reader, field, key, value, (*path, key), f"a {kind} task")
        elif not key.startswith("x-"):
            _unknown(reader, key, task, [*fields.names, *COMMON.names], path, f"a {kind} task")
    spec = task.get("spec")
    for key, value in (spec if isinstance(spec, dict) else {}).items():
        known = next((f for f in (*fields.spec, *SPEC) if f.name == key), None)
        place = (*path, "spec", key)
        if known is not None:
            _check_type(reader, known, key, value, place, "spec")
        elif fields.find(key) is not None:
            reader.warning(
                "field_misplaced",
                place,
                f"{key!r} does nothing under spec: it is a field of the task",
                hint=f"write {key} beside kind: {kind}",
                rule=_RULE,
            )
        elif not key.startswith("x-"):
            names = [f.name for f in (*fields.spec, *SPEC)]
            _unknown(reader, key, spec or {}, names, (*path, "spec"), f"the spec of a {kind} task")
    for key, language in fields.languages.items():
        if language == "sql" and key in task:
            _check_sql(reader, task[key], (*path, key))


def _check_type(reader: Reader, field: Field, key: str, value: Value, path: Path, what: str) -> None:
    if is_template(value) or field.takes(value):
        return
    shown = f"{value!r:.60}" if isinstance(value, str | int | float | bool) else kind_of(value)
    reader.error(
        "field_type",
        path,
        f"{key} of {what} must be {field.wanted}, not {shown}",
        hint=f"{key}: {field.about}",
        rule=_RULE,
    )


def _unknown(
    reader: Reader, key: str, present: dict[str, Value], known: list[str], path: Path, what: str
) -> None:
    if key in ("retry", "retries", "max_retries", "retry_policy"):
        reader.warning(
            "retry_misplaced",
            (*path, key),
            f"{key!r} does nothing here: what an outcome leads to is said by the task's policy",
            hint=_retry_hint(present[key]),
            rule="004 §9",
        )
        return
    near = nearest(key, known)
    slip = bool(near) and near[0] not in present and _is_slip(key, near[0])
    report = reader.error if slip else reader.warning
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(dict.fromkeys(known))}"
    report("field_unknown", (*path, key), f"{what} has no field {key!r}", hint=hint, rule=_RULE)


def _is_slip(written: str, meant: str) -> bool:
    swapped = sorted(written) == sorted(meant)
    return swapped or likeness(written, meant) >= _NEAR


def _retry_hint(given: Value) -> str:
    attempts: int = 3
    delay: float = 1
    if isinstance(given, int) and not isinstance(given, bool):
        attempts = given
    if isinstance(given, dict):
        found = next((given[k] for k in ("max_attempts", "attempts", "max_retries") if k in given), None)
        attempts = found if isinstance(found, int) else attempts
        wait = next((given[k] for k in ("delay", "initial_delay", "retry_delay") if k in given), None)
        delay = wait if isinstance(wait, int | float) else delay
    return (
        "write spec: {policy: {rules: [{when: \"{{ outcome.status == 'error' }}\", "
        f"then: {{do: retry, attempts: {attempts}, delay: {delay}}}}}, {{else: {{then: {{do: continue}}}}}}]}}}}"
    )


def _check_missing(reader: Reader, task: dict[str, Value], fields: Fields, path: Path) -> None:
    kind, args, spec = task["kind"], task.get("args"), task.get("spec")
    places = [task, args] if fields.in_args and isinstance(args, dict) else [task]
    if fields.in_args and is_template(args):
        return
    for group in fields.required:
        names = [name for wanted in group for name in _spellings(fields, wanted)]
        if any(place.get(name) is not None for place in places for name in names):
            continue
        hint = f"add {group[0]}"
        for where, value in (("args", args), ("spec", spec)):
            if isinstance(value, dict) and (found := [name for name in names if name in value]):
                hint = f"{found[0]} stands under {where}: write it beside kind: {kind}"
        if near := [key for key in task if _meant_for(key, names)]:
            hint = f"did you mean {nearest(near[0], names)[0]!r} by {near[0]!r}?"
        wanted = group[0] if len(group) == 1 else f"one of {', '.join(group[:5])}"
        reader.error("field_missing", path, f"a {kind} task needs {wanted}", hint=hint, rule=_RULE)


def _meant_for(key: str, names: list[str]) -> bool:
    return COMMON.find(key) is None and bool(nearest(key, names))


def _spellings(fields: Fields, name: str) -> Iterator[str]:
    yield name
    if (field := fields.find(name)) is not None:
        yield from field.also


def _check_sql(reader: Reader, value: Value, path: Path) -> None:
    for index, item in enumerate(value if isinstance(value, list) else [value]):
        text = item.get("sql") if isinstance(item, dict) else item
        if not isinstance(text, str) or is_template(text) or (wrong := wrong_with(text)) is None:
            continue
        place = (*path, index) if isinstance(value, list) else path
        reader.error("sql_syntax", place, f"this is not SQL: {wrong[0]}", hint=wrong[1], rule=_RULE)
