"""Processes written in Python. The builder makes exactly what a YAML text would say, and hands it
to the same normaliser, so both ways in lead to one canonical definition.

The decorated function runs once, when it is decorated; nothing of it is kept.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.lang.problems import Problems
from treadle.lang.text import Document, Path

from .dialect import ProcessDialect
from .terms import Term, surface, tree_of

Body = Callable[["Builder"], object]
Block = list[dict[str, Value]]


class Task:
    """A human task, declared with `task(…)` and asked for with `p.ask(…)`."""

    def __init__(self, name: str, fields: dict[str, Value], on_timeout: Body | None) -> None:
        self.name = name
        self.fields = fields
        self.on_timeout = on_timeout


def task(
    name: str,
    *,
    roles: Collection[str] = (),
    payload: object = None,
    timeout: str | None = None,
    on_timeout: Body | None = None,
    escalate_to: Collection[str] | None = None,
    schema: dict[str, Value] | None = None,
    type: str | None = None,
    title: str | None = None,
    description: str | None = None,
) -> Task:
    """Declares a human task."""
    given = {
        "roles": [roles] if isinstance(roles, str) else list(roles),
        "payload": payload,
        "timeout": timeout,
        "escalate_to": escalate_to,
        "schema": schema,
        "type": type,
        "title": title,
        "description": description,
    }
    return Task(name, {key: surface(value) for key, value in given.items() if value is not None}, on_timeout)


class Builder:
    """What the decorated function gets as `p`. Each method adds a step where it stands."""

    def __init__(self) -> None:
        self._block: Block = []
        self._loops: list[str] = []
        self._tasks: dict[str, Task] = {}
        self._declared: dict[str, dict[str, Value]] = {}
        # The line of each step, by its identity, for messages.
        self._lines: dict[int, int] = {}
        self._id: str | None = None

    # --- plumbing ---

    def _add(self, kind: str, value: object, **more: Value) -> dict[str, Value]:
        step = {kind: surface(value), **more}
        if self._id is not None:
            step["id"], self._id = self._id, None
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in (__file__, _CONTEXTLIB):
            frame = frame.f_back
        self._lines[id(step)] = frame.f_lineno
        self._block.append(step)
        return step

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        around, self._block = self._block, block
        try:
            yield
        finally:
            self._block = around

    def _built(self, body: Body) -> Block:
        if not callable(body):
            raise TypeError(f"a branch is a function of p, not {type(body).__name__}")
        block: Block = []
        with self._inside(block):
            body(self)
        return block

    def _branches(self, given: dict[str, Body | None]) -> dict[str, Block]:
        return {key: self._built(body) for key, body in given.items() if body is not None}

    def __getitem__(self, name: str) -> Term:
        """The item of a loop around, by name."""
        for loop in reversed(self._loops):
            if name in (loop, f"{loop}_index", "item_index"):
                return Term(["path", name])
        raise AttributeError(
            f"there is no loop {name!r} here; loops around: {', '.join(self._loops) or 'none'}"
        )

    def __getattr__(self, name: str) -> Term:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    # --- steps ---

    def named(self, id: str) -> Builder:
        """`p.named("charge").call(…)`: what errors and pictures call the step."""
        self._id = id
        return self

    def compensate(self, undo: Body) -> None:
        """Registers an undo. If the run fails, is given up on or is cancelled after this, what was
        registered runs in reverse order before the run ends."""
        step = self._add("compensate", [])
        step["compensate"] = self._built(undo)

    def set(self, target: Term | str | dict[Any, Any], value: object = None) -> None:
        """`p.set(state.total, 5)`; a mapping sets several at once, all from the values before."""
        targets = target if isinstance(target, dict) else {target: value}
        self._add("set", {_target(key): part for key, part in targets.items()})

    def reference(self, value: object) -> None:
        """The run's business reference."""
        self._add("reference", value)

    def ask(self, task: Task) -> None:
        """Asks people to do a task, and waits until one of them has."""
        known = self._tasks.setdefault(task.name, task)
        if known is not task:
            raise DefinitionError(f"two tasks are named {task.name!r}; give one of them another name")
        self.declare(task)
        self._add("task", task.name)

    def declare(self, task: Task) -> None:
        """Declares a task without asking for it."""
        if task.name not in self._declared:
            self._tasks[task.name] = task
            fields = self._declared[task.name] = dict(task.fields)
            if task.on_timeout is not None:
                fields["on_timeout"] = self._built(task.on_timeout)

    def call(
        self,
        transport: str,
        *,
        on_success: Body | None = None,
        on_failure: Body | None = None,
        on_timeout: Body | None = None,
        compensate: Body | None = None,
        **fields: object,
    ) -> None:
        """Calls the outside through a transport, and waits for what it gives back. `compensate`
        undoes it, if the run ends badly after it has succeeded."""
        handlers = {"on_success": on_success, "on_failure": on_failure, "on_timeout": on_timeout}
        step = self._add("call", {"transport": transport, **fields})
        step["call"].update(self._branches(handlers))
        step.update(self._branches({"compensate": compensate}))

    def wait(self, duration: object = None, *, until: object = None) -> None:
        """Waits for a duration, or until an instant."""
        if (duration is None) == (until is None):
            raise TypeError("write p.wait('1h') or p.wait(until='2026-11-15T08:00:00Z')")
        self._add("wait", duration if until is None else {"until": until})

    def await_signal(
        self,
        signal: str,
        *,
        into: str | None = None,
        timeout: str | None = None,
        on_timeout: Body | None = None,
    ) -> None:
        """Waits for a signal from outside."""
        given = {"signal": signal, "into": into, "timeout": timeout}
        step = self._add("await", {key: value for key, value in given.items() if value is not None})
        step["await"].update(self._branches({"on_timeout": on_timeout}))

    def child(
        self,
        workflow: str,
        *,
        input: object = None,
        into: str | None = None,
        on_success: Body | None = None,
        on_failure: Body | None = None,
        compensate: Body | None = None,
    ) -> None:
        """Starts another workflow and waits for its result."""
        given = {"workflow": workflow, "input": input, "into": into}
        step = self._add("child", {key: value for key, value in given.items() if value is not None})
        step["child"].update(self._branches({"on_success": on_success, "on_failure": on_failure}))
        step.update(self._branches({"compensate": compensate}))

    def continue_with(self, workflow: str, *, input: object = None) -> None:
        """Starts another workflow and goes on without it."""
        self._add("continue_with", {"workflow": workflow} | ({} if input is None else {"input": input}))

    def fork(self, **branches: Body) -> None:
        """Runs branches side by side, and goes on when all of them are done."""
        step = self._add("fork", [])
        step["fork"] = [{"branch": name, "do": self._built(body)} for name, body in branches.items()]

    def complete(self, result: object = None) -> None:
        """Ends the run, wherever it is."""
        self._add("complete", result)

    def fail(self, message: object, *, code: object = None, details: object = None) -> None:
        """Ends the run with an error."""
        given = {"message": message, "code": code, "details": details}
        more = {key: value for key, value in given.items() if value is not None}
        self._add("fail", more if set(more) - {"message"} else message)

    # --- blocks ---

    @contextmanager
    def when(self, condition: object) -> Iterator[None]:
        """`with p.when(state.total > 10): …`"""
        step = self._add("if", condition, then=[])
        with self._inside(step["then"]):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """What happens if the condition of the `when` just before is false."""
        step = self._block[-1] if self._block else {}
        if "if" not in step or "else" in step:
            raise DefinitionError("p.otherwise() stands right after a p.when(…) block")
        step["else"] = []
        with self._inside(step["else"]):
            yield

    @contextmanager
    def each(self, name: str, *, in_: object, max: int | None = None) -> Iterator[Term]:
        """Goes through a list; the item is `p.<name>`, its number `p.<name>_index`."""
        value: dict[str, Value] = {"each": name, "in": in_, "do": []}
        with self._repeating(value, max):
            self._loops.append(name)
            try:
                yield Term(["path", name])
            finally:
                self._loops.pop()

    @contextmanager
    def while_(self, condition: object, *, max: int) -> Iterator[None]:
        """Repeats as long as the condition holds, checked before each round."""
        with self._repeating({"while": condition, "do": []}, max):
            yield

    @contextmanager
    def until(self, condition: object, *, max: int) -> Iterator[None]:
        """Repeats until the condition holds, checked after each round."""
        with self._repeating({"until": condition, "do": []}, max):
            yield

    @contextmanager
    def _repeating(self, value: dict[str, Value], most: int | None) -> Iterator[None]:
        if most is not None:
            value["max"] = most
        step = self._add("repeat", value)
        with self._inside(step["repeat"]["do"]):
            yield


