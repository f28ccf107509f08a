"""`limits:` is read strictly: what it cannot mean is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.errors import DefinitionError, InputInvalid
from treadle.lang.quota import Quota


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("5", None),
        ({}, None),
        ({"queue": 5}, None),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": 1, "queue": -1}, "queue"),
        ({"concurrency": 1, "priority": 101}, "priority"),
        ({"concurrency": 1, "most": 3}, "most"),
        ({"rate": "10"}, "rate"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "10/fortnight"}, "rate"),
        ({"rate": "5000/h"}, "rate"),
        ({"rate": 10}, "rate"),
        ({"concurrency": 1, "per": "customer"}, "per"),
        ({"concurrency": 1, "per": "{{ customer }}"}, "per"),
        ({"concurrency": 1, "per": "{{ input.a | upper }}"}, "per"),
    ],
)
def test_limits_that_mean_nothing_are_refused_by_their_field(value: Any, field: str | None) -> None:
    with pytest.raises(DefinitionError) as refused:
        Quota.read(value)
    assert (refused.value.code, refused.value.where) == ("LIMITS_INVALID", field)


@pytest.mark.parametrize(
    ("rate", "pace"),
    [
        ("10/s", (10, 10**9)),
        ("100/h", (100, 3600 * 10**9)),
        ("5/10s", (5, 10 * 10**9)),
        (" 1 / m ", (1, 60 * 10**9)),
    ],
)
def test_a_rate_is_a_number_in_a_time(rate: str, pace: tuple[int, int]) -> None:
    assert Quota.read({"rate": rate}).pace() == pace


def test_limits_are_the_same_after_they_were_stored() -> None:
    quota = Quota.read({"concurrency": 2, "per": "{{ input.a }}", "rate": "1/s", "queue": 0, "priority": -5})
    assert Quota.of(quota.to_value()) == quota


def test_a_key_is_what_the_template_makes_of_the_input() -> None:
    quota = Quota.read({"concurrency": 1, "per": "{{ input.shop }}/{{ input.items.0.id }}-{{ reference }}"})
    about: dict[str, Any] = {"reference": "r", "run": "x"}
    assert quota.key(input={"shop": "s", "items": [{"id": 7}]}, **about) == "s/7-r"
    for wrong in ({}, {"shop": "s", "items": []}, {"shop": ["s"], "items": [{"id": 1}]}, {"shop": "s" * 300}):
        with pytest.raises(InputInvalid):
            quota.key(input=wrong, **about)
