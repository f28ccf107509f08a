"""Standard output belongs to the command's own answer.

A tool, a library or a process that it starts may print. Under `--json`, or where a protocol is spoken, one
stray line spoils the whole answer. So while a command works, `sys.stdout` and descriptor 1 lead to standard
error, and only `stream()` leads out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_ours: TextIO | None = None


def stream() -> TextIO:
    """Where answers go: the standard output that the process was started with."""
    return _ours or sys.stdout


@contextmanager
def reserved() -> Iterator[None]:
    """Keeps standard output for `stream()`. The descriptor is never given back: the process ends with its
    command, and a thread that a tool left behind may print until then."""
    global _ours
    before = _ours, sys.stdout
    if before[0] is None and before[1] is not None:
        _ours = _moved(sys.stdout) if _is_descriptor(sys.stdout) else sys.stdout
    # Who holds the old `sys.stdout` still writes to descriptor 1; the new one is not buffered up to the end.
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        if _ours is before[1]:  # a stream of somebody's own, as in tests: it is only lent
            _ours, sys.stdout = before


def abandon() -> None:
    """Nobody reads any more: what is still written goes nowhere, without complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream().fileno())
    os.close(nowhere)


def _is_descriptor(stdout: TextIO) -> bool:
    try:
        return stdout.fileno() == 1
    except (OSError, ValueError):
        return False


def _moved(stdout: TextIO) -> TextIO:
    """The same output on a descriptor that no child inherits; descriptor 1 is standard error from now on."""
    stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no standard error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return open(kept, "w", encoding=stdout.encoding, errors=stdout.errors)
