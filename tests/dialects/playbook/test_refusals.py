"""Every bad playbook under cases/invalid is refused with the code and line its first line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import compile_text, problems_of

INVALID = sorted((Path(__file__).parent / "cases" / "invalid").glob("*.yaml"))


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_refused_with_code_and_line(path: Path) -> None:
    text = path.read_text()
    wanted = [item.split() for item in text.splitlines()[0].removeprefix("# expect:").split(",")]
    found = [(p.code, p.line) for p in problems_of(text) if p.severity == "error"]
    assert sorted(found) == sorted((code, int(line)) for code, line in wanted)


def test_there_are_enough_of_them() -> None:
    assert len(INVALID) >= 40


def test_every_problem_has_a_message_and_migrations_name_the_replacement() -> None:
    for path in INVALID:
        for problem in problems_of(path.read_text()):
            assert problem.message
            assert problem.file == "test.yaml"
            if problem.rule == "004 §13":
                assert problem.hint, problem.code


STRICT_B = {
    "input": "workflow: [{step: a, tool: {kind: python, input: {a: 1}, code: x}}]",
    "set": "workflow: [{step: a, tool: {kind: noop, set: {ctx.a: 1}}}]",
    "output": "workflow: [{step: a, tool: {kind: noop, output: {inline_max_bytes: 1}}}]",
    "call.done": "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: \"{{ event.name == 'call.done' and false }}\"}]}}]",
    "template": "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: '{{ output.data == 1 }}'}]}}]",
}


@pytest.mark.parametrize("text", STRICT_B.values(), ids=STRICT_B.keys())
def test_strict_refuses_spelling_b_with_the_canonical_one_as_hint(text: str) -> None:
    compile_text(text)
    errors = [p for p in problems_of(text, strict=True) if p.severity == "error"]
    assert [p.code for p in errors] == ["spelling_b"]
    assert errors[0].hint.startswith("write ")


def test_both_spellings_of_one_thing_are_refused() -> None:
    codes = [
        p.code
        for p in problems_of("workflow: [{step: a, tool: {kind: python, input: {}, args: {}, code: x}}]")
    ]
    assert codes == ["spelled_twice"]
