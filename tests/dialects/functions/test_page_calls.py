"""What FLOW.md says, line by line, of workflows, steps, their values, retries and failures."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, flow
from treadle.dialects.function.steps import STEPS
from treadle.kernel.errors import DefinitionError
from treadle.kernel.model import OpenIntent
from treadle.testing import assert_replays, play
from treadle.testing.playing import Play


def whole(made: Play[Any]) -> Play[Any]:
    made.assert_replays()
    return made


def opened(run: Play[Any], name: str) -> OpenIntent:
    (found,) = [intent for intent in run.driver.run.open.values() if intent.name == name]
    return found


# --- what is decorated ---


def test_workflow_and_step_take_what_the_page_says() -> None:
    settings = {
        flow.workflow: ["name", "version", "timeout", "guard", "limits"],  # the last one is of SERVER.md 23
        flow.step: ["name", "retry", "timeout", "idempotent", "process", "secrets", "pool"],
    }
    for decorator, names in settings.items():
        parameters = inspect.signature(decorator).parameters.values()
        assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == names
    defaults = inspect.signature(flow.step).parameters
    assert (defaults["idempotent"].default, defaults["process"].default) == (True, False)


@flow.step
async def page_bare() -> int:
    return 1


@flow.step()
async def page_empty() -> int:
    return 2


@flow.workflow
async def page_bare_flow(ctx: flow.Context) -> list[int]:
    return [await page_bare(), await page_empty()]


def test_decorators_stand_bare_and_with_brackets_and_names_are_the_functions_own() -> None:
    assert (page_bare.name, page_empty.name, page_bare_flow.name) == (
        "page_bare",
        "page_empty",
        "page_bare_flow",
    )
    assert page_bare_flow.version == "1"
    assert whole(play(page_bare_flow)).result == [1, 2]


def test_a_step_is_known_process_wide_from_its_decoration_on() -> None:
    @flow.step(name="page.known")
    def known() -> None: ...

    assert STEPS["page.known"] is known


@flow.step(
    name="page.set", retry={"attempts": 2}, timeout="30s", idempotent=False, secrets=["KEY"], pool="slow"
)
async def page_set(n: int) -> int:
    return n


def test_options_count_for_one_call_and_the_rest_stays() -> None:
    @flow.workflow(name="page.options")
    async def options(ctx: flow.Context) -> list[int]:
        changed = page_set.options(timeout="5s", pool="quick", idempotent=True, secrets=[])
        return [await changed(1), await page_set(2)]

    run = play(options, by_hand=True)
    (first,) = run.open
    assert first.due_ns == run.driver.now_ns + 5 * 10**9
    assert (first.pool, first.params.get("idempotent", True), first.params.get("secrets", [])) == (
        "quick",
        True,
        [],
    )
    run.perform(first)
    (second,) = run.open
    assert second.due_ns == run.driver.now_ns + 30 * 10**9
    assert (second.pool, second.params["idempotent"], second.params["secrets"]) == ("slow", False, ["KEY"])
    run.perform(second)
    assert whole(run).result == [1, 2]


class Service:
    async def method(self, ctx: flow.Context, given: Callable[[], int]) -> int:
        return 1


def test_everything_that_is_wrong_with_a_workflow_is_told_at_once() -> None:
    def generator(ctx: flow.Context, a: Callable[[], int], b: int) -> Any:
        yield 1

    with pytest.raises(DefinitionError) as caught:
        flow.workflow(timeout="soon")(generator)
    told = caught.value.message
    for words in ("no generator", "one input", "Callable", "soon"):
        assert words in told, told
    assert len(caught.value.details["problems"]) == 4
    with pytest.raises(DefinitionError) as caught:
        flow.workflow(Service.method)
    assert "no method" in caught.value.message
    assert "Callable" in caught.value.message


def test_everything_that_is_wrong_with_a_step_is_told_at_once() -> None:
    def generator(given: Callable[[], int]) -> Any:
        yield 1

    with pytest.raises(DefinitionError) as caught:
        flow.step(name="page.wrong", process=True, timeout="soon", retry={"attempts": 0, "delay": "later"})(
            generator
        )
    for words in ("no generator", "Callable", "top of its module", "soon", "retry.attempts", "retry.delay"):
        assert words in caught.value.message, caught.value.message
    assert "page.wrong" not in STEPS


# --- values ---


@flow.step(name="page.echo")
async def echo(given: Any) -> Any:
    return given


@flow.step(name="page.wide")
async def wide(first: int, /, *rest: int, key: str = "k", **more: int) -> list[Any]:
    return [first, list(rest), key, more]


def test_arguments_are_encoded_when_the_step_is_called() -> None:
    @flow.workflow(name="page.encoded")
    async def encoded(ctx: flow.Context) -> Any:
        given = {"n": 1}
        call = echo(given)
        assert inspect.iscoroutine(call)
        given["n"] = 2
        later = await call
        with pytest.raises(TypeError, match=r"page\.echo: object cannot be stored"):
            echo(object())  # refused by the call, before there is anything to await
        with pytest.raises(TypeError):
            wide()  # type: ignore[call-arg] # what python says
        return later

    assert whole(play(encoded)).result == {"n": 1}


def test_a_step_takes_every_kind_of_argument() -> None:
    @flow.workflow(name="page.kinds")
    async def kinds(ctx: flow.Context) -> list[Any]:
        return [await wide(1), await wide(1, 2, 3, key="x", a=4)]

    run = whole(play(kinds))
    assert run.result == [[1, [], "k", {}], [1, [2, 3], "x", {"a": 4}]]
    assert run.calls(wide)[1] == {"first": 1, "rest": [2, 3], "key": "x", "more": {"a": 4}}


def test_untyped_values_are_the_same_live_as_on_replay() -> None:
    @flow.workflow(name="page.untyped")
    async def untyped(ctx: flow.Context) -> list[Any]:
        given = {"z": (1, (2, 3)), "a": {"c", "a", "b"}, "m": 1}
        got = await echo(given)
        again = await echo(given)
        seen = [list(got), list(got["z"]), got["a"], got is again, got["z"] is again["z"]]
        got["z"].append("mine")
        await ctx.signal("go")
        return [*seen, got["z"][-1], again["z"]]

    run = play(untyped).crash().signal("go")
    assert whole(run).result == [
        ["a", "m", "z"],
        [1, [2, 3]],
        ["a", "b", "c"],
        False,
        False,
        "mine",
        [1, [2, 3]],
    ]


async def test_outside_a_run_a_step_is_a_plain_call() -> None:
    given = object()
    assert await echo(given) is given


# --- retry and timeout ---


@flow.step(name="page.shy", timeout="30s")
async def shy() -> str:
    raise AssertionError("scripted")


@flow.workflow(name="page.trying")
async def trying(ctx: flow.Context, retry: dict[str, Any]) -> str:
    return await shy.options(retry=retry)()


def test_a_step_is_tried_once_unless_it_says_otherwise() -> None:
    run = play(trying, {}, steps={shy: [OSError("no"), "yes"]})
    assert run.status == "failed"
    assert len(run.calls(shy)) == 1
    assert whole(run).waiting == []


@pytest.mark.parametrize(
    ("backoff", "seconds"), [("none", [2, 2, 2]), ("linear", [2, 4, 6]), ("exponential", [2, 4, 8])]
)
def test_the_delay_between_attempts_is_of_its_backoff(backoff: str, seconds: list[int]) -> None:
    retry = {"attempts": 4, "backoff": backoff, "delay": "2s"}
    run = play(trying, retry, steps={shy: [OSError("1"), OSError("2"), OSError("3"), "done"]})
    for wait in seconds:
        timer = opened(run, "retry of page.shy")
        assert timer.due_ns == run.driver.now_ns + wait * 10**9
        run.advance(wait)
    assert whole(run).result == "done"


def test_jitter_moves_a_delay_by_its_share_and_by_the_runs_own_chance() -> None:
    retry = {"attempts": 2, "delay": "100s", "jitter": 0.5}

    def delay(id: str) -> int:
        run = play(trying, retry, steps={shy: OSError("no")}, id=id)
        due = opened(run, "retry of page.shy").due_ns
        assert due is not None
        run.crash().advance("1h")
        whole(run)
        return due - 0

    first = delay("one")
    assert delay("one") == first
    run = play(trying, retry, steps={shy: OSError("no")}, id="one")
    assert 75 <= (first - run.driver.now_ns) / 10**9 <= 125


@pytest.mark.parametrize("on", [OSError, [ValueError, OSError], "FileNotFoundError", "OSError"])
def test_retry_on_takes_classes_and_names_of_exceptions_also_of_their_bases(on: Any) -> None:
    @flow.step(name="page.on", retry={"attempts": 2, "on": on})
    async def named() -> str:
        raise AssertionError("scripted")

    @flow.workflow(name="page.on")
    async def tries(ctx: flow.Context) -> str:
        return await named()

    run = play(tries, steps={named: [FileNotFoundError("gone"), "there"]})
    assert whole(run).result == "there"


def test_the_timeout_is_of_each_attempt_from_its_opening() -> None:
    run = play(trying, {"attempts": 2, "delay": "1h", "on": "timeout"}, by_hand=True)
    assert opened(run, "page.shy").due_ns == run.driver.now_ns + 30 * 10**9
    run.advance("30s")
    run.advance("1h")
    assert opened(run, "page.shy").due_ns == run.driver.now_ns + 30 * 10**9
    run.advance("30s")
    assert whole(run).error is not None
    assert (run.error or {})["class"] == "timeout"


# --- failures ---


def test_a_failed_step_tells_all_about_itself() -> None:
    @flow.workflow(name="page.tells")
    async def tells(ctx: flow.Context) -> list[Any]:
        try:
            await shy.options(retry={"attempts": 2})()
        except flow.StepFailed as error:
            about = [error.step, error.cls, error.code, error.message, error.type, error.attempts]
            return [*about, sorted(error.details)]
        return []

    run = play(tells, steps={shy: KeyError("gone")})
    assert whole(run).result == [
        "page.shy",
        "transport",
        "STEP_FAILED",
        "KeyError: 'gone'",
        "KeyError",
        2,
        ["exception", "kinds"],
    ]


def test_the_exceptions_are_what_python_knows_them_by() -> None:
    assert flow.Cancelled is asyncio.CancelledError
    assert issubclass(flow.StepTimeout, TimeoutError)
    assert issubclass(flow.StepTimeout, flow.StepFailed)
    assert issubclass(flow.ChildFailed, flow.StepFailed)
    assert not issubclass(flow.StepFailed, flow.Cancelled)


@dataclass
class Named(Exception):
    n: int


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


def inner(kind: Any) -> None:
    raise kind


RAISED: list[tuple[Any, str]] = [
    (ValueError("no"), "ValueError: no"),
    (KeyError(), "KeyError"),
    (Unspeakable(), "Unspeakable"),
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (StopAsyncIteration("x"), "StopAsyncIteration: x"),
    (ExceptionGroup("two", [ValueError("a"), OSError("b")]), "ExceptionGroup: two (2 sub-exceptions)"),
    (
        BaseExceptionGroup("two", [ValueError("a"), KeyboardInterrupt()]),
        "BaseExceptionGroup: two (2 sub-exceptions)",
    ),
]


@pytest.mark.parametrize(("raised", "said"), RAISED, ids=[type(kind).__name__ for kind, _ in RAISED])
def test_an_exception_that_leaves_the_function_fails_its_run(raised: BaseException, said: str) -> None:
    @flow.workflow(name="page.raises")
    async def raises(ctx: flow.Context) -> None:
        await ctx.signal("go")
        inner(raised)

    run = whole(play(raises).signal("go"))
    error = run.error or {}
    assert (run.status, error["class"], error["code"]) == ("failed", "user", "FUNCTION_RAISED")
    if not isinstance(raised, StopAsyncIteration):  # python makes a RuntimeError of it
        assert error["message"] == said
    lines = error["details"]["traceback"]
    assert [(line["function"], line["text"]) for line in lines][:2] == [
        ("raises", "inner(raised)"),
        ("inner", "raise kind"),
    ]
    assert error["where"] == f"{lines[-1]['file']}:{lines[-1]['line']}"
    assert all(sorted(line) == ["file", "function", "line", "text"] for line in lines)


def test_the_failure_of_a_step_that_leaves_the_function_keeps_its_class_and_code() -> None:
    run = play(trying, {}, steps={shy: flow.Fatal("stop", code="STOPPED")})
    error = whole(run).error or {}
    assert (error["class"], error["code"], error["message"]) == ("user", "STOPPED", "stop")
    assert error["details"]["step"] == "page.shy"


# --- a step in its engine ---


@flow.step(name="page.fatal", retry={"attempts": 9})
async def fatal() -> None:
    raise flow.Fatal("never", code="NEVER", details={"why": [1]})


@flow.step(name="page.exits", retry={"attempts": 2})
def exits() -> None:
    raise SystemExit(1)


@flow.workflow(name="page.really")
async def really(ctx: flow.Context) -> list[Any]:
    found: list[Any] = []
    for step in (fatal, exits):
        try:
            await step()
        except flow.StepFailed as error:
            found.append([error.code, error.cls, error.type, error.attempts])
    return found


@pytest.mark.house
async def test_fatal_and_foreign_exceptions_come_back_from_a_worker_as_the_page_says(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(really)
        assert await run.result(60) == [
            ["NEVER", "user", "Fatal", 1],
            ["STEP_FAILED", "transport", "SystemExit", 2],
        ]
        await assert_replays(engine)
