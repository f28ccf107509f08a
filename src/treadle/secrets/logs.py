"""No secret in what libraries log: requests with their headers, answers that could not be read.

Our own lines are cleaned where they are written. Those of the SDKs for models and MCP are theirs,
so their loggers get a filter: a record that holds a secret, or `user:password@` in an address, is
rewritten, its traceback with it. All others stay as they are.
"""

from __future__ import annotations

import logging
import traceback
from typing import Final, Protocol
from weakref import ref

from treadle.kernel.values import Value

from .redact import without_credentials

LIBRARIES: Final = ("anthropic", "openai", "mcp", "client", "httpx", "httpx2", "httpcore", "httpcore2")


class Vault(Protocol):
    def redact(self, value: Value) -> Value: ...


class _Clean(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        # Replaced, never changed: any thread may log. Weak: an engine that is gone has no secrets left.
        self.vaults: tuple[ref[Vault], ...] = ()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            said += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        clean = without_credentials(said)
        for known in self.vaults:
            if (vault := known()) is not None:
                clean = str(vault.redact(clean))
        if clean != said:
            record.msg, record.args = clean, None
            record.exc_info = record.exc_text = None
        return True


_CLEAN: Final = _Clean()


def knows(vault: Vault) -> None:
    """From now on what this vault has handed out is cleaned from the lines of libraries."""
    _CLEAN.vaults = (*(known for known in _CLEAN.vaults if known() is not None), ref(vault))


def cover() -> None:
    """Filters every logger that the libraries have by now; called when a client of theirs is made."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in LIBRARIES:
            logging.getLogger(name).addFilter(_CLEAN)
