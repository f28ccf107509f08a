"""What PostgreSQL's error codes mean in the one vocabulary of error kinds."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from .protocol import Outcome

# Exact codes first, then classes (the first two characters). True: another try may succeed.
_CODES: Final[dict[str, tuple[str, bool]]] = {
    "40P01": ("db_deadlock", True),
    "40001": ("db_deadlock", True),
    "55P03": ("db_timeout", True),
    "57014": ("db_timeout", True),
    "25P03": ("db_timeout", True),
    "53100": ("storage_quota", False),
    "53200": ("storage_quota", True),
    "53300": ("db_connection", True),
    "3D000": ("not_found", False),
    "42501": ("auth", False),
    "42601": ("parse", False),
    "42P01": ("not_found", False),
}
_CLASSES: Final[dict[str, tuple[str, bool]]] = {
    "08": ("db_connection", True),
    "57": ("db_connection", True),
    "53": ("db_connection", True),
    "40": ("db_deadlock", True),
    "23": ("db_constraint", False),
    "28": ("auth", False),
    "22": ("transform", False),
    "42": ("schema", False),
    "58": ("storage_access", True),
}


def classify(sqlstate: str | None, error: psycopg.Error) -> tuple[str, bool]:
    """The kind of an error, and whether trying again makes sense."""
    if sqlstate is not None:
        return _CODES.get(sqlstate) or _CLASSES.get(sqlstate[:2]) or ("unknown", False)
    text = str(error)
    if any(words in text for words in ("password", "authentication", "permitted to log in", 'role "')):
        return "auth", False
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return "db_timeout", True
    if isinstance(error, psycopg.OperationalError):
        if 'database "' in text and "does not exist" in text:
            return "not_found", False
        return "db_connection", True
    return ("transform", False) if isinstance(error, psycopg.DataError) else ("schema", False)


def error_outcome(error: psycopg.Error, *, statement: int | None = None, result: Any = None) -> Outcome:
    """An error outcome with `outcome.pg.code` (also `sqlstate`) and the server's own words."""
    sqlstate = error.sqlstate
    kind, retryable = classify(sqlstate, error)
    diagnostic = error.diag
    details = {
        "statement": statement,
        "constraint": diagnostic.constraint_name,
        "table": diagnostic.table_name,
        "column": diagnostic.column_name,
        "detail": diagnostic.message_detail,
        "hint": diagnostic.message_hint,
    }
    outcome = Outcome.failed(
        kind,
        str(error).strip() or type(error).__name__,
        code=f"PG_{sqlstate}" if sqlstate else "NO_CONNECTION" if kind == "db_connection" else None,
        retryable=retryable,
        details={key: value for key, value in details.items() if value is not None},
        result=result,
        pg={"code": sqlstate, "sqlstate": sqlstate},
    )
    assert outcome.error is not None
    outcome.error["pg_code"] = sqlstate
    return outcome
