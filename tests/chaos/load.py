"""What runs while things are killed: every dialect, with results that can be told right from wrong."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
APP = str(EXAMPLES / "reactive" / "order.py:app")
FUNCTIONS = str(EXAMPLES / "functions" / "order.py:order")

PLAYBOOK = """
metadata: {name: chaos, version: "1"}
workload: {id: ""}
workflow:
  - step: seen
    tool: {kind: shell, cmd: "echo {{ workload.id }} >> witness"}
    next: {arcs: [{step: each, when: "{{ event.name == 'step.done' }}"}]}
  - step: each
    loop: {in: "{{ range(4) | list }}", iterator: n, spec: {mode: parallel, policy: {reduce: sum}}}
    tool: {kind: python, args: {n: "{{ n }}"}, code: "result = n + 1"}
    next: {arcs: [{step: report, when: "{{ event.name == 'loop.done' }}"}]}
  - step: report
    tool: {kind: noop, result: {sum: "{{ each.reduced }}"}}
"""
PROCESS = """
dialect: process
name: priced
version: "1"
steps:
  - call: {transport: python, callable: "services:quote", payload: {claims: 1}, into: quote}
  - complete: {total: {$: result.quote.total}}
"""


@dataclass
class Kind:
    """`start` gives the path and body of a request; `right` judges the run that came of it."""

    start: Callable[[str], tuple[str, dict[str, Any]]]
    right: Callable[[str, dict[str, Any]], bool]
    signal: str | None = None


def _run(workflow: str, **more: Any) -> Callable[[str], tuple[str, dict[str, Any]]]:
    return lambda id: ("/runs", {"workflow": workflow, "id": id, **more})


def kinds(folder: Path) -> dict[str, Kind]:
    script = EXAMPLES / "agent" / "triage" / "script.json"
    return {
        "playbook": Kind(
            lambda id: ("/runs", {"workflow": "chaos", "id": id, "input": {"id": id}}),
            lambda id, run: run["result"] == {"sum": 10},
        ),
        "process": Kind(_run("priced"), lambda id, run: run["result"] == {"total": 950}),
        "agent": Kind(
            _run("triage", model=f"scripted:{script}"), lambda id, run: run["status"] == "completed"
        ),
        "functions": Kind(
            lambda id: ("/runs", {"workflow": "order", "id": id, "input": {"id": id, "cents": 5}}),
            lambda id, run: run["result"] == {"payment": f"p-{id}-5", "shipped": f"s-{id}"},
            signal="approved",
        ),
        "reactive": Kind(
            lambda id: (
                "/events",
                {
                    "event": "com.acme/OrderCreated@1",
                    "value": {"order_id": id, "amount_cents": 5},
                    "submission_id": id,
                },
            ),
            lambda id, run: run["state"]["pc"] == "done",
        ),
    }


@dataclass
class Load:
    """Clients that start runs at any server, and write down what they were told."""

    servers: Callable[[], Sequence[str]]
    kinds: dict[str, Kind]
    seed: int
    pause_s: float
    # Run ids by what they are, once a server has said yes.
    acknowledged: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0
    refusals: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self, clients: int) -> None:
        for number in range(clients):
            thread = threading.Thread(target=self._client, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}")
        with httpx.Client(timeout=20) as http:
            count = 0
            while not self._stop.is_set():
                name = chance.choice(list(self.kinds))
                id = f"{name}-{number}-{count}"
                count += 1
                self._once(http, chance, name, id)
                self._stop.wait(self.pause_s * chance.uniform(0.5, 1.5))

    def _once(self, http: httpx.Client, chance: random.Random, name: str, id: str) -> None:
        kind = self.kinds[name]
        path, body = kind.start(id)
        answer = self._insist(http, chance, path, body)
        if answer is None:
            return
        run = str(answer["runs"][0]) if name == "reactive" else id
        self.acknowledged[run] = name
        if kind.signal is not None:
            signal = f"/runs/{quote(run, safe='')}/signal"
            if self._insist(http, chance, signal, {"name": kind.signal, "key": "k"}) is None:
                del self.acknowledged[run]

    def _insist(
        self, http: httpx.Client, chance: random.Random, path: str, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        """The same request, here or elsewhere, until somebody answers; None if nobody does in time."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                answer = http.post(f"{chance.choice(self.servers())}/api/v1{path}", json=body)
            except httpx.HTTPError:
                time.sleep(0.2)
                continue
            if answer.is_success:
                found: dict[str, Any] = answer.json()
                return found
            if answer.status_code < 500 and answer.status_code != 429:
                self.refusals.append(f"{path} {answer.status_code} {answer.text[:200]}")
                return None
            time.sleep(0.2)
        self.unanswered += 1
        return None
