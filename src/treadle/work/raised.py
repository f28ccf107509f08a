"""What an exception looks like from outside: its name, its words, where it was raised.

An exception is somebody else's object. Its text may raise, hold half a character, quote a megabyte or
the address of an object; the receipt that reports it has to be written all the same, and the same way
on every machine.

Standard library only, and no import of Treadle: the inline Python child loads this file by its path.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection

# Both together stay well below what an error in a record may take.
TEXT_CHARS_MAX = 3_000
TRACE_CHARS_MAX = 3_000
_ADDRESS = r"\b0x[0-9a-fA-F]{6,}\b"


def words(error: BaseException) -> str:
    """What the exception says, bounded and writable; nothing if it says nothing."""
    try:
        text = str(error)
    except BaseException as broken:  # also SystemExit: the code of `__str__` is not ours
        return f"(its text cannot be read: {type(broken).__name__})"
    shown = plain(text[: 4 * TEXT_CHARS_MAX])
    if len(shown) <= TEXT_CHARS_MAX:
        return shown
    return f"{shown[:TEXT_CHARS_MAX]}… ({len(text):,} characters)"


def named(error: BaseException) -> str:
    """`KeyError: 'city'`, or the name alone."""
    said = words(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def trace(error: BaseException, hidden: Collection[str] = ()) -> str:
    """The traceback without the frames of the files that are `hidden`, its last part if it is long."""
    try:
        told = traceback.TracebackException.from_exception(error, limit=-40)
        seen: list[traceback.TracebackException] = [told]
        while (part := seen.pop() if seen else None) is not None:
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if frame.filename not in hidden]
            )
            seen += [other for other in (part.__cause__, part.__context__) if other is not None]
        text = "".join(told.format())
    except BaseException:  # an exception that breaks the machinery of exceptions
        return f"{type(error).__name__}, whose traceback cannot be read\n"
    text = plain(text)
    if len(text) <= TRACE_CHARS_MAX:
        return text
    return f"… ({len(text) - TRACE_CHARS_MAX:,} characters)\n{text[-TRACE_CHARS_MAX:]}"


def plain(text: str) -> str:
    """Text that can be written down anywhere: half characters escaped, addresses of objects left out,
    which are different each time."""
    return re.sub(_ADDRESS, "0x…", text.encode("utf-8", "backslashreplace").decode())
