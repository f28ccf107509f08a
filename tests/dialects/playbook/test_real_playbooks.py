"""Rules found by running playbooks that nobody here wrote (PLAYBOOK §6), each with the file that showed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.tools.protocol import Outcome

from .harness import Lab

MINI = {
    "bare_set": """
metadata: {name: bare_set}
workflow:
- step: a
  tool:
  - {name: one, kind: python, code: "result = {'count': 3}", set: {got: "{{ output }}"}}
  - {name: two, kind: python, input: {got: "{{ got }}"}, code: "result = got['count']"}
""",
    "ctx_set": """
metadata: {name: bare_set}
workflow:
- step: a
  tool:
  - {name: one, kind: python, code: "result = {'count': 3}", set: {ctx.got: "{{ output }}"}}
  - {name: two, kind: python, input: {got: "{{ got }}"}, code: "result = got['count']"}
""",
    "status": """
metadata: {name: status_probe}
workload: {n: 10}
workflow:
- step: start
  tool: {kind: python, args: {n: "{{ workload.n }}"}, code: "result = {'status': 'success', 'error': 'none', 'data': {'x': 1}, 'meta': 'm', 'pad': 'x' * n}"}
  next: {arcs: [{step: look}]}
- step: look
  tool: {kind: noop, result: {status: "{{ start.status }}", error: "{{ start.error }}", data: "{{ start.data }}", meta: "{{ start.meta }}", whole_status: "{{ (start).get('status') }}"}}
""",
    "step_input": """
metadata: {name: step_input}
workload: {users: [{name: Ann}, {name: Bob}]}
workflow:
- step: a
  loop: {in: "{{ users }}", iterator: user}
  tool: {kind: python, code: "result = user['name']"}
  input: {user: "{{ user }}"}
""",
    "ref": """
metadata: {name: ref}
workflow:
- step: a
  tool: {kind: python, code: "result = {'count': 3}"}
  next: {arcs: [{step: b}]}
- step: b
  tool: {kind: noop, result: {defined: "{{ a._ref is defined }}", val: "{{ a._ref | default(none) }}", store: "{{ a._store | default('none') }}"}}
""",
    "loop1000": """
metadata: {name: loop1000}
workflow:
- step: a
  loop: {in: "{{ range(100) | list }}", iterator: i, spec: {mode: sequential, policy: {exec: local}}}
  tool: {kind: python, args: {i: "{{ iter.i }}"}, code: "result = i * 2"}
""",
    "acc": """
metadata: {name: acc}
workflow:
- step: a
  loop: {in: "{{ range(60) | list }}", iterator: i, spec: {mode: sequential}}
  tool: {kind: python, args: {i: "{{ iter.i }}", acc: "{{ ctx.acc | default([]) }}"}, code: "result = acc + [{'id': i, 'pad': 'x'*3000}]", spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {acc: "{{ outcome.result }}"}}}}]}}}
