"""Canonical values: one encoding for each value, one value for each encoding, a path to each offender."""

from __future__ import annotations

import hashlib
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.kernel import decode, digest, encode
from treadle.kernel import values as values_module
from treadle.kernel.errors import NotCanonical, ValueRefused
from treadle.kernel.values import copied, decode_trusted, is_slight, to_value

CID = bytes.fromhex("01551220") + hashlib.sha256(b"a block").digest()

# The same examples on every machine, however slow it is.
examples = settings(deadline=None, derandomize=True, max_examples=200)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.binary()
    | st.sampled_from([CID, b"\x00" + CID, b"\xd8\x2a", b";\xff"])
)
floats = st.floats(allow_nan=False, allow_infinity=False)


def values(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    )


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down (1 is not True is not 1.0)."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


# --- one encoding ------------------------------------------------------------------------------------


@examples
@given(values(scalars))
def test_the_bytes_are_those_of_another_canonical_encoder(value: Any) -> None:
    assert encode(value) == cbor2.dumps(value, canonical=True)


@examples
@given(values(scalars | floats))
def test_what_is_encoded_comes_back(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert encode(decode(data)) == data


@examples
@given(values(scalars | floats))
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    wrapped = {"b": value, "aa": 1, "a": [value]}
    turned = dict(reversed(list(wrapped.items())))
    assert encode(wrapped) == encode(turned)


@examples
@given(floats)
def test_floats_are_always_64_bits(value: float) -> None:
    assert encode(value) == b"\xfb" + struct.pack(">d", value + 0.0)


def test_minus_zero_is_zero() -> None:
    assert encode(-0.0) == encode(0.0) == bytes.fromhex("fb0000000000000000")
    assert encode([CID, -0.0]) == encode([CID, 0.0]), "on the slow path too"


def test_one_is_not_one_point_zero_is_not_true() -> None:
    assert len({encode(1), encode(1.0), encode(True)}) == 3


def test_bytes_that_look_like_a_link_stay_bytes() -> None:
    for data in (CID, b"\x00" + CID):
        assert encode(data)[0] == 0x58, "a byte string, not tag 42"
        assert decode(encode({"a": [data]})) == {"a": [data]}


@pytest.mark.parametrize("size", [0, 4, 23, 32, 64, 255, 256, 70_000])
def test_a_link_of_any_length_stays_bytes(size: int) -> None:
    head = bytes.fromhex("015500") if size < 128 else bytes.fromhex("0155") + b"\x00"
    length = bytearray()
    rest = size
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    link = head + bytes([*length, rest]) + bytes(size)
    assert encode([link]) == cbor2.dumps([link], canonical=True)
    assert decode(encode({"a": link})) == {"a": link}


@pytest.mark.parametrize("item", [{"n": 0xD82A}, {"n": 0x3B80}, {"n": "a;é"}])
def test_a_payload_whose_bytes_look_like_a_link_takes_the_fast_way(item: dict[str, Any]) -> None:
    """Every large payload holds such bytes somewhere: a number, an accent after a semicolon. The exact way
    is 30 times slower, and all that goes through the engine is encoded several times."""

    def seconds(value: Any) -> float:
        taken = []
        for _ in range(3):
            began = time.process_time()
            decode_trusted(encode(value))
            taken.append(time.process_time() - began)
        return min(taken)

    plain: Any = [{"n": "abc"} for _ in range(20_000)]
    assert seconds([*plain, item]) < 6 * seconds(plain)


def test_the_digest_is_sha256_over_the_bytes() -> None:
    value = {"a": 1, "b": [None, b"x"]}
    assert digest(value) == "sha256:" + hashlib.sha256(encode(value)).hexdigest()


# --- refusals, with the path ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, float("nan")]}, "$.a[1]"),
        ({"a": {"b": float("inf")}}, "$.a.b"),
        ([float("-inf")], "$[0]"),
        ({"n": 2**64}, "$.n"),
        ({"n": -(2**63) - 1}, "$.n"),
        ([10**40], "$[0]"),
        ({"s": {1, 2}}, "$.s"),
        ({"t": (1, 2)}, "$.t"),
        ({"o": [object()]}, "$.o[0]"),
        ({"a": {1: 2}}, "$.a"),
        ({"a": {None: 2}}, "$.a"),
        ({"a": {b"k": 2}}, "$.a"),
        ({"a": {True: 2}}, "$.a"),
        ({"text": "\ud800"}, "$.text"),
        ({"a": [bytearray(b"x")]}, "$.a[0]"),
        # The same below something that takes the slow path.
        ([CID, {"n": -(2**63) - 1}], "$[1].n"),
    ],
)
def test_a_value_outside_the_model_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode(value)
    assert caught.value.details["path"] == path
    assert path in caught.value.message


