"""What types may stand at the edges of a function, how steps are tried again, and what decoration refuses."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from treadle import flow
from treadle.kernel.errors import DefinitionError, InputInvalid
from treadle.testing import play


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    n: int
    at: datetime


class Shape(msgspec.Struct):
    name: str
    sides: tuple[int, ...] = ()


@dataclass
class Everything:
    amount: Decimal
    at: datetime
    day: date
    id: UUID
    colour: Colour
    tags: set[str]
    shape: Shape
    deep: dict[str, list[Decimal]]
    nothing: int | None = None


GIVEN = Everything(
    Decimal("10.10"),
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    date(2026, 1, 2),
    UUID(int=7),
    Colour.RED,
    {"b", "a"},
    Shape("square", (1, 1)),
    {"x": [Decimal("0.1")]},
)


@flow.step(name="shapes.back")
async def back(given: Everything) -> Everything:
    assert given == GIVEN, "a step has its arguments as their types promise"
    return given


@flow.workflow(name="shapes.whole")
async def whole(ctx: flow.Context, given: Everything) -> Everything:
    assert given == GIVEN
    got = await back(given)
    assert got == given
    assert got is not given
    assert got.shape is not given.shape
    await ctx.signal("go")
    assert got.amount + Decimal("0.9") == 11
    return got


def test_typed_values_pass_every_edge_and_are_the_same_after_a_crash() -> None:
    run = play(whole, GIVEN).crash().signal("go")
    assert run.result == GIVEN
    run.assert_replays()


@flow.step(name="shapes.later")
async def later(model: Model) -> Model:
    return model.model_copy(update={"at": model.at + timedelta(days=1)})


@flow.workflow(name="shapes.models")
async def models(ctx: flow.Context, model: Model) -> Model:
    return await later(model)


def test_pydantic_models_pass_every_edge() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    run = play(models, Model(n=1, at=at))
    assert run.result == Model(n=1, at=at + timedelta(days=1))
    run.assert_replays()


@pytest.mark.parametrize("given", [{"amount": "ten"}, 7, {}])
def test_an_input_that_does_not_fit_its_type_is_refused(given: Any) -> None:
    with pytest.raises(InputInvalid):
        play(whole, given)


# --- trying again ---


class Busy(Exception):
    """Goes by."""


@flow.step(name="shapes.shy")
async def shy() -> str:
    raise AssertionError("scripted")


@flow.workflow(name="shapes.trying")
async def trying(ctx: flow.Context, retry: dict[str, Any]) -> str:
    return await shy.options(retry=retry)()


@pytest.mark.parametrize("on", ["Busy", "transport", "STEP_FAILED", ["ValueError", "Busy"]])
def test_a_failure_that_retry_names_is_tried_again(on: Any) -> None:
    run = play(trying, {"attempts": 3, "on": on}, steps={shy: [Busy("1"), Busy("2"), "done"]})
    assert run.result == "done"
    assert len(run.calls(shy)) == 3
    run.assert_replays()


def test_a_failure_that_retry_does_not_name_is_not_tried_again() -> None:
    run = play(trying, {"attempts": 3, "on": "Busy"}, steps={shy: [OSError("gone"), "done"]})
    assert run.status == "failed"
    assert len(run.calls(shy)) == 1
    run.assert_replays()


def test_a_delay_grows_to_its_maximum() -> None:
    retry = {"attempts": 6, "backoff": "exponential", "delay": "1s", "max_delay": "5s"}
    run = play(trying, retry, steps={shy: [Busy("again")] * 5 + ["done"]})
    for seconds in (1, 2, 4, 5, 5):
        calls = len(run.calls(shy))
        run.advance(seconds - 0.5)
        assert len(run.calls(shy)) == calls, "too early"
        run.advance(0.5)
        assert len(run.calls(shy)) == calls + 1
    assert run.result == "done"
    run.assert_replays()


# --- what decoration refuses ---


def generator(ctx: flow.Context) -> Any:
    yield 1


async def stream(ctx: flow.Context) -> AsyncIterator[int]:
    yield 1


def plain(ctx: flow.Context) -> int:
    return 1


async def three(ctx: flow.Context, a: int, b: int) -> int:
    return a + b


async def anything(ctx: flow.Context, **more: int) -> int:
    return 1


async def foreign(ctx: flow.Context, given: Callable[[], int]) -> AsyncIterator[int]:
    raise AssertionError("never called")


class Holder:
    async def method(self, ctx: flow.Context) -> int:
        return 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (generator, ["no generator"]),
        (stream, ["no generator"]),
        (plain, ["async def"]),
        (three, ["one input"]),
        (anything, ["one input"]),
        (Holder.method, ["no method"]),
        (foreign, ["Callable", "AsyncIterator"]),
        (Holder(), ["a workflow is a function"]),
    ],
)
def test_what_cannot_be_a_workflow_is_refused_with_all_its_problems(function: Any, said: list[str]) -> None:
    with pytest.raises(DefinitionError) as caught:
        flow.workflow(function)
    assert all(words in caught.value.message for words in said), caught.value.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"retry": {"attempts": 0}}, ["retry.attempts"]),
        ({"retry": {"attempts": True, "backof": "x", "jitter": 2}}, ["attempts", "backof", "jitter"]),
        ({"retry": {"backoff": "slow", "delay": "soon"}}, ["retry.backoff", "retry.delay"]),
        ({"timeout": "soon"}, ["soon"]),
        ({"process": True}, ["top of its module"]),
    ],
)
def test_settings_of_a_step_that_make_no_sense_are_refused_together(
    settings: dict[str, Any], said: list[str]
) -> None:
    async def local() -> None: ...

    with pytest.raises(DefinitionError) as caught:
        flow.step(name="shapes.refused", **settings)(local)
    assert all(words in caught.value.message for words in said), caught.value.message


@pytest.mark.parametrize("function", [generator, stream, Holder()])
def test_what_cannot_be_a_step_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError, match="a step is"):
        flow.step(function)
