"""Runs playbooks with no engine: the real compiler, machine and pipeline performer, fake tools.

`Lab` drives the kernel's `Driver`, performs every open `step` intent in order, and keeps going
until only people, time or patches can move the run on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from textwrap import dedent
from typing import Any

from treadle.dialects.playbook import DIALECT
from treadle.dialects.playbook.machine import PlaybookMachine
from treadle.dialects.playbook.slices import Slices
from treadle.kernel.errors import SecretMissing, TreadleError
from treadle.kernel.model import OpenIntent, Receipt, make_reference
from treadle.kernel.values import Value, decode, digest, encode, to_value
from treadle.lang.problems import Problem
from treadle.lang.text import parse
from treadle.performers.playbook.performer import PipelinePerformer
from treadle.testing.driver import Driver
from treadle.tools.protocol import Outcome, ToolCall
from treadle.work.job import Done


def compile_text(text: str, *, strict: bool = False, file: str | None = "test.yaml") -> Any:
    """The definition of a playbook that must compile."""
    definition, problems = DIALECT.compile(parse(dedent(text), file=file), strict=strict)
    assert definition is not None, "\n".join(str(problem) for problem in problems)
    return definition


def problems_of(text: str, *, strict: bool = False) -> list[Problem]:
    try:
        _, problems = DIALECT.compile(parse(dedent(text), file="test.yaml"), strict=strict)
    except TreadleError as error:
        return [Problem(**problem) for problem in error.details["problems"]]
    return list(problems)


class FakeTool:
    """A tool from a function `(config, call)` that gives a result, an Outcome, or raises."""

    def __init__(self, kind: str, function: Callable[..., Any], *, idempotent: bool = True) -> None:
        self.kind, self.function, self.idempotent = kind, function, idempotent
        self.sync = True
        self.calls: list[tuple[dict[str, Any], ToolCall]] = []

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        self.calls.append((config, call))
        value = self.function(config, call)
        if inspect.isawaitable(value):
            value = await value
        return value if isinstance(value, Outcome) else Outcome(result=to_value(value))

    async def close(self) -> None: ...


def echo(config: dict[str, Any], call: ToolCall) -> Any:
    """Gives back `value`; `fail: kind` makes an error of that kind instead."""
    if config.get("fail"):
        return Outcome.failed(config["fail"], f"told to fail with {config['fail']}", code=config.get("code"))
    return config.get("value")


class FakeJob:
    def __init__(self, lab: Lab, intent: OpenIntent) -> None:
        self.lab, self.intent = lab, intent
        self.run, self.workflow, self.definition = lab.driver.id, lab.driver.name, lab.driver.digest
        self.options: Mapping[str, Any] = lab.driver.run.options
        self.checkpoint: Value = lab.checkpoints.get(intent.id)

    @property
    def idempotency_key(self) -> str:
        return self.intent.id

    def clean(self, text: str) -> str:
        return text

    async def progress(self, type: str, **data: Value) -> None:
        self.lab.frames.append((type, data))

    async def save(self, checkpoint: Value, *, durable: bool = False, events: Any = None) -> None:
        self.lab.written += len(encode(checkpoint))
        self.lab.checkpoints[self.intent.id] = decode(encode(checkpoint))
        self.lab.driver.events += events or []

    async def load_blob(self, reference: Mapping[str, Any]) -> Value:
        self.lab.loaded.append(reference["checksum"])
        return self.lab.driver.blobs[reference["checksum"]]

    async def store_blob(self, value: Value, *, schema_hint: str | None = None) -> dict[str, Any]:
        checksum = digest(value)
        self.lab.written += len(encode(value))
        self.lab.driver.blobs[checksum] = decode(encode(value))
        return make_reference(checksum=checksum, size=len(encode(value)), schema_hint=schema_hint)

    async def load_definition(self) -> Any:
        return self.lab.driver.definition

    async def secret(self, name: str) -> Any:
        if name not in self.lab.secrets:
            raise SecretMissing(f"keychain entry {name!r} has no value")
        return self.lab.secrets[name]


class Lab:
    """`Lab(text).run(x=1)`; then `.status`, `.result`, `.types()`, `.ctx`, `.steps`."""

    def __init__(
        self,
        text: str,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        *,
        secrets: dict[str, Any] | None = None,
        strict: bool = False,
        slices: Slices | None = None,
    ) -> None:
        self.definition = compile_text(text, strict=strict)
        functions: dict[str, Callable[..., Any]] = {"echo": echo, **(tools or {})}
        self.tools = {kind: FakeTool(kind, function) for kind, function in functions.items()}
        machine = DIALECT.machine if slices is None else PlaybookMachine(slices)
        self.driver = Driver(machine, self.definition.body, name=self.definition.name)
        self.performer = PipelinePerformer(self.tools)
        self.checkpoints: dict[str, Value] = {}
        self.frames: list[Any] = []
        self.loaded: list[str] = []
        # The bytes that jobs had stored: checkpoints and payloads.
        self.written = 0
        self.secrets = secrets or {}
        self.in_flight_max = 0

    def start(self, input: Value = None, **more: Any) -> Lab:
        self.driver.start(input, **more)
        return self

    def run(self, input: Value = None, **more: Any) -> Lab:
        return self.start(input, **more).work()

    def work(self, limit: int = 100_000) -> Lab:
        """Performs open `step` intents, oldest first, until there is none."""
        for _ in range(limit):
            open_ = self.driver.open("step")
            self.in_flight_max = max(self.in_flight_max, len(open_))
            if not open_ or self.driver.run.ended:
                return self
            self.perform(open_[0])
        raise AssertionError("the run does not come to rest")

    def perform(self, intent: OpenIntent) -> Lab:
        done = self.done(intent)
        receipt = Receipt(
            intent=intent.id,
            status=done.status,
            value=decode(encode(to_value(done.value))),
            error=done.error,
            attempts=done.attempts,
            events=to_value(done.events),
        )
        self.driver.events += receipt.events
        self.driver.feed(receipt)
        return self

    def done(self, intent: OpenIntent) -> Done:
        """Drives a pipeline of plain functions without an event loop: it must never suspend."""
        coroutine = self.performer(FakeJob(self, intent))
        try:
            coroutine.send(None)  # type: ignore[attr-defined]
        except StopIteration as stop:
            done: Done = stop.value
            return done
        except TreadleError as error:
            return Done(status="error", error=error.to_value())
        raise AssertionError("the pipeline suspended its coroutine")

    def advance(self, seconds: float) -> Lab:
        self.driver.advance(seconds)
        return self.work()

    @property
    def status(self) -> str:
        return self.driver.status

    @property
    def result(self) -> Value:
        return self.driver.run.result

    @property
    def error(self) -> Any:
        return self.driver.run.error

    @property
    def ctx(self) -> dict[str, Any]:
        return self.driver.view()["state"]["ctx"]

    @property
    def steps(self) -> dict[str, Any]:
        return self.driver.view()["state"]["steps"]

    @property
    def tokens(self) -> list[dict[str, Any]]:
        return self.driver.view()["state"]["tokens"]

    def types(self, *wanted: str) -> list[str]:
        return [e["type"] for e in self.driver.events if not wanted or e["type"] in wanted]

    def events(self, type: str, **match: Any) -> list[dict[str, Any]]:
        return [
            event
            for event in self.driver.events
            if event["type"] == type and all(event.get(key) == value for key, value in match.items())
        ]

    def ran(self) -> list[str]:
        """Steps in the order in which their step-runs started."""
        return [event["step"] for event in self.driver.events if event["type"] == "step.started"]

    def replays(self) -> Lab:
        self.driver.assert_replays()
        return self