_CONTEXTLIB = contextmanager.__code__.co_filename


def _target(target: Term | str) -> str:
    if isinstance(target, str):
        return target
    tree = tree_of(target)
    if tree[0] != "path" or not all(isinstance(key, str) for key in tree[1:]):
        raise DefinitionError(f"{target!r} cannot be set; targets are state.<name>")
    return ".".join(tree[1:])


class Process:
    """A process written in Python: its document, and its definition."""

    dialect = "process"

    def __init__(self, document: Document) -> None:
        self.document = document
        self.name: str = document.value["name"]
        self.version: str | None = document.value.get("version")

    def compile(self, *, transports: Collection[str] = ()) -> tuple[Definition | None, Problems]:
        """The definition and everything that is wrong with it."""
        return ProcessDialect().compile(self.document, transports=transports)

    @cached_property
    def definition(self) -> Definition:
        """The definition; raises DefinitionError with every problem if it has any. Transports of
        your own are taken on trust here: the engine that runs them checks them."""
        named = [step["call"]["transport"] for step in _calls(self.document.value)]
        definition, problems = self.compile(transports=[name for name in named if isinstance(name, str)])
        problems.raise_errors()
        assert definition is not None
        return definition

    def __treadle_definitions__(self, *, file: str | None) -> list[Definition]:
        """How the engine asks; `file` says where to find this object again."""
        return [self.definition if file is None else replace(self.definition, file=file)]

    def __repr__(self) -> str:
        return f"<process {self.name}{'@' + self.version if self.version else ''}>"


