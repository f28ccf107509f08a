"""The task pipeline as a pure interpreter: state and outcome in, next action out.

A worker drives it: `next()` says what to do (perform a task, sleep, end), `settle(outcome)` applies
the task's policy. Everything that must survive a crash is in `frame`, a canonical value: program
counter, attempt, iter, `_prev`, ctx writes, results that later tasks name. A pipeline restored from
a frame goes on after its last finished task.

It knows no tools, no clock and no randomness. Seed 004 §5.4, §6, §7, §9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from treadle.kernel.errors import ExpressionError
from treadle.kernel.values import Value, decode_trusted, digest, encode

from .failures import failure, template_failure
from .given import config_of, scope_of
from .handles import Handle
from .layers import merge
from .model import ATTEMPTS, DELAY_S, DELAY_S_MAX, Loop, Rule, Step, Task, holds
from .needs import RESERVED
from .outcomes import NotACollection, collection, loop_view, output_view
from .selection import extracted
from .tasks import PREVIOUS
from .templates import Tree
from .texts import is_not_there

# A pipeline that jumps among noops forever would hold its worker forever.
IDLE_TASKS_MAX: Final = 20_000
DOUBLINGS_MAX: Final = 62
# Thirty years: a time that fits into the clock of a timer, whatever a template makes of it.
WAIT_S_MAX: Final = 1e9


class Perform(msgspec.Struct):
    """Run this task now. `entry` counts how often the task was entered, retries apart."""

    task: Task
    entry: int
    attempt: int
    item: int | None = None


class Sleep(msgspec.Struct):
    seconds: float


class Ended(msgspec.Struct):
    status: str
    result: Value
    error: dict[str, Value] | None


Action = Perform | Sleep | Ended


def new_frame(iteration: dict[str, Value]) -> dict[str, Value]:
    return {"pc": 0, "attempt": 1, "iter": iteration, "prev": None, "entries": {}, "ctx": [], "tasks": {}}


def task_key(first_intent: str, task: str, entry: int, item: int | None = None) -> str:
    """The idempotency key of one entry into a task: the same for its retries and after a crash."""
    parts: list[Value] = [first_intent, task, entry]
    return digest(parts if item is None else [*parts, item])


def told_when_done(step: Step, *, iterates: bool) -> list[dict[str, Value]]:
    """What is told of a plain step (`Step.is_plain`) whose task is done: always the same, but for the number of its
    iteration. In canonical order of keys."""
    pipe = Pipeline(step, {"iteration": 0} if iterates else {}, new_frame({}), run="")
    pipe.next()
    pipe.settle({"status": "ok", "result": True})
    end = pipe.next()
    assert end == Ended("ok", True, None), "what the task gives is what the step gives"
    begun = [] if iterates else [step.told.started]
    return [*begun, *canonical(pipe.events)]


class Pipeline:
    def __init__(
        self,
        step: Step,
        inputs: Mapping[str, Value],
        frame: dict[str, Value],
        *,
        run: str,
        keychain: Mapping[str, Value] | None = None,
    ) -> None:
        self.step, self.frame = step, frame
        self.events: list[dict[str, Value]] = []
        self.retries = 0
        self.idle = 0
        self._ended: Ended | None = None
        self._outcome: dict[str, Value] = {}
        self._entered = False
        self.stamp: dict[str, Value] = {"step": step.name}
        if (iteration := inputs.get("iteration")) is not None:
            self.stamp["iteration"] = iteration
        ctx = dict(inputs.get("ctx") or {})
        for path, value in frame["ctx"]:
            write(ctx, path, value)
        self.scope = scope_of(step, inputs, ctx, frame["iter"], run=run)
        self.scope.names["keychain"], self.scope.names["_prev"] = keychain or {}, frame["prev"]
        self._unrendered = step.args if "per_item" in inputs and "args" not in frame else None
        if "args" in frame:
            self._use_args(frame["args"])
        for name, entry in frame["tasks"].items():
            self._name_result(name, entry)

    # --- what to do ----------------------------------------------------------------------------

    def next(self) -> Action:
        if self._unrendered is not None:
            self._render_args(self._unrendered)
        while self._ended is None:
            if (seconds := self.frame.get("sleep")) is not None:
                return Sleep(seconds)
            if self.frame["pc"] >= len(self.step.tasks):
                return self._end("ok")
            task = self.step.tasks[self.frame["pc"]]
            entry = self._enter(task)
            if task.loop is None:
                return Perform(task, entry, self.frame["attempt"])
            if (item := self._loop_item(task, task.loop)) is not None:
                return Perform(task, entry, self.frame["attempt"], item)
        return self._ended

    def _render_args(self, own: Tree) -> None:
        """The step's own args for this item of its loop; the token's win over them."""
        try:
            args = canonical(merge(own.arguments(self.scope), self.scope.names["args"]))
        except ExpressionError as error:
            self._end("error", template_failure(error))
            return
        self._unrendered = None
        self.frame["args"] = args
        self._use_args(args)

    def _use_args(self, args: dict[str, Value]) -> None:
        names = self.scope.names
        names["args"] = names["input"] = args
        self.scope.layers = (args, *self.scope.layers[1:])

    def frame_again(self) -> dict[str, Value] | None:
        """Where a retry of the failed step goes on: at the task that failed, entered anew. None: from the
        beginning, because nothing was finished before it. What it wrote into ctx is in ctx by then."""
        if sum(self.frame["entries"].values()) < 2 or self.frame["pc"] >= len(self.step.tasks):
            return None
        left = {key: value for key, value in self.frame.items() if key not in ("entered", "sleep", "sub")}
        return {**left, "attempt": 1, "ctx": [], "labels": list(self.step.labels)}

    def woke(self) -> None:
        self.frame.pop("sleep", None)

    def config(self, task: Task, *, load: bool = True) -> dict[str, Value]:
        """The task's fields rendered for its tool."""
        return config_of(self.step, task, self.scope, load=load)

    def _enter(self, task: Task) -> int:
        names, entries = self.scope.names, self.frame["entries"]
        names["_task"], names["_attempt"] = task.view, self.frame["attempt"]
        if not self._entered and not self.frame.get("entered"):
            entries[task.name] = entries.get(task.name, 0) + 1
            self.frame["entered"] = True
            self.emit("task.started", task=task.name, attempt=1)
        self._entered = True
        return int(entries[task.name])

    def emit(self, type: str, **data: Value) -> None:
        self.events.append({"type": type, **self.stamp, **data})

    # --- what came of it -----------------------------------------------------------------------

    def settle(self, outcome: dict[str, Value]) -> None:
        """Takes the outcome of the current task and applies the task's policy to it."""
        task = self.step.tasks[self.frame["pc"]]
        if task.loop is not None and "sub" in self.frame:
            collected = self._loop_settle(task.loop, outcome)
            if collected is None:
                return
            outcome = collected
        self.idle = self.idle + 1 if task.kind == "noop" else 0
        self._outcome = outcome
        self.decide()

    def decide(self) -> None:
        """Applies the policy to the outcome at hand. Everything is evaluated before anything is
        changed, so it may be called again after `PayloadNeeded`."""
        task, outcome = self.step.tasks[self.frame["pc"]], self._outcome
        if self.idle > IDLE_TASKS_MAX:
            message = f"{task.where}: {IDLE_TASKS_MAX} noop tasks in a row"
            self._end("error", failure("unknown", message, code="PIPELINE_SPINS"))
            return
        if task.rules is None and not task.sets and outcome["status"] == "ok":
            self._pass(task, outcome, None)
            return
        names = self.scope.names
        names["outcome"] = outcome
        if task.reads_output:
            names["output"] = output_view(task.kind, outcome)
        try:
            index, rule = self._match(task) if task.rules else (None, None)
            writes = []
            if task.sets and outcome["status"] == "ok":
                writes.append(self._render(task.set_iter, task.set_ctx))
            if rule is not None:
                writes.append(self._render(rule.set_iter, rule.set_ctx))
            delay = self._delay(task, rule, outcome) if rule is not None and rule.do == "retry" else None
            for iter_writes, ctx_writes in writes:
                self._write(iter_writes, ctx_writes)
            self._act(task, rule, index, outcome, delay)
        except ExpressionError as error:
            self._report(task, outcome, None)
            self._end("error", template_failure(error))
        finally:
            names.pop("outcome", None)
            names.pop("output", None)

    def _match(self, task: Task) -> tuple[int | None, Rule | None]:
        for index, rule in enumerate(task.rules or ()):
            if holds(rule.when, self.scope):
                return index, rule
        return None, None

    def _act(
        self, task: Task, rule: Rule | None, index: int | None, outcome: dict[str, Value], delay: float | None
    ) -> None:
        ok = outcome["status"] == "ok"
        # No policy: an error fails. A policy without a match: continue, whatever the outcome.
        do = rule.do if rule is not None else "continue" if ok or task.rules is not None else "fail"
        if do == "retry" and delay is None:
            do = "fail"
            if ok:
                error = failure("unknown", f"{task.where}: retries exhausted", code="RETRIES_EXHAUSTED")
                outcome = {**outcome, "error": error}
        if task.rules is not None:
            decided = {"matched_rule_index": index, "action": do}
            self.emit("policy.task.evaluated", task=task.name, attempt=self.frame["attempt"], data=decided)
        if delay is not None:
            self._retry(task, outcome, delay)
            return
        told = None if index is None else {"rule": index, "do": do}
        if do == "continue":
            self._pass(task, outcome, told)
            return
        self._report(task, outcome, told)
        self._remember(task, outcome)
        if do == "fail":
            error = outcome.get("error") or failure(
                "unknown", f"{task.where}: its policy says fail", code="POLICY_FAIL"
            )
            self._end("error", error)
        elif do == "break":
            self._end("ok")
        else:
            assert rule is not None, "only a rule says where to jump"
            self._go(self._target(rule.to or ""))

    def _pass(self, task: Task, outcome: dict[str, Value], policy: dict[str, Value] | None) -> None:
        """To the next task."""
        self._report(task, outcome, policy)
        self._remember(task, outcome)
        self._go(self.frame["pc"] + 1)

    def _target(self, label: str) -> int:
        if label in PREVIOUS and label not in self.step.labels:
            return max(int(self.frame["pc"]) - 1, 0)
        return self.step.labels[label]

    def _go(self, pc: int) -> None:
        self.frame["pc"], self.frame["attempt"] = pc, 1
        self.frame.pop("entered", None)
        self._entered = False

    def _delay(self, task: Task, rule: Rule, outcome: dict[str, Value]) -> float | None:
        """Seconds until the next attempt; None when there is none left."""
        attempt = self.frame["attempt"]
        if attempt >= self._number(rule.attempts, ATTEMPTS):
            return None
        first = delay = self._number(rule.delay, DELAY_S)
        backoff = rule.then.get("backoff", "none")
        if backoff == "linear":
            delay *= attempt
        elif backoff == "exponential":
            # Beyond any delay there is; a float of more doublings would overflow.
            delay *= 2.0 ** min(attempt - 1, DOUBLINGS_MAX)
        delay = min(delay, self._number(rule.max_delay, max(DELAY_S_MAX, first)))
        error = outcome.get("error") or {}
        if rule.then.get("respect_retry_after") and isinstance(error.get("retry_after"), int | float):
            delay = max(delay, float(error["retry_after"]))
        if rule.then.get("jitter"):
            # Spread by run, task and attempt: different for everyone, the same again on replay.
            seed = [self.scope.names["execution_id"], self.stamp, task.name, attempt]
            delay *= 0.5 + int(digest(seed)[-4:], 16) / 0x1FFFE
        return min(float(delay), WAIT_S_MAX)

    def _retry(self, task: Task, outcome: dict[str, Value], delay: float) -> None:
        attempt = self.frame["attempt"]
        failed = {"task": task.name, "attempt": attempt, "data": {"delay": delay}}
        self.emit("task.attempt.failed", **failed, error=outcome.get("error"))
        self.retries += 1
        self.frame["attempt"] = attempt + 1
        if delay > 0:
            self.frame["sleep"] = delay

    def _number(self, tree: Tree | None, default: float) -> float:
        if tree is None:
            return default
        value = tree.render(self.scope)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ExpressionError(f"step {self.step.name!r}: {value!r:.200} is not a number")
        return number

    def _render(
        self, set_iter: Tree | None, set_ctx: Tree | None
    ) -> tuple[dict[str, Value], dict[str, Value]]:
        iter_writes = set_iter.render(self.scope) if set_iter is not None else {}
        return iter_writes, set_ctx.render(self.scope) if set_ctx is not None else {}

    def _write(self, iter_writes: dict[str, Value], ctx_writes: dict[str, Value]) -> None:
        # Values in canonical order of keys, as a frame brings them back.
        for path, value in iter_writes.items():
            write(self.frame["iter"], path, canonical(value))
        for path, given in ctx_writes.items():
            value = canonical(given)
            write(self.scope.names["ctx"], path, value)
            kept = [pair for pair in self.frame["ctx"] if pair[0] != path]
            self.frame["ctx"] = [*kept, [path, value]]

    def _remember(self, task: Task, outcome: dict[str, Value]) -> None:
        if outcome["status"] == "ok":
            self.frame["prev"] = self.scope.names["_prev"] = outcome.get("result")
            # Which task gave it, and at which attempt: its spec says how the result is kept.
            self.frame["by"] = [self.frame["pc"], self.frame["attempt"]]
        if task.name in self.step.needs.tasks and task.name not in RESERVED:
            entry: dict[str, Value] = {
                key: outcome[key] for key in ("status", "result", "error", "http", "meta") if key in outcome
            }
            self.frame["tasks"][task.name] = entry
            self._name_result(task.name, entry)

    def _name_result(self, name: str, entry: dict[str, Value]) -> None:
        result = entry.get("result")
        config = self.step.tasks[self.step.labels[name]].spec.get("result") or {}
        self.scope.names[name] = Handle(
            result,
            status=entry["status"],
            error=entry.get("error"),
            http=entry.get("http"),
            meta=entry.get("meta"),
            extracted=extracted(config, result) if config.get("select") else None,
        )

    def _report(self, task: Task, outcome: dict[str, Value], policy: dict[str, Value] | None) -> None:
        data: dict[str, Value] = {"task": task.name, "attempt": self.frame["attempt"]}
        if policy is not None:
            data["data"] = policy
        if outcome["status"] == "ok":
            self.emit("task.done", **data)
        else:
            self.emit("task.failed", **data, error=outcome.get("error"))

    def _end(self, status: str, error: dict[str, Value] | None = None) -> Ended:
        result = self.frame["prev"]
        self._ended = Ended(status, result, error)
        return self._ended

    # --- a loop around one task (nested iteration, iter.parent) ---------------------------------

    def _loop_item(self, task: Task, loop: Loop) -> int | None:
        """The next item's index, with `iter` set up for it; None once the task has settled."""
        sub = self.frame.get("sub")
        if sub is None:
            try:
                if loop.field is not None and is_not_there(raw := loop.field.raw(self.scope)):
                    raise loop.field.missing(raw)
                items = collection(loop.source.render(self.scope, load=True), f"{task.where}, loop.in")
            except (ExpressionError, NotACollection) as error:
                wrong = (
                    template_failure(error)
                    if isinstance(error, ExpressionError)
                    else failure("schema", str(error))
                )
                self.settle({"status": "error", "error": wrong})
                return None
            sub = self.frame["sub"] = {
                "items": items,
                "at": 0,
                "results": [],
                "failed": 0,
                "iter": self.frame["iter"],
            }
        if sub["at"] >= len(sub["items"]):
            self.settle({"status": "ok"})
            return None
        if "inner" not in sub:
            sub["inner"] = {loop.iterator: sub["items"][sub["at"]], "index": sub["at"], "parent": sub["iter"]}
        self._use_iter(sub["inner"])
        self.scope.names["loop"] = loop_view(sub["at"], len(sub["items"]))
        return int(sub["at"])

    def _loop_settle(self, loop: Loop, outcome: dict[str, Value]) -> dict[str, Value] | None:
        """Counts one item; gives the outcome of the whole loop once it is over."""
        sub = self.frame["sub"]
        total, over = len(sub["items"]), sub["at"] >= len(sub["items"])
        if not over:
            ok = outcome["status"] == "ok"
            sub["results"].append(outcome.get("result") if ok else None)
            sub["failed"] += 0 if ok else 1
            sub["at"] += 1
            sub.pop("inner", None)
            if (ok or loop.best_effort) and sub["at"] < total:
                return None
        del self.frame["sub"]
        self._use_iter(sub["iter"])
        stats = {"total": total, "success": len(sub["results"]) - sub["failed"], "failed": sub["failed"]}
        result = {"results": sub["results"], "stats": stats}
        failed = outcome["status"] == "error" and not loop.best_effort
        return {**outcome, "status": "error" if failed else "ok", "result": result}

    def _use_iter(self, iteration: dict[str, Value]) -> None:
        args, ctx, _, workload, steps = self.scope.layers
        self.frame["iter"] = self.scope.names["iter"] = iteration
        self.scope.layers = (args, ctx, iteration, workload, steps)


def write(target: dict[str, Value], path: str, value: Value) -> None:
    """Sets a dotted path, making mappings on the way; siblings are kept, shared parents are copied."""
    head, _, rest = path.partition(".")
    if not rest:
        target[head] = value
        return
    inner = target.get(head)
    target[head] = dict(inner) if isinstance(inner, dict) else {}
    write(target[head], rest, value)


def canonical(value: Value) -> Value:
    """A value with its keys in canonical order, as it comes back from a frame or a snapshot."""
    if not value:
        return type(value)() if isinstance(value, dict | list) else value
    return decode_trusted(encode(value)) if isinstance(value, dict | list) else value
