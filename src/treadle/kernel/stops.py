"""Ctrl-C and the closing of a coroutine, told from code that raises the same exceptions itself.

Authors' code may raise anything, also `KeyboardInterrupt` and `GeneratorExit`. Then it has failed, like any other
code. The same two stop it from outside, and must reach whoever runs it. Where an exception was raised says which it
is: at a `raise` of the code, or between two of its instructions.
"""

from __future__ import annotations

from opcode import opmap
from typing import Final

_RAISE: Final = opmap["RAISE_VARARGS"]
# Its handler of SIGINT has a `raise` of its own.
_RUNNER: Final = "asyncio.runners"


def is_stop(error: BaseException) -> bool:
    """Whether the code that this exception came out of was stopped by it, and did not raise it."""
    if not isinstance(error, KeyboardInterrupt | GeneratorExit):
        return False
    at = error.__traceback__
    if at is None:
        return True
    while at.tb_next is not None:
        at = at.tb_next
    frame = at.tb_frame
    return frame.f_code.co_code[at.tb_lasti] != _RAISE or frame.f_globals.get("__name__") == _RUNNER
