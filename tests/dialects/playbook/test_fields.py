"""Tasks are held to the fields that their tools declare; editors get them as a JSON Schema."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from treadle import Engine
from treadle.lang.fields import Field, Fields
from treadle.lang.problems import Problem
from treadle.lang.text import parse
from treadle.tools.protocol import Outcome, ToolCall

ROOT = Path(__file__).parents[3]


def told(tmp_path: Path, text: str, engine: Engine | None = None) -> list[Problem]:
    (tmp_path / "flow.yaml").write_text(dedent(text))
    return (engine or Engine("memory:")).check(str(tmp_path / "flow.yaml"))


def task(tmp_path: Path, fields: str) -> list[tuple[str, str]]:
    return [(p.severity, p.code) for p in told(tmp_path, f"workflow: [{{step: a, tool: {{{fields}}}}}]")]


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ("kind: http, ulr: 'http://x'", "field_missing", "did you mean 'url' by 'ulr'?"),
        ("kind: http, url: 'http://x', timout: 3", "field_unknown", "did you mean 'timeout'?"),
        ("kind: http, url: 'http://x', timeout_sconds: 3", "field_unknown", "did you mean 'timeout_seconds'?"),
        ("kind: python, cod: 'x = 1'", "field_missing", "did you mean 'code' by 'cod'?"),
        ("kind: shell, comand: ls", "field_missing", "did you mean 'command' by 'comand'?"),
        ("kind: noop, spec: {polcy: {rules: []}}", "field_unknown", "did you mean 'policy'?"),
        ("kind: noop, spec: {timout: 3}", "field_unknown", "did you mean 'timeout'?"),
        ("kind: python", "field_missing", "add code"),
        ("kind: http", "field_missing", "add url"),
        ("kind: http, spec: {url: 'http://x'}", "field_missing", "url stands under spec: write it beside kind: http"),
        ("kind: http, args: {url: 'http://x'}", "field_missing", "url stands under args: write it beside kind: http"),
        ("kind: postgres, auth: pg", "field_missing", "add command"),
        ("kind: http, url: 'http://x', headers: [a]", "field_type", "headers: the headers"),
        ("kind: http, url: 'http://x', follow_redirects: no", "field_type", "follow_redirects: true by default, at most 10"),
        ("kind: http, url: 'http://x', response: xml", "field_type", "response: how the answer is read"),
        ("kind: python, code: 'x = 1', memory_mb: lots", "field_type", "memory_mb: the limit of its address space"),
        ("kind: wait, second: 3", "field_missing", "did you mean 'seconds' by 'second'?"),
        ("kind: duckdb, command: 'selct 1'", "sql_syntax", "did you mean SELECT?"),
        ("kind: postgres, auth: pg, commands: [\"insert into t values ('a)\"]", "sql_syntax", "close it; inside a text a quote is written twice"),
        ("kind: duckdb, query: 'select (1'", "sql_syntax", "balance them"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_an_error_with_its_remedy(
    tmp_path: Path, fields: str, code: str, said: str
) -> None:
    problems = told(tmp_path, f"workflow: [{{step: a, tool: {{{fields}}}}}]")
    assert (code, said) in [(p.code, p.hint) for p in problems if p.severity == "error"]
    assert all(p.line == 1 and p.file for p in problems)


@pytest.mark.parametrize(
    "fields",
    [
        "kind: http, url: '{{ workload.url }}', follow_redirects: '{{ workload.f }}', timeout: {connect: 5, read: 15}",
        "kind: http, endpoint: 'http://x', payload: [1], spec: {retries: 2, timeout: 30}, x-owner: ann",
        "kind: python, code: 'x = 1', input: {a: 1}, set: {ctx.a: 1}, output: {inline_max_bytes: 1}, desc: why",
        "kind: artifact, input: {action: get, uri: x.json}",
        "kind: duckdb, commands: ['select $$ ( $$', {sql: 'select 1 -- don''t'}]",
        "kind: postgres, db_host: x, query: 'SELECT 1; WITH a AS (SELECT 1) SELECT * FROM a'",
        "kind: await, name: go",
        "kind: postgres, auth: pg, command: '{{ workload.sql }}'",
    ],
)
def test_a_field_that_is_right_is_not_told_of(tmp_path: Path, fields: str) -> None:
    codes = [code for _, code in task(tmp_path, fields)]
    assert [code for code in codes if code.startswith(("field", "sql", "retry"))] == []


def test_a_retry_beside_the_tool_is_told_with_the_policy_that_does_it(tmp_path: Path) -> None:
    text = "workflow: [{step: a, tool: {kind: http, url: 'http://x', retry: {max_attempts: 5, delay: 2}}}]"
    (problem,) = told(tmp_path, text)
    assert (problem.severity, problem.code) == ("warning", "retry_misplaced")
    assert "do: retry, attempts: 5, delay: 2" in problem.hint
    policy = parse(problem.hint.removeprefix("write ")).value
    mended = f"workflow: [{{step: a, tool: {{kind: http, url: 'http://x', {problem.hint.removeprefix('write ')}}}}}]"
    assert policy["spec"]["policy"]["rules"]
    assert told(tmp_path, mended) == []


def test_what_is_wrong_with_a_task_is_told_beside_what_is_wrong_with_the_net(tmp_path: Path) -> None:
    found = told(
        tmp_path,
        """
        workflow:
          - step: load
            tool: {kind: http, ulr: "http://x"}
            next: {arcs: [{step: nowhere}]}
          - step: 7
            tool: {kind: python, cod: "{{ oops"}
          - step: store
            tool: {kind: http, url: "http://x", timout: 3}
        """,
    )
    assert [(p.line, p.code) for p in found if p.severity == "error"] == [
        (4, "field_unknown"), (4, "field_missing"), (5, "arc_step_unknown"), (6, "step_name_missing"),
        (9, "field_unknown"),
    ], "all at once, in the order of the file"  # fmt: skip


def test_a_field_under_spec_that_does_nothing_there_is_told(tmp_path: Path) -> None:
    assert task(tmp_path, "kind: http, url: 'http://x', spec: {headers: {A: b}}") == [
        ("warning", "field_misplaced")
    ]


def test_a_workbook_call_brings_what_its_entry_lacks(tmp_path: Path) -> None:
    text = """
        workbook: {call: {kind: http, method: GET}}
        workflow:
          - {step: a, tool: {kind: workbook, task: call, url: 'http://x'}}
          - {step: b, tool: {kind: workbook, task: call}}
        """
    found = [(p.code, p.line) for p in told(tmp_path, text) if p.severity == "error"]
    assert found == [("field_missing", 5)]


def test_deploy_and_start_refuse_what_check_refuses(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("workflow: [{step: a, tool: {kind: http}}]")
    with pytest.raises(Exception, match="a http task needs url"):
        Engine("memory:").load(str(tmp_path / "flow.yaml"))


class Sender:
    kind = "send"
    idempotent = True

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        return Outcome()

    async def close(self) -> None: ...


class DeclaringSender(Sender):
    fields = Fields("sends", (Field("to", ("text",), "whom"),), required=(("to",),))


def test_a_tool_that_declares_nothing_is_left_alone_and_one_that_does_is_held_to_it(tmp_path: Path) -> None:
    text = "workflow: [{step: a, tool: {kind: send, tto: ann, anything: 1}}]"
    silent, declaring = Engine("memory:"), Engine("memory:")
    silent.register(Sender())
    declaring.register(DeclaringSender())
    assert told(tmp_path, text, silent) == []
    assert {p.code for p in told(tmp_path, text, declaring)} == {"field_missing", "field_unknown"}


def test_a_tool_in_the_place_of_a_built_in_one_is_not_held_to_its_fields(tmp_path: Path) -> None:
    engine = Engine("memory:")

    @engine.tool("http")
    def http(where: str) -> str:
        return where

    assert told(tmp_path, "workflow: [{step: a, tool: {kind: http, where: x}}]", engine) == []


def test_the_schema_for_editors_says_what_check_says() -> None:
    schema = Engine("memory:").dialects["playbook"].json_schema()  # type: ignore[attr-defined]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for file in (ROOT / "examples" / "order.yaml", *(ROOT / "examples" / "playbook").glob("*.yaml")):
        assert [error.message for error in validator.iter_errors(parse(file.read_text()).value)] == []
    for wrong in (
        "workflow: [{step: a, tool: {kind: http, url: x, timout: 3}}]",
        "workflow: [{step: a, tool: {kind: python}}]",
        "workflow: [{step: a, tool: {kind: http, url: x, headers: [1]}}]",
        "workflow: [{step: a, tool: {kind: noop, spec: {policy: {}}}}]",
        "workflow: []",
        "vars: {}\nworkflow: [{step: a}]",
    ):
        assert list(validator.iter_errors(parse(wrong).value)), wrong
    mine = parse("workflow: [{step: a, tool: {kind: mine, anything: 1}}]").value
    assert list(validator.iter_errors(mine)) == []
