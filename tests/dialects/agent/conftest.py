"""Plays agent workflows on the real machine and the real performers, with no engine between them."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from treadle.dialects.agent import DIALECT
from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import OpenIntent, Receipt, is_reference, make_reference
from treadle.kernel.values import digest, encode, to_value
from treadle.lang.problems import Problems
from treadle.lang.text import parse
from treadle.performers.agent.performer import AgentWork
from treadle.performers.agent.skill import Skill
from treadle.performers.agent.skill_finding import Skills
from treadle.testing.driver import Driver
from treadle.testing.scripted import ScriptedModel
from treadle.work.job import Done, StaysOpen


class FakeJob:
    """One intent in a test's hands; what it stores goes where the driver looks for it."""

    def __init__(self, play: Play, intent: OpenIntent) -> None:
        self.play, self.intent = play, intent
        self.run, self.workflow, self.definition = play.driver.id, "wf", play.driver.digest
        self.options = play.options
        self.checkpoint = play.checkpoints.get(intent.id)
        self.span = None

    @property
    def idempotency_key(self) -> str:
        return self.intent.idempotency_key or self.intent.id

    async def progress(self, type: str, **data: Any) -> None:
        self.play.driver.events.append({"type": type, **data})

    async def save(self, checkpoint: Any, *, durable: bool = False, events: Any = None) -> None:
        self.play.checkpoints[self.intent.id] = checkpoint

    async def load_blob(self, reference: Mapping[str, Any]) -> Any:
        return self.play.driver.blobs[reference["checksum"]]

    async def store_blob(self, value: Any, *, schema_hint: str | None = None) -> dict[str, Any]:
        checksum = digest(value)
        self.play.driver.blobs[checksum] = value
        return make_reference(checksum=checksum, size=len(encode(value)), schema_hint=schema_hint)

    async def load_definition(self) -> Any:
        return self.play.driver.definition

    async def secret(self, name: str) -> str:
        raise KeyError(name)

    def late(self) -> None:
        """Nobody counts here."""


class NoMcp:
    async def open(self, key: str, servers: Any, taken: Any) -> Any:
        raise AssertionError("no MCP server is expected here")

    async def release(self, key: str) -> None:
        """A session that was never opened may be released."""


