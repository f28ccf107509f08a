"""Which ended runs are past their date, as conditions on the rows of runs.

A run without a date (`retain_ns`) can go on, however it stands, and is never past one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .rows import AgeRule, bounded

# The kind of documents that say which runs were put back from an archive: they stay until they are deleted.
RETURNED: Final = "returned"
_STAYS: Final = f"NOT EXISTS (SELECT 1 FROM documents WHERE kind = '{RETURNED}' AND documents.id = runs.id)"


def past_conditions(
    now_ns: int, rules: Sequence[AgeRule], *, stated: bool
) -> Iterator[tuple[str, list[Any], str]]:
    """Conditions that exclude one another, each with its values, and the column that puts the oldest first."""
    for rule in rules:
        if rule.ended_by_ns is not None:
            spoken, values = _spoken_of(rule)
            condition = f"retain_ns IS NOT NULL AND ended_ns <= ? AND {spoken} AND {_STAYS}"
            yield condition, [bounded(rule.ended_by_ns), *values], "ended_ns"
    if stated:
        condition, values = f"retain_ns <= ? AND {_STAYS}", [bounded(now_ns)]
        for rule in rules:
            spoken, more = _spoken_of(rule)
            condition += f" AND NOT ({spoken})"
            values += more
        yield condition, values, "retain_ns"


def _spoken_of(rule: AgeRule) -> tuple[str, list[Any]]:
    """The runs that a rule is about."""
    condition, values = "status = ?", [rule.status]
    if rule.workflow is not None:
        return f"{condition} AND workflow = ?", [*values, rule.workflow]
    if rule.but:
        condition += f" AND workflow NOT IN ({', '.join('?' * len(rule.but))})"
    return condition, [*values, *rule.but]
