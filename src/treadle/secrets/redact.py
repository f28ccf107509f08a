"""No secret leaves the worker: every resolved value is replaced by `[redacted:NAME]`.

One matcher finds all known values at once, each also in the forms it takes on the way
through other systems: JSON-escaped, URL-encoded, hexadecimal, and base64 in its three alignments (a
base64 text shows a value differently depending on how many bytes stand before it, modulo three).

A value shorter than eight characters is only redacted if it was marked as secret: replacing every
`abc` would hide more than it protects. Text, keys that are text, and bytes are cleaned alike.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec

from treadle.kernel.values import Value

LENGTH_MIN: Final = 8
_STANDARD: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE: Final = _STANDARD[:-2] + "-_"
# A text: compiled when the first is met, not at every start of a process.
_IN_URL: Final = r"(?<=://)[^/?#\s@]*@"
# Fields of a credential that say where to go or as whom, not how to get in. A database host that is
# redacted takes every address in every result with it.
_PLACES: Final = frozenset(
    [
        *("host", "hostname", "port", "database", "dbname", "schema", "sslmode", "region", "scheme"),
        *("db_host", "db_port", "db_name", "db_user", "user", "username", "type", "kind", "token_type"),
        *("expires_at", "scope", "header", "header_name"),
    ]
)


def without_credentials(text: str) -> str:
    """The text with `user:password@` taken out of every address in it, known or not."""
    return re.sub(_IN_URL, "", text) if "@" in text else text


class Redactor:
    """Learns values, then cleans text and values of them. Cheap when nothing is known."""

    def __init__(self) -> None:
        # Whether there is anything to look for. Who has much to clean asks before it does.
        self.knows = False
        self._known: dict[str, str] = {}
        self._matcher: _Matcher | None = None
        self._stale = False
        self._lock = threading.Lock()

    def add(self, name: str, value: str | Mapping[str, str], *, marked: bool = False) -> None:
        """Learns a secret. Its fields are named `NAME.field`; a text of several lines is also known
        line by line, because that is how logs show it."""
        if isinstance(value, Mapping):
            for field, part in value.items():
                if marked or field.lower() not in _PLACES:
                    self.add(f"{name}.{field}", part, marked=marked)
            return
        for part in _parts(value):
            if part and (marked or len(part) >= LENGTH_MIN) and part not in self._known:
                with self._lock:
                    self._known[part] = name
                    self._stale = self.knows = True

    def forget(self, value: str) -> None:
        """It is no secret any more."""
        with self._lock:
            for part in _parts(value):
                self._known.pop(part, None)
            self._stale = True

    def text(self, text: str) -> str:
        """The text without any known secret."""
        matcher = self._current()
        return text if matcher is None else matcher.text(text)

    def value(self, value: Value) -> Value:
        """The value with every text in it cleaned; the same object if nothing was found."""
        if not self.knows:
            return value
        matcher = self._current()
        return value if matcher is None else matcher.value(value)

    def _current(self) -> _Matcher | None:
        # A thread that sees the old state has been given no newer secret.
        if self._stale:
            with self._lock:
                self._matcher = _Matcher(self._known) if self._known else None
                self._stale = False
        return self._matcher


def _parts(value: str) -> list[str]:
    return [value, value.strip(), *(value.splitlines() if "\n" in value else ())]


class _Matcher:
    """All forms of all known values. Immutable but for a cache, so any thread may use it.

    One pattern with every form in it scans 0.9 MB/s with 20 secrets here; asking for each form with
    `in`, and compiling a pattern of those that are there, scans 85 MB/s and finds the same.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        # Longest first: a secret that contains another one is replaced as a whole.
        ordered = sorted(known.items(), key=lambda entry: (-len(entry[0]), entry[0]))
        self._forms = [(form, f"[redacted:{name}]") for value, name in ordered for form in _forms(value)]
        self._literals = [form.literal for form, _ in self._forms]
        self._shortest = min(map(len, self._literals))
        self._patterns: dict[tuple[int, ...], re.Pattern[str]] = {}

    def text(self, text: str) -> str:
        if len(text) < self._shortest:
            return text
        there = tuple([index for index, literal in enumerate(self._literals) if literal in text])
        if not there:
            return text
        if (pattern := self._patterns.get(there)) is None:
            groups = (f"(?P<f{index}>{self._forms[index][0].pattern})" for index in there)
            pattern = self._patterns[there] = re.compile("|".join(groups))
        return pattern.sub(lambda match: self._forms[int((match.lastgroup or "")[1:])][1], text)

    def raw(self, data: bytes) -> bytes:
        """As text of one character a byte, in which each form stands as it does in UTF-8."""
        text = data.decode("latin-1")
        clean = self.text(text)
        return data if clean is text else clean.encode("latin-1", "replace")

    def value(self, value: Value) -> Value:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.raw(value)
        if isinstance(value, list):
            items = [self.value(item) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        if isinstance(value, dict):
            pairs = [(key, item, self.text(key), self.value(item)) for key, item in value.items()]
            if all(key is new_key and item is new for key, item, new_key, new in pairs):
                return value
            return {new_key: new for _, _, new_key, new in pairs}
        return value


class _Form(msgspec.Struct, frozen=True):
    """One way a value is written: a text that is in it for certain, and the pattern of all of it."""

    literal: str
    pattern: str


def _forms(value: str) -> list[_Form]:
    """Every way a value may be written, the plain one first."""
    data = value.encode("utf-8", "surrogatepass")
    texts: dict[str, None] = {}
    # The second is how UTF-8 looks to a server that reads its headers as Latin-1.
    for text in (value, data.decode("latin-1")):
        texts.setdefault(text)
        texts.setdefault(json.dumps(text)[1:-1])
        texts.setdefault(json.dumps(text, ensure_ascii=False)[1:-1])
        texts.setdefault(quote(text, errors="surrogatepass"))
        for escape in (quote, quote_plus):
            for form in _url_forms(escape(text, safe="", errors="surrogatepass")):
                texts.setdefault(form)
    texts.setdefault(data.hex())
    texts.setdefault(data.hex().upper())
    encoded = [
        _base64_form(data, shift, alphabet) for shift in range(3) for alphabet in (_STANDARD, _URL_SAFE)
    ]
    found = [_Form(text, re.escape(text)) for text in texts]
    return found + [form for form in dict.fromkeys(encoded) if form is not None]


def _url_forms(quoted: str) -> tuple[str, str]:
    """Both ways to write the digits of %2F."""
    return quoted, re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)


def _base64_form(data: bytes, shift: int, alphabet: str) -> _Form | None:
    """The base64 of `data` with `shift` unknown bytes before it and any after it. Where a character
    also holds bits of a neighbour, all characters that can stand there are allowed."""
    text = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
    bits = (shift + len(data)) * 8
    first, last = -(-shift * 8 // 6), bits // 6
    if last - first < 4:
        return None
    codes = [_STANDARD.index(char) for char in text]
    literal = "".join(alphabet[code] for code in codes[first:last])
    pattern = re.escape(literal)
    if known := (6 - shift * 8 % 6) % 6:  # low bits of the character before, high bits are unknown
        low = codes[first - 1] & (1 << known) - 1
        pattern = _choice(alphabet[(high << known) | low] for high in range(1 << 6 - known)) + pattern
    if known := bits % 6:  # high bits of the character after, low bits are unknown
        high = codes[last] >> 6 - known
        pattern += _choice(alphabet[(high << 6 - known) | low] for low in range(1 << 6 - known))
    return _Form(literal, pattern)


def _choice(characters: Iterable[str]) -> str:
    return "[" + re.escape("".join(characters)) + "]"
