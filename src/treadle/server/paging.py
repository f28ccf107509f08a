"""Cursors: where a list goes on. Opaque, bound to the filters they were made for, good for ever."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import decode, digest, encode

from .bodies import NUMBER_MAX
from .problems import RequestRefused


def cursor(filters: dict[str, Any], at: int) -> str:
    body = encode([digest(filters)[7:23], at])
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def position(text: str | None, filters: dict[str, Any]) -> int | None:
    """Where a cursor points; None without one."""
    if text is None:
        return None
    try:
        bound, at = decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, TypeError, TreadleError) as error:
        raise RequestRefused("BAD_CURSOR", "this is no cursor of this server; begin without one") from error
    if bound != digest(filters)[7:23]:
        raise RequestRefused("BAD_CURSOR", "this cursor belongs to other filters; begin without one")
    if type(at) is not int or not 0 <= at <= NUMBER_MAX:
        raise RequestRefused("BAD_CURSOR", "this is no cursor of this server; begin without one")
    return at
