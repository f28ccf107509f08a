"""Labels of intents are read as they were written, and are the same bytes as in journals of 0.1.0."""

from __future__ import annotations

import pytest

from treadle.dialects.playbook import errands
from treadle.dialects.playbook.errands import errand_of
from treadle.dialects.playbook.marking import KEYCHAIN, Ref


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (Ref("7"), "7"),
        (Ref("7", 3), "7.3"),
        (Ref("7", 3, "on"), "7.3!on"),
        (Ref("7", mark="on"), "7!on"),
        (Ref("7", mark="due"), "7!due"),
        (Ref("7", mark="lease"), "7!lease"),
        (Ref("7", mark="args"), "7!args"),
        (Ref("7", mark="keep", part=12), "7!keep12"),
        (KEYCHAIN, "!keychain"),
    ],
)
def test_a_label_is_read_as_it_was_written(ref: Ref, text: str) -> None:
    assert str(ref) == text
    assert Ref.parse(text) == ref


def test_a_label_knows_the_work_it_stands_beside() -> None:
    assert str(Ref("7", 3, "on").base) == "7.3"
    assert str(Ref("7", 3).marked("on")) == "7.3!on"


@pytest.mark.parametrize(
    ("params", "errand"),
    [
        ({"name": "a", "step": "a", "args": {"keep": 1}}, errands.StepRun("a")),
        ({"name": "a", "step": "a", "lease": {"first": 0}}, errands.Lease("a", {"first": 0})),
        ({"name": "keychain", "step": "a", "prove": ["k"]}, errands.Prove(["k"])),
        ({"name": "args of b", "step": "a", "render": 0}, errands.Render("a", 0)),
        ({"name": "a", "step": "a", "keep": [1, 2]}, errands.Keep([1, 2])),
    ],
)
def test_what_a_step_intent_asks_for_is_told_in_one_place(
    params: dict[str, object], errand: errands.Errand
) -> None:
    assert errand_of(params) == errand