class Play:
    """One run: `go()` performs whatever is open until only people and time can move it on."""

    def __init__(
        self,
        text: str | dict[str, Any],
        script: dict[str, Any] | Any,
        *,
        skills: tuple[Skill, ...] = (),
        config: Mapping[str, Any] | None = None,
        mcp: Any = None,
        fetch: Any = None,
        **options: Any,
    ) -> None:
        self.driver = Driver(DIALECT.machine, compiled(text).body)
        self.model = ScriptedModel(script) if isinstance(script, dict) else script
        self.options: dict[str, Any] = options
        self.checkpoints: dict[str, Any] = {}
        self.performed: list[OpenIntent] = []
        self.learned: dict[str, str] = {}
        registry = Skills(learn=self.learned.__setitem__)
        for skill in skills:
            registry.register(skill)
        self.work = AgentWork(
            provider=lambda options: self.model,
            skills=registry,
            mcp=mcp or NoMcp(),
            fetch=lambda settings, job: fetch,
            config_of=lambda run: config or {},
        )

    def start(self, input: Any = None) -> Play:
        given = DIALECT.check_input(self.driver.definition, input, self.options)
        self.driver.start(given, options=self.options)
        return self

    def go(self, steps: int = 100_000) -> Play:
        while steps and (intent := self.next()) is not None:
            self.perform(intent)
            steps -= 1
        return self

    def next(self) -> OpenIntent | None:
        return next(
            (i for i in self.driver.open() if i.kind in ("source", "model", "call", "route", "ask")), None
        )

    def perform(self, intent: OpenIntent) -> Play:
        self.performed.append(intent)
        self.driver.feed(asyncio.run(self._receipt(intent)))
        return self

    async def _receipt(self, intent: OpenIntent) -> Receipt:
        job = FakeJob(self, intent)
        try:
            done: Done = await getattr(self.work, intent.kind)(job)
        except StaysOpen:
            raise
        except TreadleError as error:
            return Receipt(intent=intent.id, status="error", error=error.to_value())
        value = to_value(done.value)
        if len(encode(value)) > PAYLOAD_INLINE_BYTES_MAX:
            value = await job.store_blob(value)
        return Receipt(intent=intent.id, status=done.status, value=value, error=done.error)

    # --- what came of it ---

    def plain(self, value: Any) -> Any:
        """A value as people see it: with our references resolved."""
        if is_reference(value):
            return self.plain(self.driver.blobs[value["checksum"]])
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        return [self.plain(item) for item in value] if isinstance(value, list) else value

    @property
    def status(self) -> str:
        return self.driver.status

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plain(self.driver.run.result)
        return found

    @property
    def error(self) -> dict[str, Any]:
        assert self.driver.run.error is not None
        return self.driver.run.error

    @property
    def results(self) -> dict[str, Any]:
        return self.plain(self.driver.view()["state"]["results"])

    @property
    def trace(self) -> dict[str, Any]:
        return self.plain(self.driver.view()["state"]["trace"])

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.plain(self.driver.events)

    def of(self, type: str) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in event.items() if k != "type"} for event in self.events if event["type"] == type
        ]

    def path(self) -> list[str]:
        return [step["node"] for step in self.trace["steps"]]

    def asked(self, op: str | None = None) -> list[dict[str, Any]]:
        return [call for call in self.model.calls if op is None or call["op"] == op]


def document(text: str | dict[str, Any]) -> Any:
    return parse(textwrap.dedent(text)).value if isinstance(text, str) else text


def compiled(text: str | dict[str, Any]) -> Any:
    source = textwrap.dedent(text) if isinstance(text, str) else json.dumps(text)
    definition, problems = DIALECT.compile(parse(source, file="flow.yaml"))
    problems.raise_errors()
    return definition


def problems_of(text: str | dict[str, Any]) -> Problems:
    source = textwrap.dedent(text) if isinstance(text, str) else json.dumps(text)
    return DIALECT.compile(parse(source, file="flow.yaml"))[1]


def flow(nodes: dict[str, dict[str, Any]] | str, *edges: Any, **more: Any) -> dict[str, Any]:
    """A workflow in short: `flow("a b c", "a b", ("b", "c", {"when": "x"}))`."""
    if isinstance(nodes, str):
        nodes = {id: {} for id in nodes.split()}
    full = {id: {"name": id, "instruction": f"Do {id}.", **node} for id, node in nodes.items()}
    lines = []
    for edge in edges:
        source, target, *rest = edge.split() if isinstance(edge, str) else edge
        lines.append({"from": source, "to": target, **(rest[0] if rest else {})})
    return {"id": "wf", "name": "Flow", "entry": next(iter(full)), "nodes": full, "edges": lines, **more}


@pytest.fixture(name="play", scope="session")
def _play() -> Callable[..., Play]:
    def play(text: Any, script: Any, input: Any = None, **more: Any) -> Play:
        found = Play(text, script, **more).start(input).go()
        found.driver.assert_replays()
        return found

    return play


@pytest.fixture(name="prepared", scope="session")
def _prepared() -> Callable[..., Play]:
    """A run that has not been started, for tests that act in the middle of it."""
    return Play


@pytest.fixture(name="flow", scope="session")
def _flow() -> Callable[..., dict[str, Any]]:
    return flow


@pytest.fixture(name="problems", scope="session")
def _problems() -> Callable[..., Problems]:
    return problems_of


@pytest.fixture(name="definition", scope="session")
def _definition() -> Callable[..., Any]:
    return compiled
