"""What is said of a template that cannot be evaluated."""

from __future__ import annotations

from json import JSONDecodeError
from typing import Final

from jinja2.exceptions import SecurityError, UndefinedError

from .bounds import Misuse
from .edition import is_first


def told(error: Exception) -> tuple[str, str]:
    """What went wrong, in words of ours: those of Python and Jinja change with their versions, and may
    hold what must not be recorded."""
    if is_first():
        kind = "SecurityError" if isinstance(error, SecurityError | Misuse) else type(error).__name__
        return f"{error!s:.1000}" or kind, kind
    if isinstance(error, Misuse | UndefinedError):
        return f"{error!s:.1000}", "undefined" if isinstance(error, UndefinedError) else "misuse"
    for types, reason in _REASONS:
        if isinstance(error, types):
            return reason, "misuse"
    return "it cannot be evaluated", "misuse"


_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (SecurityError, "it does what templates must not do"),
    (ZeroDivisionError, "it divides by zero"),
    (JSONDecodeError, "a text is not JSON"),
    (UnicodeError, "bytes are not text"),
    (RecursionError, "it goes too deep"),
    (OverflowError, "a number is too large"),
    (TypeError, "its values do not go together, or a filter is given what it does not take"),
    (ValueError, "a value has not the form that is asked for"),
    (LookupError, "a key or an index is not there"),
)