""",
}
OWN_KEYS = {"status": "success", "error": "none", "data": {"x": 1}, "meta": "m", "whole_status": "success"}


async def finished(tmp_path: Path, text: str, input: Any = None) -> tuple[Any, dict[str, Any]]:
    file = tmp_path / "book.yaml"
    file.write_text(text)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        (definition,) = engine.load(str(file))
        run = await engine.start(definition, input)
        result = await run.result(timeout=60)
        assert (await engine.replay(run.id))["equal"]
        return result, await run.show()


@pytest.mark.house
@pytest.mark.parametrize(
    ("name", "input", "expected"),
    [
        ("bare_set", None, 3),
        ("ctx_set", None, 3),
        ("status", None, OWN_KEYS),
        ("status", {"n": 70_000}, OWN_KEYS),
        ("ref", None, {"defined": False, "val": None, "store": "none"}),
    ],
)
async def test_a_small_file_gives_what_its_author_meant(
    tmp_path: Path, name: str, input: Any, expected: Any
) -> None:
    result, _ = await finished(tmp_path, MINI[name], input)
    assert result == expected


@pytest.mark.house
async def test_53_input_of_a_step_is_rendered_for_each_item_and_is_a_variable_of_the_code(
    tmp_path: Path,
) -> None:
    result, _ = await finished(tmp_path, MINI["step_input"])
    assert result["results"] == ["Ann", "Bob"]
    local = MINI["step_input"].replace("iterator: user}", "iterator: user, spec: {policy: {exec: local}}}")
    result, _ = await finished(tmp_path, local)
    assert result["results"] == ["Ann", "Bob"]


async def test_a_list_that_grows_in_ctx_is_whole_at_the_end(tmp_path: Path) -> None:
    _, shown = await finished(tmp_path, MINI["acc"])
    acc = shown["state"]["ctx"]["acc"]
    assert acc["kind"] == "result_ref", "180 KB of it are stored"


async def test_a_loop_of_many_short_items(tmp_path: Path) -> None:
    result, _ = await finished(tmp_path, MINI["loop1000"])
    assert result["results"] == [2 * item for item in range(100)]


def http(config: dict[str, Any], call: Any) -> Outcome:
    return Outcome(result={"status_code": 200, "data": {"rows": [1, 2]}}, http={"status": 200})


def test_46_output_is_a_handle_of_the_result() -> None:
    lab = Lab(
        """
    workflow:
      - step: a
        tool:
          - name: get
            kind: http
            url: x
            set:
              ctx.whole: "{{ output }}"
              ctx.rows: "{{ output.data.rows }}"
              ctx.again: "{{ output.data.data.rows }}"
              ctx.body: "{{ output.body.rows }}"
              ctx.code: "{{ output.http.status }} {{ output.status }}"
        next: {arcs: [{step: b, set: {ctx.arc: "{{ output.data.rows }}"}}]}
      - {step: b, tool: {kind: noop}}
    """,
        {"http": http},
    ).run()
    lab.replays()
    assert lab.ctx["whole"] == {"status_code": 200, "data": {"rows": [1, 2]}}
    assert [lab.ctx[key] for key in ("rows", "again", "body", "arc")] == [[1, 2]] * 4
    assert lab.ctx["code"] == "200 ok"


def test_46_an_http_result_has_a_body_for_code_too() -> None:
    given: list[Any] = []
    lab = Lab(
        """
    workflow:
      - step: a
        tool:
          - {name: get, kind: http, url: x}
          - {name: read, kind: python, args: {page: "{{ get }}"}, code: "result = page['body']"}
    """,
        {"http": http, "python": lambda config, call: given.append(config["args"])},
    ).run()
    lab.replays()
    assert given[0]["page"]["body"] == {"rows": [1, 2]}


@pytest.mark.parametrize("when", ["{{ price.total > 0 }}", "{{ event.result.total > 0 }}"])
def test_55_the_error_of_a_run_is_the_first_cause(when: str) -> None:
    lab = Lab(
        """
    workflow:
      - {step: price, tool: {kind: echo, fail: server_error}, next: {arcs: [{step: pay, when: "WHEN"}]}}
      - {step: pay, tool: {kind: noop}}
    """.replace("WHEN", when)
    ).run()
    lab.replays()
    assert lab.status == "failed"
    assert lab.error["class"] == "transport"
    assert "told to fail" in lab.error["message"]
    (told,) = lab.events("next.failed")
    assert "'total' is undefined" in told["error"]["message"]


def test_55_a_guard_that_fails_after_a_step_that_did_not_is_the_cause_itself() -> None:
    lab = Lab("""
    workflow:
      - {step: price, tool: {kind: noop}, next: {arcs: [{step: pay, when: "{{ price.total > 0 }}"}]}}
      - {step: pay, tool: {kind: noop}}
    """).run()
    lab.replays()
    assert (lab.status, lab.error["class"]) == ("failed", "expression")
    assert "'total' is undefined" in lab.error["message"]


@pytest.mark.parametrize("place", ["step", "task"])
def test_49_an_undefined_collection_fails_its_step_and_names_what_is_not_there(place: str) -> None:
    loop = 'loop: {in: "{{ fetch.command_0.rows }}", iterator: row}'
    inside, outside = (loop + ", ", "") if place == "task" else ("", loop + ", ")
    lab = Lab(
        f"""
    workflow:
      - {{step: fetch, tool: {{kind: noop}}, next: {{arcs: [{{step: use}}]}}}}
      - {{step: use, {outside}tool: [{{name: t, {inside}kind: echo, value: 1}}]}}
    """
    ).run()
    lab.replays()
    assert lab.status == "failed"
    assert lab.error["class"] == "expression"
    assert "'command_0' is undefined" in lab.error["message"]
