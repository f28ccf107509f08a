"""What every part of the compiler needs: a place to report, and the two spellings.

The compiler walks the author's text once, reports everything it finds at the author's own lines,
and writes the canonical form (spelling A, the seeds' own). Where the canonical form stands at
another path than the text (a single tool becomes a list, sugar becomes tasks), `moved` remembers
it, so that later analysis can still name the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from treadle.kernel.errors import ExpressionError
from treadle.kernel.values import Value
from treadle.lang.problems import Problems
from treadle.lang.slips import nearest
from treadle.lang.text import Path

from .templates import Expression, expression, is_template, without_value


class Reader(msgspec.Struct):
    """One compilation: collects problems, knows whether spelling B is welcome."""

    problems: Problems
    strict: bool = False
    moved: dict[Path, Path] = msgspec.field(default_factory=dict)

    def error(self, code: str, path: Path, message: str, *, hint: str = "", rule: str = "") -> None:
        self.problems.error(code, self.source(path), message, hint=hint, rule=rule)

    def warning(self, code: str, path: Path, message: str, *, hint: str = "", rule: str = "") -> None:
        self.problems.warning(code, self.source(path), message, hint=hint, rule=rule)

    def source(self, path: Path) -> Path:
        """Where a canonical path stands in the author's text."""
        for length in range(len(path), 0, -1):
            if (start := self.moved.get(path[:length])) is not None:
                return (*start, *path[length:])
        return path

    def spelled_b(self, path: Path, written: str, canonical: str) -> None:
        """Spelling B is read as A; `--strict` wants A."""
        if self.strict:
            self.error(
                "spelling_b",
                path,
                f"{written!r} is the newer spelling; --strict takes the canonical one only",
                hint=f"write {canonical}",
                rule="PLAYBOOK §5.15",
            )

    def unknown_key(
        self, code: str, path: Path, key: str, known: Iterable[str], what: str, *, fatal: bool = False
    ) -> None:
        """An unknown key is an error where it is fatal or looks like a slip of a known one."""
        near = nearest(key, list(known))
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        report = self.error if near or fatal else self.warning
        report(code, (*path, key), f"{what} has no key {key!r}", hint=hint)

    def slips(self, value: Iterable[str], path: Path, known: tuple[str, ...], what: str) -> None:
        """Where any key is allowed (hints, knobs of tools), one that is nearly ours is told."""
        for key in value:
            if key not in known and (near := nearest(key, known, cutoff=0.8)):
                message = f"{what} does nothing with {key!r}"
                self.warning("key_slip", (*path, key), message, hint=f"did you mean {near[0]!r}?")

    def mapping(self, value: Value, code: str, path: Path, what: str) -> dict[str, Value] | None:
        """The value as a mapping; null is an empty one; anything else is reported."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.error(code, path, f"{what} must be a mapping, not {kind_of(value)}")
            return None
        return value

    def choice(self, value: Value, allowed: tuple[str, ...], code: str, path: Path, what: str) -> None:
        if value not in allowed:
            self.error(code, path, f"{what} is {value!r}", hint=f"write one of: {', '.join(allowed)}")

    def template(self, value: Value, path: Path) -> Expression | None:
        """Compiles one text; a broken template is reported with its line."""
        if not is_template(value):
            return None
        try:
            compiled = expression(value)
            if (problem := without_value(value)) is not None:
                self.error("template_no_value", path, problem, rule="PLAYBOOK §6.41")
            return compiled
        except ExpressionError as error:
            self.error(
                "template_syntax",
                path,
                f"{error.message}: {value.strip()[:120]}",
                hint=_template_hint(value),
            )
            return None

    def condition(self, value: Value, path: Path) -> Value:
        """A `when`: one expression, or plain true/false."""
        if isinstance(value, bool):
            return value
        if not is_template(value):
            self.error(
                "when_not_template",
                path,
                f"when must be a template, not {value!r}",
                hint='write when: "{{ … }}"',
                rule="004 §4",
            )
            return True
        compiled = self.template(value, path)
        if compiled is not None and not compiled.native and "{%" not in value:
            self.error(
                "when_not_expression",
                path,
                "when mixes text and expressions, so it would always be true",
                hint='put the whole condition inside one pair of braces: "{{ a == b }}"',
                rule="004 §4",
            )
        return value


def _template_hint(text: str) -> str:
    if re.search(_FOREIGN, text):
        return "braces that are not for Treadle (docker, Go, Helm) stand between {% raw %} and {% endraw %}"
    return "templates are Jinja2; text with braces of its own stands between {% raw %} and {% endraw %}"


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def reject_conditions(reader: Reader, value: dict[str, Value], path: Path, what: str, hint: str) -> None:
    """`when` is the only conditional keyword (004 §4); a guard under another name would be dropped."""
    for key in CONDITIONS:
        if key in value:
            reader.error(
                "condition_not_when",
                (*path, key),
                f"{what} has {key!r}; the only conditional keyword is when",
                hint=hint,
                rule="004 §4",
            )


def reject_legacy(reader: Reader, value: dict[str, Value], path: Path, what: str) -> None:
    """The migration checklist of seed 004 §13, wherever the old keywords stand."""
    for key, (code, replacement) in LEGACY.items():
        if key in value:
            reader.error(
                code, (*path, key), f"{what} has {key!r}, which v10 removed", hint=replacement, rule="004 §13"
            )


# `{{.Names}}`, `{{ range . }}`, `{{json .}}`, `{{ $x }}`: templates of Go.
_FOREIGN: Final = r"\{\{-?\s*(?:[.$]|(?:range|with|json|printf|toYaml|include|end)\b)"
CONDITIONS: Final = ("cond", "if", "condition", "unless")
LEGACY: dict[str, tuple[str, str]] = {
    "eval": (
        "eval_removed",
        "write spec.policy.rules: [{when: …, then: {do: …}}, {else: {then: {do: …}}}] on the task",
    ),
    "expr": ("expr_removed", "use when; it is the only conditional keyword"),
    "case": ("case_removed", "use next.arcs with when for routing, spec.policy.rules for task outcomes"),
    "sink": (
        "sink_removed",
        "storage is a task: add a task with the storage tool's kind that returns a reference",
    ),
}
