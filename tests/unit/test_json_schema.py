"""Applying a JSON Schema that somebody wrote: it ends, reaches nothing, and says the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.exceptions import Unresolvable

from treadle.lang import json_schema
from treadle.lang.json_schema import KEYWORDS, validator
from treadle.lang.patterns import PatternError, TooMuchWork
from treadle.lang.schema_problems import syntax_problem

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


def test_keywords_that_speak_are_ours() -> None:
    """What is told is recorded, and jsonschema words it otherwise from version to version. Its own are
    left where they only lead to other schemas; `format` is not checked."""
    theirs = {
        name
        for name, keyword in json_schema._Validator.VALIDATORS.items()
        if not keyword.__module__.startswith("treadle.")
    }
    silent = {"allOf", "dependentSchemas", "if", "prefixItems", "properties", "propertyNames"}
    assert theirs == {"$ref", "$dynamicRef", "format", *silent}


SPOKEN: list[tuple[Any, Any, str]] = [
    ({"type": "string"}, 1, "1 is not of type 'string'"),
    ({"type": ["string", "null"]}, True, "True is not of type 'string', 'null'"),
    ({"enum": [1, "a"]}, True, "True is not one of [1, 'a']"),
    ({"const": [1]}, [True], "[1] was expected"),
    ({"required": ["a"]}, {"b": 1}, "'a' is a required property"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "'b' is a dependency of 'a'"),
    ({"items": False}, [1, 2], "Expected at most 0 items but found 2 extra: [1, 2]"),
    (
        {"prefixItems": [True], "items": False},
        [1, 2],
        "Expected at most 1 item but found 1 extra: 2",
    ),
    ({"contains": {"const": 1}}, [2], "[2] does not contain items matching the given schema"),
    (
        {"contains": True, "maxContains": 1},
        [1, 2],
        "Too many items match the given schema (expected at most 1)",
    ),
    (
        {"contains": {"const": 1}, "minContains": 2},
        [1],
        "Too few items match the given schema (expected at least 2 but only 1 matched)",
    ),
    ({"multipleOf": 2}, 3, "3 is not a multiple of 2"),
    ({"multipleOf": 0.5}, 0.75, "0.75 is not a multiple of 0.5"),
    ({"uniqueItems": True}, [1, 1.0], "[1, 1.0] has non-unique elements"),
    ({"uniqueItems": True}, [{"a": [1]}, {"a": [1]}], "[{'a': [1]}, {'a': [1]}] has non-unique elements"),
    ({"anyOf": [{"const": 1}]}, 2, "2 is not valid under any of the given schemas"),
    ({"oneOf": [{"const": 1}]}, 2, "2 is not valid under any of the given schemas"),
    (
        {"oneOf": [{"const": 1}, {"type": "number"}]},
        1,
        "1 is valid under each of {'type': 'number'}, {'const': 1}",
    ),
    ({"not": {"const": 1}}, 1, "1 should not be valid under {'const': 1}"),
    ({"minimum": 2}, 1, "1 is less than the minimum of 2"),
    ({"maximum": 2}, 3.5, "3.5 is greater than the maximum of 2"),
    ({"exclusiveMinimum": 2}, 2, "2 is less than or equal to the minimum of 2"),
    ({"exclusiveMaximum": 2}, 2, "2 is greater than or equal to the maximum of 2"),
    ({"minItems": 1}, [], "[] should be non-empty"),
    ({"minItems": 2}, [1], "[1] is too short"),
    ({"maxItems": 0}, [1], "[1] is expected to be empty"),
    ({"maxItems": 1}, [1, 2], "[1, 2] is too long"),
    ({"minLength": 2}, "a", "'a' is too short"),
    ({"maxLength": 1}, "ab", "'ab' is too long"),
    ({"minProperties": 2}, {"a": 1}, "{'a': 1} does not have enough properties"),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, "{'a': 1, 'b': 2} has too many properties"),
    ({"properties": {"a": False}}, {"a": 1}, "False schema does not allow 1"),
    (
        {"prefixItems": [True], "unevaluatedItems": False},
        [1, 2, "x"],
        "Unevaluated items are not allowed (2, 'x' were unexpected)",
    ),
]


@pytest.mark.parametrize(("schema", "value", "words"), SPOKEN, ids=lambda part: str(part)[:40])
def test_what_does_not_fit_is_told_in_the_words_of_journals_that_are_there(
    schema: Any, value: Any, words: str
) -> None:
    """Verdicts of runs hold these words since 0.1.0: another word, and those runs replay differently."""
    assert messages(schema, value) == [words]


def test_each_keyword_of_ours_is_among_them() -> None:
    assert {key for schema, _, _ in SPOKEN for key in schema} >= KEYWORDS.keys()


def _lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "minContains": st.integers(0, 2),
            "maxContains": st.integers(0, 2),
            "unevaluatedItems": inner,
            "uniqueItems": st.booleans(),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "enum": st.lists(st.sampled_from([1, True, [1], [True], {"a": 1}]), min_size=1),
            "oneOf": several,
            "anyOf": several,
            "not": inner,
        },
    )


ITEMS = st.recursive(
    st.sampled_from([1, 1.0, 0, False, True, "a", None, 2.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)
LEAVES = st.sampled_from(
    [True, False, {"type": "integer"}, {"multipleOf": 0.5}, {"minimum": 1}, {"const": 1}, {"const": [True]}]
)


@given(st.recursive(LEAVES, _lists, max_leaves=6), ITEMS)
def test_what_fits_in_lists_is_what_jsonschema_says(schema: Any, value: Any) -> None:
    wanted = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
    assert messages(schema, value) == wanted
