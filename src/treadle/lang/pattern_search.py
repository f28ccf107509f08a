"""Searches with look-around and references back, in a bounded number of steps.

No engine does these in time that grows with the text alone, so this one counts: a step is one instruction
at one place in the text. The count depends on pattern and text only, so that the answer, or that there is
none, is the same on every machine and in every replay. Where there are no references back, a place that
was tried in vain is not tried again, which keeps nearly all patterns far below the limit.

The meaning is that of ECMAScript: a group that took no part is empty text, each round of a repetition
forgets its groups and may not be empty, look-behind reads from right to left.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .pattern_syntax import (
    LINE_END,
    WORD,
    Alternatives,
    Chain,
    Chars,
    Group,
    Look,
    Node,
    PatternError,
    PatternTree,
    Range,
    Reference,
    Repetition,
    ZeroWidth,
    complement,
)

Test = Callable[[str], bool]
Slots = tuple[int, ...]
_CATEGORIES: Final = frozenset(
    (
        *("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No"),
        *("P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So"),
        *("Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cn"),
    )
)


class OutOfSteps(Exception):
    """The search was given up."""


# The instructions. Plain numbers, for they are compared at each step.
_ONE, _SPLIT, _JUMP, _ENTER, _LOOP, _NEXT, _EDGE, _OPEN, _CLOSE, _REFERENCE, _LOOK, _MATCH = range(12)


@dataclass(frozen=True, slots=True)
class Rounds:
    """A repetition: its two slots hold the rounds done and where the last one began."""

    slot: int
    least: int
    most: int | None
    greedy: bool
    may_be_empty: bool
    after: int
    forgets: tuple[int, ...]


class PatternProgram:
    """A pattern compiled for one search after the other."""

    def __init__(self, tree: PatternTree) -> None:
        self._code: list[tuple[int, Any]] = []
        self._keeps_groups = tree.has_references
        # Per group: where it was entered, its start, its end.
        self._slots = 3 * (tree.groups + 1) if self._keeps_groups else 0
        self._at_start_only = _is_anchored(tree.root)
        self._emit(tree.root, 1)
        self._add(_MATCH, None)

    def search(self, text: str, steps: int) -> tuple[bool, int]:
        """Whether the pattern is found, and the steps that are left. Raises OutOfSteps."""
        nothing: Slots = (-1,) * self._slots
        # A step may copy all slots: with many of them it counts for several.
        search = _Search(self._code, text, steps, 1 + self._slots // 32, not self._keeps_groups)
        for start in range(1 if self._at_start_only else len(text) + 1):
            if search.run(0, start, nothing) is not None:
                return True, search.steps
        return False, search.steps

    def _add(self, op: int, argument: Any) -> int:
        self._code.append((op, argument))
        return len(self._code) - 1

    def _emit(self, node: Node, way: int) -> None:
        match node:
            case Chars():
                self._add(_ONE, (_test(node), way))
            case ZeroWidth():
                self._add(_EDGE, _edge(node))
            case Reference():
                self._add(_REFERENCE, (3 * node.group, node.fold, way))
            case Chain(items):
                for item in items if way > 0 else reversed(items):
                    self._emit(item, way)
            case Group(body, number):
                if self._keeps_groups:
                    self._add(_OPEN, 3 * number)
                self._emit(body, way)
                if self._keeps_groups:
                    self._add(_CLOSE, 3 * number)
            case Alternatives(options):
                self._emit_choice(options, way)
            case Repetition():
                self._emit_repeat(node, way)
            case Look(body, behind, negated):
                look = self._add(_LOOK, None)
                self._emit(body, -1 if behind else 1)
                self._add(_MATCH, None)
                self._code[look] = _LOOK, (negated, len(self._code))

    def _emit_choice(self, options: tuple[Node, ...], way: int) -> None:
        split = self._add(_SPLIT, None)
        starts, ends = [], []
        for option in options:
            starts.append(len(self._code))
            self._emit(option, way)
            ends.append(self._add(_JUMP, None))
        for end in ends:
            self._code[end] = _JUMP, len(self._code)
        self._code[split] = _SPLIT, tuple(reversed(starts))

    def _emit_repeat(self, node: Repetition, way: int) -> None:
        if node.most == 0:
            return
        slot, self._slots = self._slots, self._slots + 2
        self._add(_ENTER, slot)
        start = self._add(_LOOP, None)
        self._emit(node.body, way)
        end = self._add(_NEXT, None)
        first, stop = node.groups if self._keeps_groups else (0, 0)
        forgets = tuple(3 * group + part for group in range(first, stop) for part in range(3))
        loop = Rounds(slot, node.least, node.most, node.greedy, _may_be_empty(node.body), end + 1, forgets)
        self._code[start] = _LOOP, loop
        self._code[end] = _NEXT, (loop, start)


class _Search:
    """One text. `memory`: whether what fails at a place will always fail there."""

    def __init__(self, code: list[tuple[int, Any]], text: str, steps: int, cost: int, memory: bool) -> None:
        self.code = code
        self.text = text
        self.steps = steps
        self.cost = cost
        self.memory = memory
        self.failed: set[tuple[int, int, Slots]] = set()
        # The same for what failed inside of a look-around, which may be asked again from elsewhere.
        self.dead: set[tuple[int, int, Slots]] = set()
        self.looks: dict[tuple[int, int], bool] = {}

    def run(self, pc: int, at: int, slots: Slots) -> Slots | None:
        """The slots after a match that begins here, or None."""
        code, text, failed = self.code, self.text, self.failed
        size, cost = len(text), self.cost
        waiting: list[tuple[int, int, Slots]] = [(pc, at, slots)]
        while waiting:
            pc, at, slots = waiting.pop()
            while True:
                self.steps -= cost
                if self.steps < 0:
                    raise OutOfSteps
                op, argument = code[pc]
                pc += 1
                if op == _ONE:
                    test, way = argument
                    place = at if way > 0 else at - 1
                    if not (0 <= place < size and test(text[place])):
                        break
                    at += way
                elif op == _JUMP:
                    pc = argument
                elif op == _MATCH:
                    return slots
                elif op in (_SPLIT, _LOOP):
                    if self.memory:
                        state = (pc, at, slots)
                        if state in failed or state in self.dead:
                            break
                        failed.add(state)
                    if op == _SPLIT:
                        waiting.extend([(start, at, slots) for start in argument])
                        break
                    waiting.extend(_rounds(argument, pc, at, slots))
                    break
                else:
                    went = self.seldom(op, argument, pc, at, slots)
                    if went is None:
                        break
                    pc, at, slots = went
        return None

    def seldom(self, op: int, argument: Any, pc: int, at: int, slots: Slots) -> tuple[int, int, Slots] | None:
        if op == _ENTER:
            return pc, at, _with(slots, argument, 0, -1)
        if op == _NEXT:
            loop, start = argument
            rounds = slots[loop.slot] + 1
            if loop.may_be_empty and rounds > loop.least and slots[loop.slot + 1] == at:
                return None
            if loop.most is None:
                rounds = min(rounds, loop.least)  # beyond that, only that there were enough counts
            return start, at, _with(slots, loop.slot, rounds, -1)
        if op == _EDGE:
            return (pc, at, slots) if argument(self.text, at) else None
        if op == _OPEN:
            return pc, at, _with(slots, argument, at)
        if op == _CLOSE:
            begun = slots[argument]
            return pc, at, _with(slots, argument + 1, min(begun, at), max(begun, at))
        if op == _REFERENCE:
            return self.refer(argument, pc, at, slots)
        return self.look(argument, pc, at, slots)

    def refer(
        self, argument: tuple[int, bool, int], pc: int, at: int, slots: Slots
    ) -> tuple[int, int, Slots] | None:
        slot, fold, way = argument
        start, end = slots[slot + 1], slots[slot + 2]
        if start < 0:
            return pc, at, slots
        wanted = self.text[start:end]
        self.steps -= len(wanted)
        place = at if way > 0 else at - len(wanted)
        if place < 0:
            return None
        there = self.text[place : place + len(wanted)]
        if there != wanted and not (fold and there.lower() == wanted.lower()):
            return None
        return pc, at + way * len(wanted), slots

    def look(
        self, argument: tuple[bool, int], pc: int, at: int, slots: Slots
    ) -> tuple[int, int, Slots] | None:
        negated, after = argument
        inside: Slots | None = slots
        if self.memory and (pc, at) in self.looks:
            found = self.looks[pc, at]
        else:
            # What succeeds inside leaves its way marked as tried: those marks end with it.
            failed, self.failed = self.failed, set()
            inside = self.run(pc, at, slots)
            found = inside is not None
            if not found:
                self.dead |= self.failed
            self.failed = failed
            if self.memory:
                self.looks[pc, at] = found
        if found is negated:
            return None
        # Groups inside are known outside; the rounds of repetitions are nobody else's.
        return after, at, slots if self.memory or inside is None else inside


def _rounds(loop: Rounds, body: int, at: int, slots: Slots) -> list[tuple[int, int, Slots]]:
    """Where a repetition goes on, the preferred way last."""
    done = slots[loop.slot]
    leave = (loop.after, at, _with(slots, loop.slot, -1, -1))
    if loop.most is not None and done >= loop.most:
        return [leave]
    again = _with(slots, loop.slot, done, at if loop.may_be_empty else -1)
    if loop.forgets:
        again = tuple(-1 if index in loop.forgets else value for index, value in enumerate(again))
    enter = (body, at, again)
    if done < loop.least:
        return [enter]
    return [leave, enter] if loop.greedy else [enter, leave]


def _with(slots: Slots, index: int, *values: int) -> Slots:
    return slots[:index] + values + slots[index + len(values) :]


def _test(node: Chars) -> Test:
    inside = _any_of(node)
    if not node.fold:
        return inside if not node.negated else lambda char: not inside(char)

    def folded(char: str) -> bool:
        found = inside(char) or any(
            len(other) == 1 and inside(other) for other in (char.lower(), char.upper())
        )
        return found is not node.negated

    return folded


def _any_of(node: Chars) -> Test:
    # The places where "inside" changes to "outside" and back: twice the complement is sorted and joined.
    bounds = [edge for low, high in complement(complement(node.ranges)) for edge in (low, high + 1)]
    if not node.properties:
        return lambda char: bisect_right(bounds, ord(char)) % 2 == 1
    for name, _ in node.properties:
        if name not in _CATEGORIES:
            raise PatternError(
                f"\\p{{{name}}} is no category such as L, Lu or Nd, which is all that goes here"
            )

    def found(char: str) -> bool:
        category = unicodedata.category(char)
        return bisect_right(bounds, ord(char)) % 2 == 1 or any(
            category.startswith(name) is not negated for name, negated in node.properties
        )

    return found


def _edge(node: ZeroWidth) -> Callable[[str, int], bool]:
    def holds(char: str, ranges: tuple[Range, ...]) -> bool:
        return any(low <= ord(char) <= high for low, high in ranges)

    def at_boundary(text: str, at: int) -> bool:
        before = at > 0 and holds(text[at - 1], WORD)
        return before != (at < len(text) and holds(text[at], WORD))

    match node.kind, node.multiline:
        case "^", False:
            return lambda text, at: at == 0
        case "^", True:
            return lambda text, at: at == 0 or holds(text[at - 1], LINE_END)
        case "$", False:
            return lambda text, at: at == len(text)
        case "$", True:
            return lambda text, at: at == len(text) or holds(text[at], LINE_END)
        case "b", _:
            return at_boundary
    return lambda text, at: not at_boundary(text, at)


def _may_be_empty(node: Node) -> bool:
    match node:
        case Chars():
            return False
        case Chain(items):
            return all(map(_may_be_empty, items))
        case Alternatives(options):
            return any(map(_may_be_empty, options))
        case Group(body, _):
            return _may_be_empty(body)
        case Repetition():
            return node.least == 0 or _may_be_empty(node.body)
    return True


def _is_anchored(node: Node) -> bool:
    """Whether only the start of a text can match."""
    match node:
        case ZeroWidth("^", False):
            return True
        case Chain(items):
            return bool(items) and _is_anchored(items[0])
        case Alternatives(options):
            return all(map(_is_anchored, options))
        case Group(body, _):
            return _is_anchored(body)
    return False
