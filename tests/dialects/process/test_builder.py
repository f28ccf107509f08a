"""The Python builder: what it refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

import treadle.process as api
from treadle.kernel.errors import DefinitionError
from treadle.lang.expressions.functions import FUNCTIONS
from treadle.process import process, result, start, state, task


def test_every_function_is_importable() -> None:
    for name in FUNCTIONS:
        python_name = {"if": "if_", "format": "format_"}.get(name, name)
        assert callable(getattr(api, python_name)), name
        assert python_name in api.__all__


def test_terms_show_their_text() -> None:
    assert repr((state.x + 1) * 2 > start.y) == "(state.x + 1) * 2 > start.y"
    assert repr(~(state.a & state.b) | (state["odd key"] == "it's")) == (
        "not (state.a and state.b) or state['odd key'] == 'it\\'s'"
    )
    assert repr(api.if_(result.a[0].b, [1], {"k": state.i})) == "if(result.a[0].b, [1], {k: state.i})"
    assert repr(1 + state.x) == "1 + state.x"
    assert repr(-state.x % 3) == "-state.x % 3"


@pytest.mark.parametrize(
    ("misuse", "instead"),
    [
        (lambda: bool(state.x), "p.when"),
        (lambda: state.x and state.y, "& | ~"),
        (lambda: [item for item in state.items], "p.each"),  # noqa: C416
        (lambda: 1 in state.items, "contains"),
        (lambda: len(state.items), "length"),
        (lambda: f"{state.x}", "format_"),
        (lambda: str(state.x), "concat"),
        (lambda: setattr(state, "x", 1), "p.set"),
    ],
)
def test_python_that_needs_a_value_is_explained(misuse: Any, instead: str) -> None:
    with pytest.raises(TypeError, match=instead.replace("|", r"\|")):
        misuse()


def test_if_on_a_term_raises_with_an_explanation() -> None:
    with pytest.raises(TypeError, match="no value while the process is written"):

        @process("Bad")
        def bad(p: Any) -> None:
            if state.x:
                p.complete()


def test_callables_are_refused() -> None:
    @process("Bad")
    def bad(p: Any) -> None:
        p.set(state.x, lambda: 1)
        p.complete({"f": print})

    with pytest.raises(DefinitionError) as caught:
        _ = bad.definition
    codes = [problem["code"] for problem in caught.value.details["problems"]]
    assert codes == ["BAD_VALUE", "BAD_VALUE"]
    with pytest.raises(TypeError, match="a definition is data"):
        state.x + (lambda: 1)


def test_problems_point_into_the_python_file() -> None:
    @process("Bad")
    def bad(p: Any) -> None:
        p.wait("1s")
        with p.when(state.x):
            p.wait("soon")  # the line that is wrong

    definition, problems = bad.compile()
    assert definition is None
    (problem,) = problems
    assert problem.file == __file__
    with open(__file__) as source:
        assert "the line that is wrong" in source.read().splitlines()[problem.line - 1]


def test_an_async_function_is_refused_when_it_is_decorated() -> None:
    async def body(p: Any) -> None:
        p.wait("1h")

    with pytest.raises(DefinitionError, match=r"treadle\.flow") as refused:
        process("B", version="1")(body)
    assert refused.value.code == "ASYNC_PROCESS"


def test_otherwise_stands_after_when() -> None:
    with pytest.raises(DefinitionError, match=r"right after a p\.when"):

        @process("Bad")
        def bad(p: Any) -> None:
            p.wait("1s")
            with p.otherwise():
                p.complete()


def test_loop_items_live_in_their_loop() -> None:
    @process("Loop")
    def loop(p: Any) -> None:
        with p.each("line", in_=start.lines) as line:
            assert repr(p.line) == repr(line) == "line"
            assert repr(p.line_index) == "line_index"
            assert repr(p.item_index) == "item_index"
            p.set(state.last, p.line)
        with pytest.raises(AttributeError, match="no loop 'line' here"):
            _ = p.line

    assert loop.definition.body["steps"][0]["repeat"]["each"] == "line"


def test_two_tasks_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two tasks are named"):

        @process("Bad")
        def bad(p: Any) -> None:
            p.ask(task("a", roles=["x"]))
            p.ask(task("a", roles=["y"]))


def test_own_transports_are_the_engines_business() -> None:
    @process("Own")
    def own(p: Any) -> None:
        p.call("slack", text="hi", on_failure=lambda p: p.call("pager"))

    assert own.definition.body["requires"]["transports"] == ["pager", "slack"]
    assert [problem.code for problem in own.compile()[1]] == ["UNKNOWN_TRANSPORT", "UNKNOWN_TRANSPORT"]
