"""Values and their types: one canonical form, refusals where they are written (design §7.3, seed §3.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import reactive as rx
from treadle.dialects.reactive.shapes import canonical
from treadle.dialects.reactive.types import derive, shape_of
from treadle.kernel.errors import DefinitionError, InputInvalid
from treadle.kernel.values import encode


class Colour(Enum):
    RED = 1
    BLUE = 2


@rx.schema("t/Leaf@1")
@dataclass(frozen=True)
class Leaf:
    name: str


@rx.schema("t/Twig@1")
@dataclass(frozen=True)
class Twig:
    length: int


@rx.schema("t/All@1")
@dataclass(frozen=True)
class All:
    text: str
    flag: bool
    whole: int
    natural: rx.Nat
    real: float
    money: Decimal
    raw: bytes
    at: datetime
    took: timedelta
    id: UUID
    unit: None
    items: list[int]
    more: tuple[str, ...]
    tags: set[str]
    frozen: frozenset[int]
    by_name: dict[str, int]
    by_number: dict[int, str]
    by_id: dict[UUID, int]
    maybe: str | None
    colour: Colour
    word: Literal["a", "b"]
    either: Leaf | Twig
    nested: Leaf


SAMPLE = All(
    text="x",
    flag=True,
    whole=-5,
    natural=2**64 - 1,
    real=0.5,
    money=Decimal("12.50"),
    raw=b"\x00\xff",
    at=datetime(2026, 11, 15, 8, 0, 0, 123456, tzinfo=UTC),
    took=timedelta(milliseconds=1500),
    id=UUID("6F9619FF-8B86-D011-B42D-00C04FC964FF"),
    unit=None,
    items=[3, 1],
    more=("b", "a"),
    tags={"z", "a", "m"},
    frozen=frozenset({300, 2, 10}),
    by_name={"b": 1, "a": 2},
    by_number={10: "x", 9: "y", -1: "z"},
    by_id={UUID(int=2): 1, UUID(int=1): 2},
    maybe=None,
    colour=Colour.BLUE,
    word="b",
    either=Twig(3),
    nested=Leaf("l"),
)


def test_every_type_has_one_canonical_form_and_comes_back():
    shape = shape_of(All)
    value = shape.canon(SAMPLE)
    assert value["money"] == "12.5"
    assert value["at"] == 1_794_729_600_123_456_000
    assert value["took"] == 1_500_000_000
    assert value["id"] == "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    assert value["tags"] == ["a", "m", "z"]
    assert value["frozen"] == [2, 10, 300]
    assert value["by_number"] == [[9, "y"], [10, "x"], [-1, "z"]], "sorted by the key's bytes"
    assert [pair[1] for pair in value["by_id"]] == [2, 1]
    assert value["colour"] == {"$tag": "BLUE"}
    assert value["word"] == {"$tag": "b"}
    assert value["either"] == {"$tag": "Twig", "$value": {"length": 3}}
    assert shape.canon(value) == value, "canonical values are fixed points"
    assert shape.load(value) == SAMPLE


def test_equal_values_in_different_shapes_have_equal_bytes():
    shape = shape_of(All)
    canonical_value = shape.canon(SAMPLE)
    other = dict(reversed(canonical_value.items()))
    del other["maybe"]
    other |= {
        "money": "12.500",
        "id": "6F9619FF-8B86-D011-B42D-00C04FC964FF",
        "tags": ["z", "m", "a", "a"],
        "by_number": {-1: "z", 9: "y", 10: "x"},
        "colour": {"BLUE": None},
        "word": "b",
        "either": {"Twig": {"length": 3}},
        "at": datetime(2026, 11, 15, 9, 0, 0, 123456, tzinfo=timezone(timedelta(hours=1))),
    }
    assert encode(shape.canon(other)) == encode(canonical_value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", 1),
        ("flag", 1),
        ("whole", True),
        ("whole", 1.0),
        ("whole", 2**63),
        ("natural", -1),
        ("real", float("nan")),
        ("real", "1"),
        ("money", 1.5),
        ("money", "1" * 35),
        ("money", Decimal("NaN")),
        ("raw", "text"),
        ("at", datetime(2026, 1, 1)),
        ("at", "2026-01-01"),
        ("id", "{6f9619ff-8b86-d011-b42d-00c04fc964ff}"),
        ("unit", 0),
        ("items", "ab"),
        ("items", [1, "x"]),
        ("by_name", {1: 1}),
        ("by_number", [[1, "a"], [1, "b"]]),
        ("colour", "GREEN"),
        ("colour", 1),
        ("word", "c"),
        ("either", {"$tag": "Leaf", "$value": {"length": 1}}),
        ("either", {"$tag": "Leaf", "$value": {"name": "x"}, "more": 1}),
        ("nested", {"name": "x", "unknown": 1}),
        ("nested", {}),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(field, value):
    raw = shape_of(All).canon(SAMPLE) | {field: value}
    with pytest.raises(InputInvalid) as caught:
        canonical(shape_of(All), raw, what="t/All@1")
    assert caught.value.details["path"].startswith(f"$.{field}")


def test_defaults_are_not_applied_to_raw_values():
    @rx.schema("t/D@1")
    @dataclass
    class D:
        a: int = 1
        b: str | None = "x"

    assert shape_of(D).canon({"a": 2}) == {"a": 2, "b": None}
    with pytest.raises(InputInvalid, match="missing"):
        canonical(shape_of(D), {}, what="D")


def test_msgspec_and_pydantic_classes_give_the_same_shape():
    class S(msgspec.Struct, frozen=True):
        name: str
        count: rx.Nat
        tags: set[str]

    class M(pydantic.BaseModel):
        name: str
        count: rx.Nat
        tags: set[str]

    @dataclass(frozen=True)
    class C:
        name: str
        count: rx.Nat
        tags: set[str]

    made = [rx.schema(f"t/{cls.__name__}@1")(cls) for cls in (S, M, C)]
    bodies = [shape_of(cls).body() for cls in made]
    assert bodies[0] == bodies[1] == bodies[2]
    values = [shape_of(cls).canon(cls(name="a", count=1, tags={"y", "x"})) for cls in made]
    assert values[0] == values[1] == values[2] == {"name": "a", "count": 1, "tags": ["x", "y"]}
    assert [shape_of(cls).load(values[0]).tags for cls in made] == [{"x", "y"}] * 3


class Plain:
    pass


@pytest.mark.parametrize(
    ("annotation", "path"),
    [
        (Any, "Bad.field"),
        (list[Any], "Bad.field[]"),
        (dict[str, list[Any]], "Bad.field[][]"),
        (dict[float, int], "Bad.field.<key>"),
        (dict[tuple[int, ...], int], "Bad.field.<key>"),
        (tuple[int, str], "Bad.field"),
        (list, "Bad.field"),
        (Literal[1, 2], "Bad.field"),
        (int | str, "Bad.field"),
        (Leaf | int, "Bad.field"),
        (Plain, "Bad.field"),
        (object, "Bad.field"),
        (complex, "Bad.field"),
        ("Bad | None", "Bad.field"),
        ("list[Bad]", "Bad.field[]"),
        ("Unknown", "Bad"),
    ],
)
def test_types_without_a_canonical_form_are_refused_at_decoration(annotation, path):
    class Bad:
        pass

    Bad.__annotations__ = {"field": annotation}
    with pytest.raises(DefinitionError) as caught:
        rx.schema("t/Bad@1")(dataclass(Bad))
    assert caught.value.details["path"] == path
    assert caught.value.code == "SCHEMA_TYPE"


def test_recursion_through_a_plain_class_is_refused():
    @dataclass
    class Inner:
        outer: Outer | None

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(DefinitionError, match="contains itself"):
        rx.schema("t/Outer@1")(Outer)


def test_a_field_that_the_constructor_does_not_take_is_refused():
    with pytest.raises(DefinitionError, match="constructor"):

        @rx.schema("t/Hidden@1")
        @dataclass
        class Hidden:
            a: int = field(init=False, default=1)


@pytest.mark.parametrize(
    "name", ["Order", "com.acme/order", "com.acme/order@0", "Com/x@1", "sys/Mine@1", "a/b@01"]
)
def test_names_are_checked(name):
    with pytest.raises(DefinitionError):
        rx.schema(name)(Leaf)


def test_a_subclass_is_not_its_schema():
    class More(Leaf):
        pass

    assert shape_of(Leaf) is not None
    assert shape_of(More) is None


def test_annotated_extras_are_seen_through():
    assert derive(Annotated[int, msgspec.Meta(gt=0)], "x").describe() == {"int": {}}
    assert derive(rx.Nat, "x").describe() == {"nat": {}}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20))
def test_equal_decimals_have_equal_text(number):
    shape = derive(Decimal, "x")
    text = shape.canon(number)
    assert shape.load(text) == number
    assert shape.canon(number + Decimal("0.0000000")) == text


@given(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.sets(st.text(max_size=4), max_size=4), max_size=6)
)
def test_maps_and_sets_do_not_depend_on_order(value):
    shape = derive(dict[int, set[str]], "x")
    shuffled = {k: sorted(v, reverse=True) for k, v in reversed(value.items())}
    assert encode(shape.canon(value)) == encode(shape.canon(shuffled))
    assert shape.load(shape.canon(value)) == value


@given(st.integers(-(2**62), 2**62))
def test_instants_round_trip_exactly(ns):
    shape = derive(datetime, "x")
    try:
        moment = shape.load(ns)
    except OverflowError:
        return
    assert shape.canon(moment) == ns // 1000 * 1000
