"""Steps in canonical form: one method per kind of step.

Each method gets what stands under the step's key and gives back the canonical step, a mapping with
the kind as its first key. A step that cannot be read gives None; there is an error then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text, parse_instant
from treadle.lang.expressions.closures import is_expression
from treadle.lang.expressions.syntax import KEYWORDS
from treadle.lang.pools import POOL_HINT, is_pool
from treadle.lang.text import Path

from .parts import ROOTS
from .reader import LoopNames, Reader
from .transports import BUILT_IN, COMMON

ATTEMPTS_MAX: Final = 1000
REPEAT_MAX: Final = 10**9
RETRY_DELAY_DEFAULT: Final = "1s"

_TARGET = re.compile(r"state(\.[A-Za-z_]\w*)+\Z", re.ASCII)
_ENDS: Final = ("complete", "fail")
# What gives a result that can be undone; `compensate` as a step of its own serves all others.
_UNDOABLE: Final = ("call", "child")
_HANDLERS: Final = ("on_success", "on_failure", "on_timeout")


class StepReader(Reader):
    """A `Reader` that knows steps and blocks of steps."""

    def block(self, value: Value, path: Path, names: LoopNames) -> list[Value]:
        """A list of steps."""
        if not isinstance(value, list):
            self.error("NOT_A_LIST", path, "steps must be a list", "write one `- kind: …` per step")
            return []
        steps = []
        for index, item in enumerate(value):
            at = (*path, index)
            steps.append(self.step(item, at, names))
            if index + 1 < len(value) and isinstance(item, dict) and any(end in item for end in _ENDS):
                self.warning(
                    "UNREACHABLE", (*path, index + 1), "this step is never reached: the run ends before it"
                )
        return steps

    def step(self, value: Value, path: Path, names: LoopNames) -> Value:
        if not isinstance(value, dict):
            self.error("NOT_A_MAPPING", path, "a step is a mapping", f"kinds of step: {', '.join(KINDS)}")
            return None
        found = [kind for kind in KINDS if kind in value]
        if len(found) == 2 and found[0] in _UNDOABLE and found[1] == "compensate":
            found.pop()  # it stands beside what it undoes
        if len(found) != 1:
            what = (
                f"has {' and '.join(found)}"
                if found
                else f"has no kind among its keys ({', '.join(map(str, value))})"
            )
            self.error(
                "BAD_STEP",
                path,
                f"a step has exactly one kind; this one {what}",
                f"kinds: {', '.join(KINDS)}",
            )
            return None
        kind = found[0]
        if kind == "if":
            out = self.choice(value, path, names)
        else:
            beside = ("compensate",) if kind in _UNDOABLE else ()
            self.fields(value, path, (kind, "id", *beside), f"the step {kind}")
            out = KINDS[kind](self, value[kind], (*path, kind), names)
        if not isinstance(out, dict):
            return None
        if kind in _UNDOABLE:
            self.undo_of(value, kind, path, names, out)
        if value.get("id") is not None:
            out["id"] = self.step_id(value["id"], (*path, "id"))
        return out

    def step_id(self, value: Value, path: Path) -> str | None:
        """What errors call the step; one name, one step."""
        name = self.name(value, path, "the id of a step")
        if name is not None and self.ids.setdefault(name, path) != path:
            self.error("DUPLICATE_ID", path, f"two steps have the id {name!r}", "give one of them another id")
        return name

    def undo_of(
        self, value: dict[str, Value], kind: str, path: Path, names: LoopNames, out: dict[str, Value]
    ) -> None:
        """`compensate` stands beside the call or inside it."""
        inside = value[kind] if isinstance(value[kind], dict) else {}
        for holder, at in ((value, path), (inside, (*path, kind))):
            if holder.get("compensate") is not None:
                out["compensate"] = self.undo(holder["compensate"], (*at, "compensate"), names)

    def undo(self, value: Value, path: Path, names: LoopNames) -> list[Value]:
        if self.undoing:
            self.error(
                "BAD_COMPENSATE", path, "an undo registers no undo", "leave `compensate` out inside one"
            )
            return []
        self.undoing = True
        try:
            return self.block(value, path, names)
        finally:
            self.undoing = False

    def compensate(self, value: Value, path: Path, names: LoopNames) -> Value:
        return {"compensate": self.undo(value, path, names)}

    # --- data ---

    def assign(self, value: Value, path: Path, names: LoopNames) -> Value:
        if not isinstance(value, dict) or not value:
            self.error("BAD_SET", path, "set needs a mapping of targets to values", "set: {state.total: 5}")
            return None
        targets: dict[str, Value] = {}
        for target, template in value.items():
            at = (*path, target)
            if not (isinstance(target, str) and _TARGET.match(target)):
                self.error(
                    "BAD_TARGET",
                    at,
                    f"{target!r} cannot be set",
                    "targets are state.<name>, state.<name>.<name>",
                )
                continue
            targets[target] = self.template(template, at, names)
        for target in targets:
            for other in targets:
                if other.startswith(target + "."):
                    self.error(
                        "BAD_TARGET", (*path, other), f"{other} lies inside {target}, set in the same step"
                    )
        return {"set": targets}

    def reference(self, value: Value, path: Path, names: LoopNames) -> Value:
        return {"reference": self.template(value, path, names)}

    # --- waits ---

    def task(self, value: Value, path: Path, names: LoopNames) -> Value:
        name = self.text(value, path, "the name of a task")
        if name is None:
            return None
        if name not in self.tasks:
            known = ", ".join(self.tasks) or "none"
            self.error(
                "UNKNOWN_TASK",
                path,
                f"the task {name!r} is not declared",
                f"declared under `tasks:`: {known}",
            )
        self.asked.setdefault(name, []).append(names)
        return {"task": name}

    def call(self, value: Value, path: Path, names: LoopNames) -> Value:
        if not isinstance(value, dict):
            self.error("NOT_A_MAPPING", path, "a call is a mapping", "call: {transport: http, url: …}")
            return None
        transport = self.text(value.get("transport"), (*path, "transport"), "the transport of a call")
        if transport is None:
            return None
        self.check_transport(transport, value, path)
        out: dict[str, Value] = {"transport": transport}
        for key in sorted(key for key in value if isinstance(key, str) and key not in COMMON):
            out[key] = self.template(value[key], (*path, key), names)
        if "payload" in value:
            out["payload"] = self.template(value["payload"], (*path, "payload"), names)
        if value.get("pool") is not None:
            out["pool"] = self.pool(value["pool"], (*path, "pool"))
        self.into(value, path, out)
        for key in ("timeout", "deadline"):
            if value.get(key) is not None:
                out[key] = self.duration(value[key], (*path, key))
        if value.get("retry") is not None:
            out["retry"] = self.retry(value["retry"], (*path, "retry"))
        self.handlers(value, path, names, out, _HANDLERS)
        if "on_timeout" in out and not ("timeout" in out or "deadline" in out):
            self.error(
                "NO_TIMEOUT", (*path, "on_timeout"), "on_timeout needs a timeout or a deadline beside it"
            )
        return {"call": out}

    def pool(self, value: Value, path: Path) -> Value:
        if not is_pool(value):
            self.error("BAD_POOL", path, f"{value!r:.40} is no name of a pool", POOL_HINT)
        return value

    def check_transport(self, transport: str, value: dict[str, Value], path: Path) -> None:
        self.requires.transports[transport] = None
        if known := BUILT_IN.get(transport):
            self.fields(value, path, (*COMMON, *known.fields), f"a call by {transport}")
            for group in known.required:
                if all(value.get(name) is None for name in group):
                    self.error("MISSING_FIELD", path, f"a call by {transport} needs {' or '.join(group)}")
        elif transport not in self.transports:
            names = ", ".join(sorted({*BUILT_IN, *self.transports}))
            self.error(
                "UNKNOWN_TRANSPORT",
                (*path, "transport"),
                f"the transport {transport!r} is not known",
                f"known: {names}; register your own with @engine.transport({transport!r})",
            )

    def into(self, value: dict[str, Value], path: Path, out: dict[str, Value]) -> None:
        if value.get("into") is not None:
            out["into"] = self.name(value["into"], (*path, "into"), "into")

    def handlers(
        self,
        value: dict[str, Value],
        path: Path,
        names: LoopNames,
        out: dict[str, Value],
        kinds: tuple[str, ...],
    ) -> None:
        for key in kinds:
            if value.get(key) is not None:
                out[key] = self.block(value[key], (*path, key), names)

    def retry(self, value: Value, path: Path) -> Value:
        fields = self.fields(value, path, ("attempts", "backoff", "delay", "max_delay", "jitter"), "retry")
        if fields is None:
            return None
        attempts = fields.get("attempts")
        if type(attempts) is not int or not 1 <= attempts <= ATTEMPTS_MAX:
            self.error(
                "BAD_RETRY",
                (*path, "attempts"),
                f"attempts is a number from 1 to {ATTEMPTS_MAX}, the first try included",
            )
        backoff = fields.get("backoff", "none")
        if backoff not in ("none", "linear", "exponential"):
            self.error(
                "BAD_RETRY", (*path, "backoff"), f"backoff is none, linear or exponential, not {backoff!r}"
            )
        jitter = fields.get("jitter", False)
        if not isinstance(jitter, bool):
            self.error("BAD_RETRY", (*path, "jitter"), "jitter is true or false")
        out: dict[str, Value] = {"attempts": attempts, "backoff": backoff, "jitter": jitter}
        out["delay"] = self.duration(fields.get("delay", RETRY_DELAY_DEFAULT), (*path, "delay"))
        if fields.get("max_delay") is not None:
            out["max_delay"] = self.duration(fields["max_delay"], (*path, "max_delay"))
        return out

    def wait(self, value: Value, path: Path, names: LoopNames) -> Value:
        if is_expression(value):
            return {"wait": self.template(value, path, names)}
        if not isinstance(value, dict):
            return {"wait": self.duration(value, path)}
        fields = self.fields(value, path, ("until",), "wait")
        until = fields.get("until") if fields else None
        if is_expression(until):
            return {"wait": {"until": self.template(until, (*path, "until"), names)}}
        try:
            return {"wait": {"until": instant_text(parse_instant(until))}}
        except TreadleError as error:
            self.error("BAD_INSTANT", (*path, "until"), error.message)
            return None

    def signal(self, value: Value, path: Path, names: LoopNames) -> Value:
        fields = self.fields(
            {"signal": value} if isinstance(value, str) else value,
            path,
            ("signal", "into", "timeout", "on_timeout"),
            "await",
        )
        if fields is None:
            return None
        name = self.text(fields.get("signal"), (*path, "signal"), "the name of a signal")
        if name is not None:
            self.requires.signals[name] = None
        out: dict[str, Value] = {"signal": name}
        self.into(fields, path, out)
        if fields.get("timeout") is not None:
            out["timeout"] = self.duration(fields["timeout"], (*path, "timeout"))
        self.handlers(fields, path, names, out, ("on_timeout",))
        if "on_timeout" in out and "timeout" not in out:
            self.error("NO_TIMEOUT", (*path, "on_timeout"), "on_timeout needs a timeout beside it")
        return {"await": out}

    def child(self, value: Value, path: Path, names: LoopNames) -> Value:
        allowed = ("workflow", "input", "into", "on_success", "on_failure", "compensate")
        fields = self.fields(value, path, allowed, "child")
        if fields is None:
            return None
        out = self.started(fields, path, names)
        self.into(fields, path, out)
        self.handlers(fields, path, names, out, ("on_success", "on_failure"))
        return {"child": out}

    def continue_with(self, value: Value, path: Path, names: LoopNames) -> Value:
        fields = self.fields(value, path, ("workflow", "input"), "continue_with")
        return None if fields is None else {"continue_with": self.started(fields, path, names)}

    def started(self, fields: dict[str, Value], path: Path, names: LoopNames) -> dict[str, Value]:
        workflow = self.text(fields.get("workflow"), (*path, "workflow"), "the workflow")
        if workflow is not None:
            self.requires.children[workflow] = None
            self.started_at.setdefault(workflow, (*path, "workflow"))
        out: dict[str, Value] = {"workflow": workflow}
        if "input" in fields:
            out["input"] = self.template(fields["input"], (*path, "input"), names)
        return out

    # --- structure ---

    def choice(self, value: dict[str, Value], path: Path, names: LoopNames) -> Value:
        self.fields(value, path, ("if", "then", "else", "id"), "the step if")
        return {
            "if": self.condition(value["if"], (*path, "if"), names),
            "then": self.block(value.get("then"), (*path, "then"), names),
            "else": self.block(value.get("else") or [], (*path, "else"), names),
        }

    def repeat(self, value: Value, path: Path, names: LoopNames) -> Value:
        fields = self.fields(value, path, ("each", "in", "while", "until", "max", "do"), "repeat")
        if fields is None:
            return None
        found = [kind for kind in ("each", "while", "until") if kind in fields]
        if len(found) != 1:
            self.error("BAD_REPEAT", path, "repeat needs exactly one of each, while, until")
            return None
        kind = found[0]
        out: dict[str, Value] = {}
        inner = names
        if kind == "each":
            loop = self.name(fields["each"], (*path, "each"), "the name of a loop")
            if loop in ROOTS or loop in KEYWORDS:
                self.error(
                    "BAD_NAME", (*path, "each"), f"{loop!r} has a meaning already; choose another name"
                )
            if "in" not in fields:
                self.error("MISSING_FIELD", path, "repeat each needs `in`, the list to go through")
            out = {"each": loop, "in": self.template(fields.get("in"), (*path, "in"), names)}
            inner = names.within(loop or "item")
        else:
            if "in" in fields:
                self.error("UNKNOWN_FIELD", (*path, "in"), "`in` belongs to each")
            out[kind] = self.condition(fields[kind], (*path, kind), names)
        self.most(fields, path, out, required=kind != "each")
        out["do"] = self.block(fields.get("do"), (*path, "do"), inner)
        return {"repeat": out}

    def most(self, fields: dict[str, Value], path: Path, out: dict[str, Value], *, required: bool) -> None:
        most = fields.get("max")
        if most is None:
            if required:
                self.error("MISSING_FIELD", path, "while and until need `max`, the most rounds there may be")
        elif type(most) is not int or not 1 <= most <= REPEAT_MAX:
            self.error("BAD_REPEAT", (*path, "max"), f"max is a number from 1 to {REPEAT_MAX}")
        else:
            out["max"] = most

    def fork(self, value: Value, path: Path, names: LoopNames) -> Value:
        """Written as a mapping; kept as a list, because the order of the branches matters."""
        branches: list[Value] = []
        seen: dict[str, None] = {}
        for name, steps, at in self.branches(value, path):
            if name in seen:
                self.error("BAD_FORK", at, f"the branch {name!r} stands twice")
            if self.name(name, at, "the name of a branch"):
                seen[name] = None
                branches.append({"branch": name, "do": self.block(steps, at, names)})
        if not branches:
            self.error("BAD_FORK", path, "fork needs branches", "fork: {left: [...], right: [...]}")
        return {"fork": branches}

    def branches(self, value: Value, path: Path) -> list[tuple[str, Value, Path]]:
        if isinstance(value, dict):
            return [(name, steps, (*path, name)) for name, steps in value.items()]
        found: list[tuple[str, Value, Path]] = []
        for index, item in enumerate(value if isinstance(value, list) else []):
            if fields := self.fields(item, (*path, index), ("branch", "do"), "a branch"):
                found.append((str(fields.get("branch")), fields.get("do"), (*path, index, "do")))
        return found

    # --- ends ---

    def complete(self, value: Value, path: Path, names: LoopNames) -> Value:
        if self.undoing:
            self.error(
                "BAD_COMPENSATE",
                path,
                "an undo cannot complete the run",
                "let it come to its end, or `fail` if it cannot undo",
            )
        return {"complete": self.template(value, path, names)}

    def fail(self, value: Value, path: Path, names: LoopNames) -> Value:
        if isinstance(value, dict) and not is_expression(value):
            fields = self.fields(value, path, ("message", "code", "details"), "fail") or {}
            if "message" not in fields:
                self.error("MISSING_FIELD", path, "fail needs a message")
            parts = {key: self.template(part, (*path, key), names) for key, part in sorted(fields.items())}
            return {"fail": parts if set(parts) - {"message"} else parts.get("message")}
        return {"fail": self.template(value, path, names)}


KINDS: Final[dict[str, Callable[[StepReader, Value, Path, LoopNames], Value]]] = {
    "set": StepReader.assign,
    "reference": StepReader.reference,
    "task": StepReader.task,
    "call": StepReader.call,
    "if": StepReader.choice,
    "repeat": StepReader.repeat,
    "fork": StepReader.fork,
    "wait": StepReader.wait,
    "await": StepReader.signal,
    "child": StepReader.child,
    "continue_with": StepReader.continue_with,
    "complete": StepReader.complete,
    "fail": StepReader.fail,
    "compensate": StepReader.compensate,
}
