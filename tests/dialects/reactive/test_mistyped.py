"""Declarations with a value of the wrong kind are refused in words of ours, as every other mistake in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from treadle import reactive as rx
from treadle.kernel.errors import DefinitionError


@rx.schema("t/Go@1")
@dataclass(frozen=True)
class Go:
    k: str


@rx.schema("t/Box@1")
@dataclass(frozen=True)
class Box:
    n: int = 0


EFFECT = rx.effect("t/work@1", params=Box, receipt=Box)
WORKFLOW: dict[str, Any] = {"state": Box, "events": [Go], "effects": [], "key": "k"}


def step(box: Box | None, event: Go, ctx: rx.Context) -> rx.Output[Box]:
    return rx.Output(Box())


@pytest.mark.parametrize(
    "wrong",
    [{"events": Go}, {"events": None}, {"effects": EFFECT}, {"effects": None}, {"key": 5}, {"state": 5}],
    ids=str,
)
def test_a_workflow(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"{next(iter(wrong))}: "):
        rx.workflow("t/flow@1", **{**WORKFLOW, **wrong})(step)


@pytest.mark.parametrize("wrong", [{"name": 5}, {"workflows": None}, {"subscriptions": 5}], ids=str)
def test_an_application(wrong: dict[str, Any]) -> None:
    flow = rx.workflow("t/flow@1", **WORKFLOW)(step)
    with pytest.raises(DefinitionError):
        rx.App(**{"name": "t", "workflows": [flow], **wrong})


@pytest.mark.parametrize("wrong", [{"name": None}, {"params": []}, {"receipt": [[]]}], ids=str)
def test_an_effect(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        rx.effect(**{"name": "t/other@1", "params": Box, "receipt": Box, **wrong})
