"""A retry goes on at the task that failed: what its step had finished before is not done again."""

from __future__ import annotations

from typing import Any

from treadle.tools.protocol import ToolCall

from .harness import Lab

PAGES = """
    workflow:
      - step: load
        tool:
          - {name: begin, kind: seen, what: begin, set: {ctx.began: true}}
          - name: page
            kind: fetch
            page: "{{ iter.page | default(1) }}"
            spec:
              policy:
                rules:
                  - {when: "{{ outcome.status == 'error' }}", then: {do: fail}}
                  - {when: "{{ output.page < 4 }}", then: {do: jump, to: page, set_iter: {page: "{{ output.page + 1 }}"}}}
          - {name: end, kind: seen, what: "{{ ctx.began }}"}
"""


class World:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.keys: list[str] = []
        self.broken = True

    def fetch(self, config: dict[str, Any], call: ToolCall) -> Any:
        self.calls.append(config["page"])
        self.keys.append(call.idempotency_key)
        if config["page"] == 3 and self.broken:
            raise OSError("the third page is not there")
        return {"page": config["page"]}

    def seen(self, config: dict[str, Any], call: ToolCall) -> Any:
        self.calls.append(config["what"])
        return config["what"]

    def lab(self, text: str = PAGES) -> Lab:
        return Lab(text, {"fetch": self.fetch, "seen": self.seen})


def test_a_retry_goes_on_at_the_page_that_failed() -> None:
    world = World()
    lab = world.lab().run()
    assert (lab.status, world.calls) == ("failed", ["begin", 1, 2, 3])
    world.broken = False
    lab.driver.retry()
    assert lab.work().replays().status == "completed"
    assert world.calls == ["begin", 1, 2, 3, 3, 4, True]
    assert lab.result is True
    assert len(set(world.keys)) == len(world.keys), "a task that is entered anew has a key of its own"
    assert [e.get("data") for e in lab.events("step.started")] == [None, {"resumed": True}]


def test_a_step_that_is_named_begins_from_its_first_task() -> None:
    world = World()
    lab = world.lab().run()
    world.broken = False
    lab.driver.retry(**{"from": "load"})
    assert lab.work().replays().status == "completed"
    assert world.calls == ["begin", 1, 2, 3, "begin", 1, 2, 3, 4, True]


def test_a_retry_that_fails_again_goes_on_from_there() -> None:
    world = World()
    lab = world.lab().run()
    lab.driver.retry()
    assert lab.work().status == "failed"
    world.broken = False
    lab.driver.retry()
    assert lab.work().replays().status == "completed"
    assert world.calls == ["begin", 1, 2, 3, 3, 3, 4, True]


def test_a_first_task_that_failed_begins_the_step_anew() -> None:
    world = World()
    lab = world.lab(
        "workflow: [{step: load, tool: [{name: page, kind: fetch, page: 3}, {name: end, kind: seen, what: 1}]}]"
    ).run()
    world.broken = False
    lab.driver.retry()
    assert lab.work().replays().status == "completed"
    assert world.calls == [3, 3, 1]
    assert [e.get("data") for e in lab.events("step.started")] == [None, None]