def _calls(value: object) -> Iterator[dict[str, Value]]:
    if isinstance(value, dict):
        if isinstance(value.get("call"), dict) and "transport" in value["call"]:
            yield value
        for part in value.values():
            yield from _calls(part)
    elif isinstance(value, list):
        for part in value:
            yield from _calls(part)


def process(
    name: str,
    *,
    version: str | None = None,
    start: dict[str, Value] | None = None,
    retention: str | None = None,
    title: str | None = None,
    description: str | None = None,
    tasks: Collection[Task] = (),
    schedule: Mapping[str, Value] | None = None,
    alerts: Mapping[str, Value] | None = None,
    limits: Mapping[str, Value] | None = None,
) -> Callable[[Body], Process]:
    """Makes a process of the decorated function. `start` is the JSON Schema of the start payload;
    `tasks` declares tasks that no step asks for; `schedule` says when it starts by itself,
    `alerts` what is started when it fails, stalls or is late, `limits` how many of its runs go on at once."""

    def decorate(body: Body) -> Process:
        if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
            raise DefinitionError(
                f"@process({name!r}) stands over `async def`. The function describes a process and runs once, "
                "when it is decorated: write `def`, and p.wait(…) without await. Durable `async def` functions "
                "are those of treadle.flow",
                code="ASYNC_PROCESS",
            )
        builder = Builder()
        for declared in tasks:
            builder.declare(declared)
        steps = builder._built(body)
        given = {
            "dialect": "process",
            "name": name,
            "version": version,
            "title": title,
            "description": description,
            "start": None if start is None else {"schema": start},
            "retention": retention,
            "schedule": schedule,
            "alerts": alerts,
            "limits": limits,
            "tasks": builder._declared or None,
        }
        value: dict[str, Value] = {key: part for key, part in given.items() if part is not None}
        value["steps"] = steps
        code = getattr(body, "__code__", None)
        document = Document(value, code.co_filename if code else None)
        _place(value, (), builder._lines, document.positions)
        return Process(document)

    return decorate


def _place(value: object, path: Path, lines: dict[int, int], positions: dict[Path, tuple[int, int]]) -> None:
    """Notes the source line of every step, so that problems point into the Python file."""
    if isinstance(value, dict):
        if id(value) in lines:
            positions[path] = (lines[id(value)], 1)
        for key, part in value.items():
            _place(part, (*path, key), lines, positions)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _place(part, (*path, index), lines, positions)
