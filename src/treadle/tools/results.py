"""What a function of the application returns, as a value that can be kept.

A function may return anything of any size. To bring it into plain form and to measure it takes time in
proportion, and the event loop serves everybody: what is not small at a glance is converted on a thread.
Above the limit it is refused, with the error that the Python tool gives.
"""

from __future__ import annotations

from typing import Any, Final

from treadle.kernel.errors import ValueRefused
from treadle.kernel.values import Value, encode
from treadle.lang.handed import check_written

from .portable import portable

# What is converted where it is: a glance at so many parts, and so many characters of text, takes no time.
_PARTS_MAX: Final = 1_000
_CHARS_MAX: Final = 64 * 1024


_NUMBERS: Final = frozenset({int, float, bool})


class ResultTooLarge(Exception):
    """The value takes more than is taken, written out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def is_small(value: Any) -> bool:
    """Whether a value is plain and has few parts. Looks at no more than a few, however many there are."""
    parts, chars = _PARTS_MAX, _CHARS_MAX
    left = [value]
    while left:
        part = left.pop()
        kind = type(part)
        if kind is str or kind is bytes:
            chars -= len(part)
        elif kind is dict or kind is list or kind is tuple:
            parts -= len(part)
            if parts >= 0:
                left.extend(part.values() if kind is dict else part)
                if kind is dict:
                    chars -= len("".join([key for key in part if isinstance(key, str)]))
        elif part is not None and kind not in (int, float, bool):
            return False  # what it holds is not known before it is converted
        if parts < 0 or chars < 0:
            return False
    return True


def kept(value: Any, bytes_max: int) -> Value:
    """The value in plain form, if it is not too large. Raises ResultTooLarge; TypeError if it has no plain form."""
    if type(value) in _NUMBERS:
        return portable(value)
    try:
        check_written(value)
    except ValueRefused as error:
        raise ResultTooLarge(error.details["bytes"]) from error
    plain: Value = portable(value)
    if not is_small(plain) and (size := len(encode(plain))) > bytes_max:
        raise ResultTooLarge(size)
    return plain
