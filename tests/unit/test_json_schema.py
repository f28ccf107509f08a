"""Applying a JSON Schema that somebody wrote: it ends, reaches nothing, and says the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from treadle.lang.json_schema import syntax_problem, validator
from treadle.lang.patterns import PatternError, TooMuchWork

HOSTILE = "^(a+)+$"
TEXT = "a" * 60 + "!"
DRAFTS = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
]


def messages(schema: Any, value: Any) -> list[str]:
    return [error.message for error in validator(schema).iter_errors(value)]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": HOSTILE}, TEXT),
        ({"propertyNames": {"pattern": HOSTILE}}, {TEXT: 1}),
        ({"patternProperties": {HOSTILE: False}, "additionalProperties": False}, {TEXT: 1}),
        ({"patternProperties": {HOSTILE: True}, "unevaluatedProperties": False}, {TEXT: 1}),
        (
            {"allOf": [{"patternProperties": {HOSTILE: True}}], "unevaluatedProperties": {"type": "string"}},
            {TEXT: 1},
        ),
    ],
)
def test_no_keyword_hands_a_pattern_to_an_engine_that_hangs(schema: Any, value: Any) -> None:
    assert len(messages(schema, value)) == 1


@pytest.mark.parametrize("draft", DRAFTS)
def test_nor_does_a_part_that_names_a_draft(draft: str) -> None:
    """jsonschema would change to that draft's own keywords there, through a reference too."""
    inner = {"$schema": draft, "pattern": HOSTILE}
    assert messages({"properties": {"a": inner}}, {"a": TEXT}) == [f"{TEXT!r} does not match {HOSTILE!r}"]
    whole = {"$schema": draft, "properties": {"a": {"$ref": "#"}}, "patternProperties": {HOSTILE: False}}
    assert messages(whole, {"a": {TEXT: 1}}) == ["False schema does not allow {'" + TEXT + "': 1}"]


def test_too_much_work_is_no_answer() -> None:
    """Neither fits nor does not fit: `not` would turn one into the other."""
    given_up = {"pattern": r"^(a+)+\1$"}
    for schema in (given_up, {"not": given_up}, {"items": given_up}):
        with pytest.raises(TooMuchWork, match="simpler pattern"):
            messages(schema, [TEXT] if "items" in schema else TEXT)


def test_all_values_share_one_budget() -> None:
    schema = {"items": {"pattern": r"^(a+)+\1$"}}
    assert len(messages(schema, ["aaaab"] * 3)) == 3
    with pytest.raises(TooMuchWork):
        messages(schema, ["a" * 12 + "!"] * 10_000)
    assert len(messages(schema, ["aaaab"])) == 1


def test_a_pattern_that_is_none_is_found_before_and_after() -> None:
    place, message = syntax_problem({"properties": {"a": {"pattern": "x*+"}}}) or ((), "")
    assert place == ("properties", "a", "pattern")
    assert message == "not a JSON Schema: 'x*+' is not a 'regex': nothing to repeat, at position 2"
    assert syntax_problem({"patternProperties": {"(": True}}) is not None
    assert syntax_problem({"pattern": r"^\p{L}+$", "patternProperties": {"(?i)x": True}}) is None
    with pytest.raises(PatternError):
        messages({"pattern": "x*+"}, "x")


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    with pytest.raises(Unresolvable):
        messages({"properties": {"a": {"$ref": "http://localhost/schema.json"}}}, {"a": 1})
    assert fetched == []


def test_properties_are_told_in_their_order() -> None:
    """Not in that of a set, which differs between processes: what is told is recorded."""
    value = dict.fromkeys("zyxwvutsrqponm", 1)
    found = validator({"additionalProperties": {"type": "string"}}).iter_errors(value)
    assert [error.absolute_path[0] for error in found] == list(value)


NAMES = st.sampled_from(["a", "b", "ab", "x1"])
VALUES = st.dictionaries(NAMES, st.sampled_from([1, "a", "b1", None, True]), max_size=3)
SIMPLE: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, {}, {"type": "string"}, {"pattern": "^a"}, {"const": 1}, {"not": {"pattern": "1$"}}]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", r"\d"]), inner, max_size=2),
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "allOf": several,
            "anyOf": several,
            "if": inner,
            "then": inner,
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        },
    )


@given(st.recursive(SIMPLE, _objects, max_leaves=8), VALUES)
def test_what_fits_is_what_jsonschema_says(schema: Any, value: Any) -> None:
    """Patterns that `re` reads alike: the keywords that we replaced must mean the same, word for word."""
    wanted = sorted(error.message for error in Draft202012Validator(schema).iter_errors(value))
    found = sorted(messages(schema, value))
    assert [text for text in found if "Unevaluated" not in text] == [
        text for text in wanted if "Unevaluated" not in text
    ]
    assert len(found) == len(wanted)