def test_the_ends_of_the_integer_range() -> None:
    for number in (-(2**63), -(2**63) + 1, 2**64 - 1, 2**63):
        assert decode(encode({"n": number})) == {"n": number}
        assert decode(encode([CID, number])) == [CID, number]


def test_what_is_nested_too_deep_is_refused_and_does_not_crash() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueRefused):
        encode(value)
    with pytest.raises(NotCanonical):
        decode(b"\x81" * 100_000 + b"\x80")
    with pytest.raises(NotCanonical):
        decode(b"\x81" * 100_000 + b"\xd8\x2a")
    while value:
        value = value.pop()


def test_what_is_slight_holds_nothing_and_stands_for_nothing() -> None:
    for value in (None, True, "yes", {}, {"approved": True, "note": "fine", "sum": 12, "by": b"x"}):
        assert is_slight(value), value
    payload = {"store": "blob", "key": "sha256:1", "checksum": "sha256:1"}
    for other in (
        "x" * 5_000,
        {"a": []},
        {"a": 1.5},
        {"a": "x" * 5_000},
        {"x" * 5_000: 1},
        payload,
        [],
        1.5,
        {1: 1},
    ):
        assert not is_slight(other), other
    assert not is_slight({str(n): n for n in range(100)})


@pytest.mark.parametrize("limit", [1_000, 20_000])
def test_depth_is_refused_whatever_the_recursion_limit(limit: int) -> None:
    """The codec leans on Python's recursion limit; a program may raise it (mypy does), and the stack
    would overflow."""
    before = sys.getrecursionlimit()
    value: Any = []
    for _ in range(100_000):
        value = [value]
    try:
        sys.setrecursionlimit(max(limit, before))
        for refused, call in ((ValueRefused, encode), (ValueRefused, to_value)):
            with pytest.raises(refused):
                call(value)
        for data in (b"\x81" * 100_000 + b"\x80", b"\xa1\x61a" * 100_000 + b"\x80"):
            with pytest.raises(NotCanonical):
                decode(data)
    finally:
        sys.setrecursionlimit(before)
        while value:
            value = value.pop()


# --- strict decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "nothing"),
        ("0000", "trailing bytes"),
        ("1800", "an integer that is not shortest"),
        ("1900ff", "an integer that is not shortest"),
        ("1a0000ffff", "an integer that is not shortest"),
        ("1b00000000ffffffff", "an integer that is not shortest"),
        ("3800", "a negative integer that is not shortest"),
        ("580161", "a length that is not shortest"),
        ("78016161", "a length that is not shortest"),
        ("9800", "a length that is not shortest"),
        ("b800", "a length that is not shortest"),
        ("5f4161ff", "indefinite bytes"),
        ("7f6161ff", "indefinite text"),
        ("9f01ff", "an indefinite list"),
        ("bf616101ff", "an indefinite map"),
        ("a2616101616102", "a key twice"),
        ("a2616201616102", "keys out of order"),
        ("a262616101616201", "keys out of order: shorter ones come first"),
        ("a10102", "a key that is not text"),
        ("a1416102", "a key that is bytes"),
        ("f93c00", "a 16-bit float"),
        ("fa3f800000", "a 32-bit float"),
        ("fb7ff8000000000000", "not a number"),
        ("fb7ff0000000000000", "infinity"),
        ("fb8000000000000000", "minus zero"),
        ("f7", "undefined"),
        ("e0", "a simple value"),
        ("f820", "a simple value"),
        ("c100", "a tag"),
        ("d82a4100", "tag 42"),
        ("d82a58250001551220" + "00" * 32, "tag 42 with a link"),
        ("3bffffffffffffffff", "an integer below the range"),
        ("61ff", "text that is not UTF-8"),
        ("6261", "bytes that end too early"),
        ("82", "bytes that end too early"),
        ("fb00", "bytes that end too early"),
        ("1c", "a reserved length"),
        ("ff", "a break"),
    ],
)
def test_bytes_that_are_not_canonical_are_refused(data: str, why: str) -> None:
    with pytest.raises((NotCanonical, ValueRefused)):
        decode(bytes.fromhex(data))
    with pytest.raises((NotCanonical, ValueRefused)):
        # Beside bytes that look like a tag, which are read by another path.
        decode(b"\x82\x42\xd8\x2a" + bytes.fromhex(data))


@examples
@given(st.binary(max_size=40))
def test_whatever_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        value = decode(data)
    except (NotCanonical, ValueRefused):
        return
    assert encode(value) == data


