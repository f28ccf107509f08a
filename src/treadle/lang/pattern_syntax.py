"""Regular expressions as JavaScript reads them, as a tree.

The grammar is that of ECMAScript without flags, with what browsers accept beyond it (Annex B): `a{,3}`
and `]` are text, `\\Z` is the letter, `[\\d-x]` holds a hyphen, `\\1` before its group is empty. Of newer
editions: named groups, look-behind, and flags of a group as in `(?i:…)`.

Patterns of JSON Schemas are read with `schema=True`. There `\\p{L}` and `\\u{1F600}` mean what they mean
with JavaScript's flag `u`, which the standard recommends; and, because many schemas are written by Python
programs, `(?i)` at the start, `(?P<name>…)`, `(?P=name)`, `\\A` and `\\Z` mean what they mean in Python.

One character is one code point. JavaScript without flags would count two for those above U+FFFF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

Range = tuple[int, int]
Ranges = tuple[Range, ...]

LAST: Final = 0x10FFFF
_DEPTH_MAX: Final = 50
SOURCE_CHARS_MAX: Final = 20_000
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_DIGITS: Final = frozenset("0123456789")
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

DIGIT: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Final[Ranges] = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
LINE_END: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# The sign of Kelvin and the long s are no word characters, but are k and s when case does not matter.
_FOLDS_TO_WORD: Final[Ranges] = ((0x017F, 0x017F), (0x212A, 0x212A))
_CONTROL: Final = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}


class PatternError(ValueError):
    """What is no regular expression, and why."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character: in one of the ranges or properties, or in none of them."""

    ranges: Ranges
    negated: bool = False
    fold: bool = False
    # Unicode categories or scripts, each with whether it is the opposite that is meant.
    properties: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class ZeroWidth:
    """A place, not a character. `kind`: `^`, `$`, `b` or `B`."""

    kind: str
    multiline: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    group: int
    fold: bool


@dataclass(frozen=True, slots=True)
class Chain:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    body: Node
    number: int


@dataclass(frozen=True, slots=True)
class Look:
    body: Node
    behind: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Repetition:
    body: Node
    least: int
    most: int | None
    greedy: bool
    # The capturing groups inside, which each round forgets: from the first up to before the second.
    groups: tuple[int, int]


Node = Chars | ZeroWidth | Reference | Chain | Alternatives | Group | Look | Repetition


@dataclass(frozen=True, slots=True)
class PatternTree:
    root: Node
    groups: int
    has_references: bool


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False


