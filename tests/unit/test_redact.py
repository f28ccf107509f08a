from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.secrets.redact import Redactor

SECRET = 's3cr3t/päss+"word\n&x'


def redactor(value=SECRET, name="db", **kw) -> Redactor:
    found = Redactor()
    found.add(name, value, **kw)
    return found


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        quote(SECRET, safe=""),
        quote(SECRET),
        quote_plus(SECRET),
        quote(SECRET, safe="").lower(),
        SECRET.encode().decode("latin-1"),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
    ],
)
def test_every_spelling_is_replaced_by_the_name(form):
    assert redactor().text(f"before {form} after") == "before [redacted:db] after"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("after", ["", "z", "zz"])
def test_base64_is_found_in_every_alignment_and_leaves_no_bit_of_the_secret(encode, before, after):
    def clean(secret: str) -> str:
        return redactor(secret).text(encode(f"{before}{secret}{after}".encode()).decode())

    assert "[redacted:db]" in clean("hunter2-hunter2")
    assert clean("hunter2-hunter2") == clean("correct~horse>?"), "what is left is the same for every secret"


@given(
    secret=st.text(min_size=8, max_size=40).filter(lambda t: len(t.strip()) >= 8),
    before=st.binary(max_size=5),
    after=st.binary(max_size=5),
)
def test_any_secret_is_found_in_base64(secret, before, after):
    data = secret.encode("utf-8", "surrogatepass")
    assert "[redacted:db]" in redactor(secret).text(base64.b64encode(before + data + after).decode())


@given(st.text(max_size=30), st.text(min_size=8, max_size=20).filter(lambda t: len(t.strip()) >= 8))
def test_the_plain_value_is_never_left(around, secret):
    clean = redactor(secret, "n").text(around + secret + around)
    assert secret not in clean.replace("[redacted:n]", "")


def test_short_values_only_if_marked():
    assert redactor("abc1234").text("abc1234") == "abc1234"
    assert redactor("abc12345").text("abc12345") == "[redacted:db]"
    assert redactor("abc", marked=True).text("xabcx") == "x[redacted:db]x"
    assert redactor("", marked=True).text("anything") == "anything"


def test_fields_are_named_and_places_stay_readable():
    fields = {"password": "hunter2-hunter2", "db_host": "db.example.org", "username": "administrator"}
    clean = redactor(fields, "pg").text("administrator:hunter2-hunter2@db.example.org")
    assert clean == "administrator:[redacted:pg.password]@db.example.org"
    marked = redactor(fields, "pg", marked=True).text("db.example.org")
    assert marked == "[redacted:pg.db_host]"


def test_text_and_bytes_change_in_a_value_keys_included():
    value = {"a": [1, None, "x hunter2-hunter2"], "hunter2-hunter2": True, "raw": b"hunter2-hunter2"}
    assert redactor("hunter2-hunter2").value(value) == {
        "a": [1, None, "x [redacted:db]"],
        "[redacted:db]": True,
        "raw": b"[redacted:db]",
    }
    raw = b"\xff\x00" + SECRET.encode() + b"\x80"
    assert redactor().value(raw) == b"\xff\x00[redacted:db]\x80"


def test_a_clean_value_is_given_back_as_it_is():
    value = {"a": ["text", {"b": 1}]}
    assert redactor().value(value) is value
    assert Redactor().value(value) is value


def test_the_longer_of_two_secrets_wins():
    found = redactor("hunter2-hunter2", "short")
    found.add("long", "hunter2-hunter2-and-more")
    assert found.text("hunter2-hunter2-and-more, hunter2-hunter2") == "[redacted:long], [redacted:short]"


def test_a_value_of_several_lines_is_known_line_by_line():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhk\n-----END KEY-----\n"
    assert redactor(key, "key").text("log: MIIEvQIBADANBgkqhk") == "log: [redacted:key]"


def test_a_secret_learnt_later_is_known_at_once():
    found = redactor("hunter2-hunter2")
    assert found.text("correct-horse") == "correct-horse"
    found.add("other", "correct-horse")
    assert found.text("correct-horse") == "[redacted:other]"