def written(value: Any, width: Callable[[int], int]) -> bytes:
    """A value in CBOR, the number of each head in at least so many bytes."""

    def head(major: int, number: int) -> bytes:
        shortest = next(size for size in (0, 1, 2, 4, 8) if number < (24 if size == 0 else 256**size))
        if (size := max(shortest, width(number))) == 0:
            return bytes([major << 5 | number])
        return bytes([major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[size]]) + number.to_bytes(size, "big")

    match value:
        case None | bool():
            return encode(value)
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case list():
            return head(4, len(value)) + b"".join(written(item, width) for item in value)
    pairs = sorted((len(key.encode()), key.encode(), item) for key, item in value.items())
    return head(5, len(pairs)) + b"".join(
        written(key.decode(), width) + written(item, width) for _, key, item in pairs
    )


heads_alike = st.sampled_from(["x", "8", "max", "y;", "Z", "[", "{", ":", "\x00\x17", "9\n"])


@settings(examples, max_examples=1_000)
@given(
    st.dictionaries(heads_alike, scalars | heads_alike | st.lists(st.integers(0, 30)), max_size=4), st.data()
)
def test_a_head_that_is_longer_than_it_need_be_is_found_in_whatever_is_short(
    value: Any, data: st.DataObject
) -> None:
    """Short bytes are not encoded again; also not where they hold what looks like such a head by chance."""
    assert written(value, lambda number: 0) == encode(value)
    assert decode(encode(value)) == value
    loose = written(value, lambda number: data.draw(st.sampled_from([0, 0, 0, 0, 1, 2, 4, 8])))
    if loose != encode(value):
        with pytest.raises(NotCanonical):
            decode(loose)


def test_what_is_short_is_decoded_once_and_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"run": "01jd8x9z", "seq": 4, "status": "completed", "roles": ["clerk"], "data": {}}
    short, long = encode(said), encode([said] * 100)

    def again(value: Any) -> bytes:
        raise AssertionError("it is encoded again")

    monkeypatch.setattr(values_module, "encode", again)
    assert decode(short) == said
    with pytest.raises(AssertionError):
        decode(long)


@examples
@given(values(scalars | floats), st.data())
def test_one_changed_byte_is_another_value_or_an_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode(bytes(encoded))
    except (NotCanonical, ValueRefused):
        return
    assert not same(changed, value)


# --- conversion at the edge ----------------------------------------------------------------------------------


def test_what_has_one_obvious_form_is_converted_at_the_edge() -> None:
    class Text(str):
        __slots__ = ()

    value = to_value({"t": (1, [Text("x")]), "b": bytearray(b"y"), "m": memoryview(b"z")})
    assert same(value, {"t": [1, ["x"]], "b": b"y", "m": b"z"})


@pytest.mark.parametrize(
    ("value", "path"), [({"a": [{1}]}, "$.a[0]"), ({"a": {1: 2}}, "$.a"), ([1j], "$[0]")]
)
def test_what_has_not_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(ValueRefused) as caught:
        to_value(value)
    assert caught.value.details["path"] == path


def test_large_values_with_bytes_in_them_go_through_the_codec():
    # A snapshot: two digests, and thousands of instants in which the head of a negative integer stands by chance.
    value = {
        "digest": bytes(range(32)),
        "open": [{"at": 0x3BFF00000000 + n, "id": "a" * 32} for n in range(2_000)],
    }
    assert b"\x3b\xff" in encode(value), "the pattern that casts doubt is there"
    walks = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal walks
        walks += event == "call"

    sys.setprofile(count)
    try:
        body = encode(value)
    finally:
        sys.setprofile(None)
    assert walks < 10, "not one call for each of its parts"
    assert decode(body) == value


def test_doubt_about_an_integer_does_not_hide_one_below_64_bits_beside_bytes():
    with pytest.raises(ValueRefused):
        encode({"digest": bytes(32), "n": -(2**63) - 1})


@pytest.mark.parametrize("value", ["text", 7, True, None, b"\x00", -0.0, 1.5, [1], {"a": [b""]}])
def test_what_is_copied_at_the_edge_is_what_its_bytes_say(value: Any) -> None:
    plain, body = copied(value)
    assert body == encode(value)
    assert repr(plain) == repr(decode(body)) == repr(to_value(value))


def test_half_a_character_is_refused_at_the_edge_though_text_needs_no_copy() -> None:
    with pytest.raises(ValueRefused):
        copied("\ud800")
    with pytest.raises(ValueRefused):
        to_value(2**64)