def complement(ranges: Sequence[Range]) -> Ranges:
    """All characters outside of some ranges."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= LAST:
        found.append((start, LAST))
    return tuple(found)


def parse(source: str, *, schema: bool = False) -> PatternTree:
    """Reads a pattern, or raises PatternError."""
    if len(source) > SOURCE_CHARS_MAX:
        raise PatternError(f"a pattern has at most {SOURCE_CHARS_MAX} characters, not {len(source)}")
    return _Parser(source, schema).parse()


def _groups_of(text: str, python: bool) -> list[str | None]:
    """The capturing groups in order, with their names: what `\\2` means depends on what comes later."""
    groups: list[str | None] = []
    index, in_class = 0, False
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "[":
            in_class = True
        elif char == "]":
            in_class = False
        elif char == "(" and not in_class:
            start = 3 if text.startswith("(?<", index) else 4
            if text.startswith(("(?<=", "(?<!"), index):
                index += 4
                continue
            if start == 3 or (python and text.startswith("(?P<", index)):
                groups.append(text[index + start : text.find(">", index)])
            elif not text.startswith("(?", index):
                groups.append(None)
        index += 1
    return groups


class _Parser:
    def __init__(self, source: str, schema: bool) -> None:
        self.text = source
        self.schema = schema
        self.at = 0
        self.depth = 0
        self.groups = _groups_of(source, schema)
        self.names = [name for name in self.groups if name is not None]
        self.opened = 0
        self.flags = _Flags()
        self.has_references = False

    def parse(self) -> PatternTree:
        if len(set(self.names)) != len(self.names):
            raise PatternError("two groups have one name")
        if self.schema and self.text.startswith("(?") and (end := self.text.find(")")) > 2:
            letters = self.text[2:end]
            if set(letters) <= set("aimsu"):
                self.flags = self.flagged(self.flags, letters.replace("a", "").replace("u", ""), True)
                self.at = end + 1
        root = self.choice()
        if self.at < len(self.text):
            raise self.error("there is a ) without its (")
        return PatternTree(root, len(self.groups), self.has_references)

    def error(self, message: str) -> PatternError:
        return PatternError(f"{message}, at position {self.at}")

    def takes(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def choice(self) -> Node:
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise self.error(f"groups are nested more than {_DEPTH_MAX} deep")
        options = [self.sequence()]
        while self.takes("|"):
            options.append(self.sequence())
        self.depth -= 1
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            first = self.opened
            item, repeatable = self.term()
            items.append(self.repeated(item, first, repeatable))
        return items[0] if len(items) == 1 else Chain(tuple(items))

    def term(self) -> tuple[Node, bool]:
        char = self.peek()
        if char in "*+?" or self.braces() is not None:
            raise self.error("nothing to repeat")
        if char == "(":
            return self.group()
        self.at += 1
        match char:
            case "^" | "$":
                return ZeroWidth(char, self.flags.multiline), False
            case ".":
                return Chars(() if self.flags.dot_all else LINE_END, negated=True), True
            case "[":
                return self.char_class(), True
            case "\\":
                return self.escape()
        return self.one(ord(char)), True

    def one(self, code: int) -> Chars:
        return Chars(((code, code),), fold=self.flags.ignore_case)

    def repeated(self, item: Node, first: int, repeatable: bool) -> Node:
        bounds: tuple[int, int | None] | None
        if self.takes("*"):
            bounds = 0, None
        elif self.takes("+"):
            bounds = 1, None
        elif self.takes("?"):
            bounds = 0, 1
        elif (found := self.braces()) is not None:
            least, most, self.at = found
            bounds = least, most
        else:
            return item
        if not repeatable:
            raise self.error("nothing to repeat")
        least, most = bounds
        if most is not None and least > most:
            raise self.error("numbers out of order in {}")
        greedy = not self.takes("?")
        if self.peek() in ("*", "+", "?") or self.braces() is not None:
            raise self.error("nothing to repeat")
        return Repetition(item, least, most, greedy, (first + 1, self.opened + 1))

    def braces(self) -> tuple[int, int | None, int] | None:
        """`{2}`, `{2,}` or `{2,5}` at this place, and where it ends. All else in braces is text."""
        if self.peek() != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end if end > 0 else self.at + 1].partition(",")
        if not low or not set(low + high) <= _DIGITS or len(low) + len(high) > 100:
            return None
        least = int(low)
        return least, (int(high) if high else None) if comma else least, end + 1

    def group(self) -> tuple[Node, bool]:
        self.at += 1
        before = self.flags
        if self.takes("?:"):
            node, repeatable = self.inside(), True
        elif self.takes("?=") or self.takes("?!"):
            node, repeatable = self.look(behind=False), True
        elif self.takes("?<=") or self.takes("?<!"):
            node, repeatable = self.look(behind=True), False
        elif self.takes("?<") or (self.schema and self.takes("?P<")):
            self.name(">")
            node, repeatable = self.capturing(), True
        elif self.schema and self.takes("?P="):
            return self.named_reference(")"), True
        elif self.takes("?"):
            self.modifiers()
            node, repeatable = self.inside(), True
        else:
            node, repeatable = self.capturing(), True
        self.flags = before
        return node, repeatable

    def inside(self) -> Node:
        body = self.choice()
        if not self.takes(")"):
            raise self.error("a ( has no )")
        return body

    def capturing(self) -> Node:
        self.opened += 1
        number = self.opened
        return Group(self.inside(), number)

    def look(self, behind: bool) -> Node:
        negated = self.text[self.at - 1] == "!"
        return Look(self.inside(), behind, negated)

    def modifiers(self) -> None:
        end = self.text.find(":", self.at)
        on, _, off = self.text[self.at : end if end > 0 else self.at].partition("-")
        letters = on + off
        if not letters or not set(letters) <= set("ims") or len(set(letters)) != len(letters):
            raise self.error("after (? comes one of : = ! <= <! <name> or flags as in (?i:…)")
        self.flags = self.flagged(self.flagged(self.flags, on, True), off, False)
        self.at = end + 1

    @staticmethod
    def flagged(flags: _Flags, letters: str, on: bool) -> _Flags:
        names = {"i": "ignore_case", "m": "multiline", "s": "dot_all"}
        return replace(flags, **{names[letter]: on for letter in letters})

    def name(self, end: str) -> str:
        stop = self.text.find(end, self.at)
        name = self.text[self.at : max(stop, self.at)]
        if not name.replace("$", "_").isidentifier():
            raise self.error("the name of a group is made of letters, digits and _")
        self.at = stop + 1
        return name

    def named_reference(self, end: str) -> Node:
        name = self.name(end)
        if name not in self.names:
            raise self.error(f"there is no group named {name}")
        return self.reference(self.groups.index(name) + 1)

    def reference(self, number: int) -> Node:
        self.has_references = True
        return Reference(number, self.flags.ignore_case)

    def escape(self) -> tuple[Node, bool]:
        char = self.peek()
        if char in ("b", "B"):
            self.at += 1
            return ZeroWidth(char), False
        if self.schema and char in ("A", "Z", "z"):
            self.at += 1
            return ZeroWidth("^" if char == "A" else "$"), False
        if char == "k" and self.names:
            self.at += 1
            if not self.takes("<"):
                raise self.error("after \\k comes the name of a group, as in \\k<name>")
            return self.named_reference(">"), True
        if char in _DIGITS and char != "0":
            end = self.at
            while self.text[end : end + 1] in _DIGITS and end - self.at < 6:
                end += 1
            if int(self.text[self.at : end]) <= len(self.groups):
                number, self.at = int(self.text[self.at : end]), end
                return self.reference(number), True
        found = self.class_escape()
        if isinstance(found, int):
            return self.one(found), True
        return found, True

    def char_class(self) -> Chars:
        """After `[`: everything up to its `]`."""
        negated = self.takes("^")
        ranges: list[Range] = []
        properties: list[tuple[str, bool]] = []

        def add(item: Chars | int) -> None:
            if isinstance(item, int):
                ranges.append((item, item))
            else:
                ranges.extend(item.ranges)
                properties.extend(item.properties)

        while not self.takes("]"):
            low = self.class_item()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.class_item()
                if isinstance(low, int) and isinstance(high, int):
                    if low > high:
                        raise self.error("a range of characters is out of order")
                    ranges.append((low, high))
                    continue
                add(ord("-"))
                add(high)
            add(low)
        return Chars(tuple(ranges), negated, self.flags.ignore_case, tuple(properties))

    def class_item(self) -> Chars | int:
        char = self.peek()
        if not char:
            raise self.error("a [ has no ]")
        self.at += 1
        if char != "\\":
            return ord(char)
        if self.takes("b"):
            return 0x08
        if self.text[self.at : self.at + 1] == "c" and self.text[self.at + 1 : self.at + 2] in (
            *_DIGITS,
            "_",
        ):
            self.at += 2
            return ord(self.text[self.at - 1]) % 32
        return self.class_escape()

    def class_escape(self) -> Chars | int:
        """After a backslash: what means the same inside of a class and outside."""
        char = self.peek()
        if not char:
            raise self.error("a backslash ends the pattern")
        self.at += 1
        if (found := self.set_escape(char)) is not None:
            return found
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "c":
            if self.peek() in _LETTERS:
                self.at += 1
                return ord(self.text[self.at - 1]) % 32
            self.at -= 1  # then the backslash is text, and the c too
            return ord("\\")
        if char in "01234567":
            return self.octal(char)
        if char in "xu":
            return self.hexadecimal(char)
        return ord(char)

    def set_escape(self, char: str) -> Chars | None:
        sets = {"d": DIGIT, "w": WORD, "s": SPACE}
        if char in sets:
            return Chars(sets[char])
        if char == "W" and self.flags.ignore_case:
            return Chars(complement((*WORD, *_FOLDS_TO_WORD)))
        if char.lower() in sets:
            return Chars(complement(sets[char.lower()]))
        if self.schema and char in "pP" and self.peek() == "{":
            self.at += 1
            end = self.text.find("}", self.at)
            name = self.text[self.at : max(end, self.at)].rpartition("=")[2]
            if not name or not set(name) <= _LETTERS | {"_"}:
                raise self.error("\\p takes a category or script in braces, as in \\p{L}")
            self.at = end + 1
            return Chars((), properties=((name, char == "P"),))
        return None

    def octal(self, first: str) -> int:
        digits = first
        while len(digits) < 3 and self.peek() in tuple("01234567") and int(digits + self.peek(), 8) <= 0o377:
            digits += self.peek()
            self.at += 1
        return int(digits, 8)

    def hexadecimal(self, char: str) -> int:
        if self.schema and char == "u" and self.peek() == "{":
            digits = self.text[self.at + 1 : max(self.text.find("}", self.at), 0)]
            if digits and set(digits) <= _HEX and len(digits) <= 6 and int(digits, 16) <= LAST:
                self.at += len(digits) + 2
                return int(digits, 16)
        code = self.hex_digits(2 if char == "x" else 4)
        if code is None:
            return ord(char)
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            back = self.at
            self.at += 2
            low = self.hex_digits(4)
            if low is not None and 0xDC00 <= low < 0xE000:
                return 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00
            self.at = back
        return code

    def hex_digits(self, count: int) -> int | None:
        digits = self.text[self.at : self.at + count]
        if len(digits) < count or not set(digits) <= _HEX:
            return None
        self.at += count
        return int(digits, 16)
