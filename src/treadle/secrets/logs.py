"""No secret in what libraries log: requests with their headers, answers that could not be read.

Our own lines are cleaned where they are written. Those of HTTP clients and of the SDKs for models and
MCP are theirs, and so are their loggers, of which new ones appear at any time. So records are cleaned
where they are made: one of these libraries that holds a secret, or `user:password@` in an address, is
rewritten, its traceback with it. All others stay as they are.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import ref

from treadle.kernel.values import Value

from .redact import without_credentials

LIBRARIES: Final = ("anthropic", "openai", "mcp", "client", "httpx", "httpx2", "httpcore", "httpcore2")


if TYPE_CHECKING:

    class Redacting(Protocol):
        def redact(self, value: Value) -> Value: ...


# Replaced, never changed: any thread may log. Weak: an engine that is gone has no secrets left.
_vaults: tuple[ref[Redacting], ...] = ()


def cleaned(text: str) -> str:
    """The text without credentials in addresses, and without what any vault here has handed out."""
    told = without_credentials(text)
    for known in _vaults:
        if (vault := known()) is not None:
            told = str(vault.redact(told))
    return told


def clean(record: logging.LogRecord) -> None:
    """Takes every secret out of a record, if there is one in it."""
    said = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        said += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    if (told := cleaned(said)) != said:
        record.msg, record.args = told, None
        record.exc_info = record.exc_text = None


class _Records:
    """Makes log records as before, those of the libraries clean."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        record = self._make(*args, **more)
        if record.name.partition(".")[0] in LIBRARIES:
            clean(record)
        return record


def knows(vault: Redacting) -> None:
    """From now on what this vault has handed out is cleaned from the lines of libraries."""
    global _vaults
    _vaults = (*(known for known in _vaults if known() is not None), ref(vault))
    cover()


def cover() -> None:
    """Sees to it that records are made by us; an application may have put its own maker in between."""
    make = logging.getLogRecordFactory()
    if not isinstance(make, _Records):
        logging.setLogRecordFactory(_Records(make))
