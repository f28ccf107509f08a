"""Strict steps: a call of the clock, of randomness, of the system, of a socket or a file raises at once.

The interpreter tells a profile function of each call into C, on this thread only, before it is made; so
nothing is patched, other threads are untouched, and `from time import time` does not escape. It costs a
few hundred nanoseconds a call, hence it is a mode. Python code that hides its source of chance in pure
Python cannot be seen; `checked` finds that on replay.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from treadle.kernel.errors import DecisionRefused
from treadle.lang.profiling import profile_again

from .step import StepRandom

T = TypeVar("T")

_MODULES: Final = frozenset(
    {"time", "posix", "nt", "os", "_socket", "_ssl", "select", "_posixsubprocess", "_uuid", "fcntl", "mmap"}
)
_BUILTINS: Final = frozenset({"open", "open_code", "input", "breakpoint"})
_CLOCKS: Final = frozenset({"now", "utcnow", "today"})
# Reads no file and asks the system nothing: path arithmetic that the standard library itself uses.
_HARMLESS: Final = frozenset({"fspath"})


class NotDeterministic(DecisionRefused):
    """A strict step called something whose answer is not recorded. Use ctx.now, ctx.random(), ctx.uuid(),
    or ask for an effect."""

    code = "NOT_DETERMINISTIC"


def offence(function: object) -> str | None:
    """The name of a call that a strict step may not make."""
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    if module in _MODULES and name not in _HARMLESS:
        return f"{'os' if module in ('posix', 'nt') else module.lstrip('_')}.{name}"
    if module in ("_io", "io", "builtins") and name in _BUILTINS:
        return name
    owner_type = owner if isinstance(owner, type) else type(owner)
    if owner_type.__module__ == "datetime" and name in _CLOCKS:
        return f"{owner_type.__name__}.{name}"
    if any(base.__module__ == "_random" for base in owner_type.__mro__) and owner_type is not StepRandom:
        return f"random.{name}"
    if owner_type.__module__ in ("_socket", "socket"):
        return f"socket.{name}"
    return None


def strictly(call: Callable[..., T], *args: object) -> T:
    """Calls with the watch on. An offence is raised even if the called code swallows exceptions."""
    seen: list[str] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        found = None
        if event == "c_call":
            found = offence(argument)
        elif event == "call" and frame.f_globals.get("__name__") == "os":
            found = f"os.{frame.f_code.co_name}"  # the environment is read in Python
        if found is not None:
            profile_again(before)
            seen.append(found)
            raise NotDeterministic(f"{found}() was called in a strict step", details={"call": found})

    before = sys.getprofile()
    # A collection would run other people's callbacks and finalisers in the middle of this step.
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(watch)
    try:
        return call(*args)
    finally:
        profile_again(before)
        if collecting:
            gc.enable()
        if seen:
            raise NotDeterministic(f"{seen[0]}() was called in a strict step", details={"call": seen[0]})
