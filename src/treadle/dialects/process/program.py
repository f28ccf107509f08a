"""A canonical definition made ready to run: blocks of operations, expressions compiled.

Blocks are addressed by their path in the definition (`steps`, `steps[3].then`,
`steps[5].fork.left`, `tasks.approve.on_timeout`), which is what the frames of a run hold. So a
run's position is data and survives any restart, and a person can read it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration, parse_instant
from treadle.lang.expressions.closures import (
    Closure,
    Scope,
    compile_condition,
    compile_template,
    is_expression,
)

Condition = Callable[[Scope], bool]


class Op(msgspec.Struct, kw_only=True):
    """One step. `path` is stable: people, errors and frames name the step by it."""

    path: str
    kind: str
    label: str = ""
    # What its author calls it: its `id`, `into`, task, signal or workflow.
    named: str = ""


class Assign(Op, kw_only=True):
    targets: list[tuple[list[str], Closure]]


class Refer(Op, kw_only=True):
    value: Closure


class TaskDeclaration(msgspec.Struct, kw_only=True):
    """A declaration under `tasks:`."""

    name: str
    roles: list[str]
    fixed: dict[str, Value]
    payload: Closure | None
    timeout_ns: int | None
    escalate_to: list[str]
    on_timeout: str | None


class Ask(Op, kw_only=True):
    task: TaskDeclaration


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int
    backoff: str
    delay_ns: int
    max_delay_ns: int | None
    jitter: bool


class Call(Op, kw_only=True):
    transport: str
    pool: str
    address: Closure
    payload: Closure | None
    into: str | None
    timeout_ns: int | None
    deadline_ns: int | None
    retry: RetryPolicy | None
    handlers: dict[str, str]
    undo: str | None = None


class Choice(Op, kw_only=True):
    test: Condition
    then: str
    otherwise: str


class Repeat(Op, kw_only=True):
    """`kind` is each, while or until."""

    body: str
    most: int | None
    name: str = ""
    source: Closure | None = None
    test: Condition | None = None


class Fork(Op, kw_only=True):
    branches: list[tuple[str, str]]


class Wait(Op, kw_only=True):
    """Either a constant or an expression, either a duration or an instant."""

    until: bool
    constant_ns: int | None
    value: Closure | None


class Await(Op, kw_only=True):
    signal: str
    into: str | None
    timeout_ns: int | None
    handlers: dict[str, str]


class Compensate(Op, kw_only=True):
    """Registers an undo; the block runs if the run ends badly later."""

    block: str


class Start(Op, kw_only=True):
    """`kind` is child (wait for it) or continue_with (go on)."""

    workflow: str
    input: Closure | None
    into: str | None
    handlers: dict[str, str]
    undo: str | None = None


class Complete(Op, kw_only=True):
    result: Closure


class Fail(Op, kw_only=True):
    message: Closure
    code: Closure | None
    details: Closure | None


class Program(msgspec.Struct):
    """What `Machine.load` makes of a body."""

    body: dict[str, Value]
    name: str = ""
    version: str | None = None
    retention_ns: int = 0
    schema: Value = None
    blocks: dict[str, list[Op]] = msgspec.field(default_factory=dict)
    ops: dict[str, Op] = msgspec.field(default_factory=dict)
    # The canonical step behind each operation, for pictures.
    sources: dict[str, dict[str, Value]] = msgspec.field(default_factory=dict)
    tasks: dict[str, TaskDeclaration] = msgspec.field(default_factory=dict)


def load(body: dict[str, Value]) -> Program:
    program = Program(
        body,
        name=body["name"],
        version=body.get("version"),
        retention_ns=parse_duration(body["retention"]),
        schema=body.get("start", {}).get("schema"),
    )
    for name in sorted(body["tasks"]):
        program.tasks[name] = _task(name, body["tasks"][name])
    for name in sorted(body["tasks"]):
        if "on_timeout" in body["tasks"][name]:
            _block(program, f"tasks.{name}.on_timeout", body["tasks"][name]["on_timeout"])
    _block(program, "steps", body["steps"])
    return program


def _task(name: str, value: dict[str, Value]) -> TaskDeclaration:
    fixed: dict[str, Value] = {
        key: value[key] for key in ("title", "description", "type", "schema") if key in value
    }
    return TaskDeclaration(
        name=name,
        roles=value["roles"],
        fixed=fixed,
        payload=_closure(value, "payload"),
        timeout_ns=_ns(value, "timeout"),
        escalate_to=value.get("escalate_to", []),
        on_timeout=f"tasks.{name}.on_timeout" if "on_timeout" in value else None,
    )


def _block(program: Program, path: str, steps: list[dict[str, Value]]) -> str:
    ops = program.blocks[path] = []
    for index, step in enumerate(steps):
        kind = kind_of(step)
        op = _MAKERS[kind](program, f"{path}[{index}]", step)
        if "id" in step:
            op.label = op.named = step["id"]
        if isinstance(op, Call | Start) and "compensate" in step:
            op.undo = _block(program, f"{op.path}.compensate", step["compensate"])
        program.ops[op.path], program.sources[op.path] = op, step
        ops.append(op)
    return path


def kind_of(step: dict[str, Value]) -> str:
    """What a canonical step is. `compensate` may also stand beside what it undoes."""
    return next((key for key in step if key in _MAKERS and key != "compensate"), "compensate")


def _closure(value: dict[str, Value], key: str) -> Closure | None:
    return compile_template(value[key]) if key in value else None


def _ns(value: dict[str, Value], key: str) -> int | None:
    return parse_duration(value[key]) if key in value else None


def _handlers(program: Program, path: str, value: dict[str, Value]) -> dict[str, str]:
    return {
        key: _block(program, f"{path}.{key}", value[key])
        for key in ("on_success", "on_failure", "on_timeout")
        if key in value
    }


def _assign(program: Program, path: str, step: dict[str, Value]) -> Op:
    targets = step["set"]
    return Assign(
        path=path,
        kind="set",
        label="set " + ", ".join(sorted(targets)),
        targets=[(target.split(".")[1:], compile_template(targets[target])) for target in sorted(targets)],
    )


def _refer(program: Program, path: str, step: dict[str, Value]) -> Op:
    return Refer(path=path, kind="reference", label="reference", value=compile_template(step["reference"]))


def _ask(program: Program, path: str, step: dict[str, Value]) -> Op:
    return Ask(
        path=path, kind="task", label=step["task"], named=step["task"], task=program.tasks[step["task"]]
    )


_NOT_ADDRESS = ("transport", "pool", "payload", "into", "timeout", "deadline", "retry", "on_success", "on_failure", "on_timeout")  # fmt: skip


def _call(program: Program, path: str, step: dict[str, Value]) -> Op:
    value = step["call"]
    policy = value.get("retry")
    return Call(
        path=path,
        kind="call",
        label=value.get("into") or value["transport"],
        named=value.get("into") or "",
        transport=value["transport"],
        pool=value.get("pool") or "",
        address=compile_template({key: value[key] for key in value if key not in _NOT_ADDRESS}),
        payload=_closure(value, "payload"),
        into=value.get("into"),
        timeout_ns=_ns(value, "timeout"),
        deadline_ns=_ns(value, "deadline"),
        retry=None
        if policy is None
        else RetryPolicy(
            attempts=policy["attempts"],
            backoff=policy["backoff"],
            delay_ns=parse_duration(policy["delay"]),
            max_delay_ns=_ns(policy, "max_delay"),
            jitter=policy["jitter"],
        ),
        handlers=_handlers(program, f"{path}.call", value),
    )


def _choice(program: Program, path: str, step: dict[str, Value]) -> Op:
    return Choice(
        path=path,
        kind="if",
        label="if",
        test=compile_condition(step["if"]),
        then=_block(program, f"{path}.then", step["then"]),
        otherwise=_block(program, f"{path}.else", step["else"]),
    )


def _repeat(program: Program, path: str, step: dict[str, Value]) -> Op:
    value = step["repeat"]
    kind = next(key for key in ("each", "while", "until") if key in value)
    op = Repeat(
        path=path,
        kind=kind,
        label=f"each {value['each']}" if kind == "each" else kind,
        body=_block(program, f"{path}.repeat.do", value["do"]),
        most=value.get("max"),
    )
    if kind == "each":
        op.name, op.source = value["each"], compile_template(value["in"], bounded=False)
    else:
        op.test = compile_condition(value[kind])
    return op


def _fork(program: Program, path: str, step: dict[str, Value]) -> Op:
    branches = [
        (branch["branch"], _block(program, f"{path}.fork.{branch['branch']}", branch["do"]))
        for branch in step["fork"]
    ]
    return Fork(path=path, kind="fork", label="fork", branches=branches)


def _wait(program: Program, path: str, step: dict[str, Value]) -> Op:
    value = step["wait"]
    until = isinstance(value, dict) and "until" in value
    given = value["until"] if until else value
    if is_expression(given):
        return Wait(
            path=path, kind="wait", label="wait", until=until, constant_ns=None, value=compile_template(given)
        )
    constant = parse_instant(given) if until else parse_duration(given)
    label = f"wait until {given}" if until else f"wait {given}"
    return Wait(path=path, kind="wait", label=label, until=until, constant_ns=constant, value=None)


def _await(program: Program, path: str, step: dict[str, Value]) -> Op:
    value = step["await"]
    return Await(
        path=path,
        kind="await",
        label=value["signal"],
        named=value["signal"],
        signal=value["signal"],
        into=value.get("into"),
        timeout_ns=_ns(value, "timeout"),
        handlers=_handlers(program, f"{path}.await", value),
    )


def _start(program: Program, path: str, step: dict[str, Value]) -> Op:
    kind = "child" if "child" in step else "continue_with"
    value = step[kind]
    return Start(
        path=path,
        kind=kind,
        label=value["workflow"],
        named=value["workflow"],
        workflow=value["workflow"],
        input=_closure(value, "input"),
        into=value.get("into"),
        handlers=_handlers(program, f"{path}.{kind}", value),
    )


def _compensate(program: Program, path: str, step: dict[str, Value]) -> Op:
    block = _block(program, f"{path}.compensate", step["compensate"])
    return Compensate(path=path, kind="compensate", label="compensate", block=block)


def _complete(program: Program, path: str, step: dict[str, Value]) -> Op:
    return Complete(path=path, kind="complete", label="complete", result=compile_template(step["complete"]))


def _fail(program: Program, path: str, step: dict[str, Value]) -> Op:
    value = step["fail"]
    if not isinstance(value, dict) or is_expression(value):
        value = {"message": value}
    return Fail(
        path=path,
        kind="fail",
        label="fail",
        message=compile_template(value["message"]),
        code=_closure(value, "code"),
        details=_closure(value, "details"),
    )


_MAKERS: dict[str, Callable[[Program, str, dict[str, Value]], Op]] = {
    "set": _assign,
    "reference": _refer,
    "task": _ask,
    "call": _call,
    "if": _choice,
    "repeat": _repeat,
    "fork": _fork,
    "wait": _wait,
    "await": _await,
    "child": _start,
    "continue_with": _start,
    "complete": _complete,
    "fail": _fail,
    "compensate": _compensate,
}
