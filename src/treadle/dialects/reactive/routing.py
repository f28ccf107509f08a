"""Routing of domain events: a pure function of the application, the schema and the value.

`routing.subscriptions` is the only wiring. Subscriptions are evaluated in order; each that matches fires.
A subscription names a schema that a workflow takes, or the workflow's event family; then it also matches
every arm of the family. Receipts never come this way: they go to the run that asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from treadle.kernel.errors import InputInvalid
from treadle.kernel.limits import RUN_ID_CHARS_MAX
from treadle.kernel.values import Value

from .family import Family, Remark
from .names import is_name
from .shapes import BYTES, Misfit
from .workflow import EventType, Workflow, shape_at

_IN_VALUE = "$value."


@dataclass(frozen=True, slots=True)
class Subscription:
    """One line of `routing.subscriptions`, checked. `takes` finds the key in each event it matches."""

    event: str
    family: Family
    key_field: str | None
    takes: Mapping[str, str | None]

    @property
    def workflow(self) -> Workflow:
        return self.family.workflow

    def node(self) -> dict[str, Value]:
        value = {"event": self.event, "workflow": self.workflow.name}
        return value if self.key_field is None else {**value, "key_field": self.key_field}


class Delivery(NamedTuple):
    """One event for one instance."""

    workflow: str
    key: Value
    run: str
    schema: str
    value: Value


def run_id(workflow: str, key: Value = None, *, keyed: bool = True) -> str:
    """`<workflow>/<key>`; an unkeyed workflow is one run under its own name."""
    if not keyed:
        return workflow
    id = f"{workflow}/{key_text(key)}"
    if len(id) > RUN_ID_CHARS_MAX:
        raise InputInvalid(
            f"{workflow}: a key of {len(id)} characters; at most {RUN_ID_CHARS_MAX} fit a run's id"
        )
    return id


def key_order(key: Value) -> tuple[int, int | str]:
    """What cells are sorted by: text and numbers as people expect, anything else as text."""
    return (0, key) if isinstance(key, int) else (1, key_text(key))


def key_text(key: Value) -> str:
    if isinstance(key, str):
        return key
    return _AS_TEXT(key)


def _hex(value: object) -> str:
    assert isinstance(value, bytes)
    return "0x" + value.hex()


_AS_TEXT: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_hex
).encode


def key_of(workflow: Workflow, run: str) -> object:
    """The typed key of a run's id; the inverse of `run_id`. A run with another id (a child of another
    workflow) is no cell and has no key."""
    if workflow.key is None or not run.startswith(f"{workflow.name}/"):
        return None
    text = run.removeprefix(f"{workflow.name}/")
    try:
        return workflow.key.load(workflow.key.canon(text))
    except Misfit:
        value = json.loads(text)
        return bytes.fromhex(value[2:]) if workflow.key is BYTES else workflow.key.load(value)


def derived(families: Iterable[Family]) -> list[Subscription]:
    """Workflows in list order, each with its events in order."""
    return [
        subscription(family, event.name, family.workflow.key_path)
        for family in families
        for event in family.workflow.events
    ]


def read(
    lines: Sequence[Mapping[str, Value]], families: Mapping[str, Family]
) -> tuple[list[Subscription], list[Remark]]:
    """Checks subscriptions that were written by hand; `op` is accepted for `workflow`. Every line that is
    wrong is told, and the others are read."""
    found: list[Subscription] = []
    remarks: list[Remark] = []
    for index, line in enumerate(lines):
        where = f"routing.subscriptions[{index}]"
        try:
            one = _line(line, families)
            for other in found:
                twice = [schema for schema in one.takes if schema in other.takes]
                if one.workflow is other.workflow and twice:
                    raise Misfit(f"{twice[0]} reaches {one.workflow.name} twice; remove one")
        except Misfit as misfit:
            remarks.append((where, misfit.message))
        else:
            found.append(one)
    return found, remarks


def _line(line: object, families: Mapping[str, Family]) -> Subscription:
    if not isinstance(line, Mapping):
        raise Misfit(f"is a map of event, workflow, key_field, not {type(line).__name__}")
    if "workflow" in line and "op" in line:
        raise Misfit("op is another word for workflow; give one of them")
    key_field = line.get("key_field")
    if not isinstance(key_field, str | None):
        raise Misfit("key_field is text")
    unknown = [name for name in line if name not in ("event", "workflow", "op", "key_field")]
    event, name = line.get("event"), line.get("workflow", line.get("op"))
    if unknown or not isinstance(event, str) or not is_name(event) or name is None:
        raise Misfit(f"takes event, workflow, key_field; got {dict(line)}")
    if not isinstance(name, str) or name not in families:
        raise Misfit(f"{name} is no workflow of this application")
    return subscription(families[name], event, key_field)


def subscription(family: Family, event: str, key_field: str | None) -> Subscription:
    """One subscription, checked against the workflow. Raises Misfit."""
    workflow = family.workflow
    whole = family.arms is not None and event == family.name
    if not whole and event not in workflow.by_schema:
        raise Misfit(f"{workflow.name} takes neither {event} nor is that its family {family.name}")
    if (key_field is not None) != workflow.keyed:
        raise Misfit(f"{workflow.name} is {'keyed: name' if workflow.keyed else 'unkeyed: drop'} key_field")
    path = key_field
    if whole and path is not None:
        if not path.startswith(_IN_VALUE):
            raise Misfit(f"the key of a family stands inside the arm: write {_IN_VALUE}{path}")
        path = path.removeprefix(_IN_VALUE)
    takes: dict[str, str | None] = {}
    for arm in workflow.events if whole else (workflow.by_schema[event],):
        _check_key(workflow, arm, path)
        takes[arm.name] = path
    return Subscription(event, family, key_field, takes)


def _check_key(workflow: Workflow, arm: EventType, path: str | None) -> None:
    if path is None or workflow.key is None:
        return
    shape = shape_at(arm.shape, path)
    if shape is None:
        raise Misfit(f"{arm.name} has no field {path}")
    if shape.describe() != workflow.key.describe():
        raise Misfit(f"{arm.name}.{path} is {shape.describe()}, the key is {workflow.key.describe()}")


def deliveries(subscriptions: Sequence[Subscription], schema: str, value: Value) -> list[Delivery]:
    """Who gets a canonical event, in order. A family's event is delivered as its arm."""
    found: list[Delivery] = []
    for line in subscriptions:
        family = line.family
        arm_schema, arm_value = schema, value
        if schema == line.event == family.name and family.arms is not None:
            arm_schema, arm_value = family.schema(value["$tag"]), value["$value"]
        elif schema not in line.takes:
            continue
        workflow, path = family.workflow, line.takes[arm_schema]
        key = None if path is None else _at(arm_value, path)
        id = run_id(workflow.name, key, keyed=workflow.keyed)
        found.append(Delivery(workflow.name, key, id, arm_schema, arm_value))
    return found


def _at(value: Value, path: str) -> Value:
    for name in path.split("."):
        value = value[name]
    return value
