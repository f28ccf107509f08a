"""The watch over a running function: clock, chance, files, sockets, processes, threads, environment.

The interpreter tells a profile function of each call, on this thread only, before it is made: nothing is patched,
other threads are untouched, and `from time import time` does not escape. An offence counts even if the function
swallows what it raises: the life keeps it, and the decision is refused. Logging and imports pass.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from threading import Event, local
from types import FrameType
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from treadle.kernel.errors import Undecidable
from treadle.lang.profiling import profile_again

from .errors import NotDeterministic
from .source import place_of

P = ParamSpec("P")
T = TypeVar("T")

_MODULES: Final = frozenset(
    {
        "time",
        "posix",
        "nt",
        "_socket",
        "_ssl",
        "select",
        "_posixsubprocess",
        "_uuid",
        "fcntl",
        "mmap",
        "_winapi",
    }
)
_BUILTINS: Final = frozenset({"open", "open_code", "input", "breakpoint"})
_CLOCKS: Final = frozenset({"now", "utcnow", "today"})
_THREADS: Final = frozenset({"start_new_thread", "start_new", "start_joinable_thread"})
# Arithmetic with what is given: asks the system nothing.
_HARMLESS: Final = frozenset(
    {"fspath", "strptime", "register_at_fork", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"}
)
# Modules whose own doings are not the function's: they write for people, load code, or fetch a stored payload.
_PASSING: Final = (
    "treadle.kernel.model",
    "logging",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "linecache",
    "warnings",
    "traceback",
)
# What a decision needs asks nothing of the world. It calls much of it, and the watch is told of each call.
_OURS: Final = "treadle."
# No call of a `partial` is told.
_unset: Final = partial(sys.setprofile, None)
_skip: Final = partial(bool)
_INSTEAD: Final = {
    "clock": "use ctx.now()",
    "sleep": "use await ctx.sleep(duration)",
    "chance": "use ctx.random or ctx.uuid()",
    "thread": "use asyncio.create_task or flow.gather, or a step",
    "world": "do that in a step: @flow.step",
}


# What was found of a call, by all that the answer depends on. A function makes the same few calls over and over.
_Known: TypeAlias = tuple[str, str | None, type]
_known: dict[_Known, tuple[str, str] | None] = {}
_KNOWN_MAX: Final = 10_000


# Modules whose own calls are neither judged nor let pass, as nearly all are: their frames come again and again.
_unjudged: set[str] = set()


Watch: TypeAlias = Callable[[FrameType, str, Any], None]


class Watched(Protocol):
    run: str
    guarded: bool
    offence: Undecidable | None


class Turn(msgspec.Struct, eq=False):
    """One decision on one thread."""

    life: Watched
    thread: int
    # Whose turn it was before, and what there was then: a profiler, and the collector at work.
    outer: Turn | None
    profile: Any
    collects: bool
    # The watch is turned on and off without telling it of that, and is on while the author's code may be reached.
    on: Callable[[], object] = _skip
    off: Callable[[], object] = _skip
    is_on: bool = False
    # Patience with it.
    ticks: int = 0
    over: bool = False
    breaking: bool = False
    # Set when nothing more will be raised.
    quiet: Event | None = None


class _Nobody:
    run = ""
    guarded = False
    offence: Undecidable | None = None


_NOBODYS: Final = Turn(_Nobody(), 0, None, None, False)


class _Here(local):
    """Whose turn it is in this thread. To ask the interpreter for anything would be a call, of which the watch is told."""

    turn: Turn = _NOBODYS


here: Final = _Here()


class FlowRandom(Random):
    """Chance of a run: of its seed, so the same each time. The watch knows it by its type."""


def offence(function: Any) -> tuple[str, str] | None:
    """The name of a call that a durable function may not make, and what to use instead."""
    name = getattr(function, "__name__", "") or ""
    module = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    if module == "time" and name not in _HARMLESS:
        return f"time.{name}", _INSTEAD["sleep" if name == "sleep" else "clock"]
    if module in _MODULES and name not in _HARMLESS:
        kind = "chance" if name in ("urandom", "getrandom") or module == "_uuid" else "world"
        return f"{'os' if module in ('posix', 'nt') else module.lstrip('_')}.{name}", _INSTEAD[kind]
    if module in ("_io", "io", "builtins") and name in _BUILTINS:
        return name, _INSTEAD["world"]
    if module in ("_thread", "threading") and name in _THREADS:
        return "threading.Thread.start", _INSTEAD["thread"]
    owner_type = owner if isinstance(owner, type) else type(owner)
    if owner_type.__module__ == "datetime" and name in _CLOCKS:
        return f"{owner_type.__name__}.{name}", _INSTEAD["clock"]
    if owner_type is not FlowRandom and any(base.__module__ == "_random" for base in owner_type.__mro__):
        return f"random.{name}", _INSTEAD["chance"]
    if owner_type.__module__ in ("_socket", "socket"):
        return f"socket.{name}", _INSTEAD["world"]
    return None


def _judged(function: Any) -> tuple[str, str] | None:
    """`offence`, asked once for all calls that are alike."""
    owner = getattr(function, "__self__", None)
    named = getattr(function, "__name__", ""), getattr(function, "__module__", None)
    key = *named, owner if isinstance(owner, type) else type(owner)
    if key not in _known:
        if len(_known) >= _KNOWN_MAX:  # of programs that make classes without end
            _known.clear()
        _known[key] = offence(function)
    return _known[key]


def _watch_of(life: Watched) -> Watch:
    passing: FrameType | None = None

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal passing
        if event == "return":
            if frame is passing:
                passing = None
            return
        if passing is not None:
            return
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module in _unjudged:
            return
        found: tuple[str, str] | None = None
        if event == "c_call":
            if not module.startswith(_OURS):
                found = _judged(argument)
        elif event != "call":
            return
        elif module == "os":
            if frame.f_code.co_name != "fspath":
                found = f"os.{_public(frame)}", _INSTEAD["world"]
        elif module.startswith(_PASSING):
            passing = frame
        elif len(_unjudged) < _KNOWN_MAX:
            _unjudged.add(module)
        if found is not None:
            name, instead = found
            life.offence = life.offence or NotDeterministic(
                f"{name}() is not recorded, so the function would not do the same again; {instead}",
                where=place_of(frame),
                details={"call": name},
            )
            raise life.offence

    return watch


def begin(turn: Turn) -> None:
    """A decision has the thread to itself. A collection would run other people's finalisers in the middle of it."""
    here.turn = turn
    if turn.life.guarded:
        gc.disable()
        turn.on, turn.off = partial(sys.setprofile, _watch_of(turn.life)), _unset


def end(turn: Turn) -> None:
    """Everything is as it was before, whatever the turn was doing."""
    here.turn = turn.outer or _NOBODYS
    if turn.breaking or turn.profile is not None:
        profile_again(turn.profile)
    if turn.collects:
        gc.enable()


def seen(turn: Turn, call: Callable[[], object]) -> None:
    """Calls what may reach code of the author's, with the watch on."""
    turn.is_on = True
    turn.on()
    try:
        call()
    finally:
        turn.off()
        turn.is_on = False


def unwatched(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A call of ours that reaches no code of the author's: to be told of all that it does would cost more than it."""
    turn = here.turn
    if not turn.is_on:
        return call(*args, **kwargs)
    turn.is_on = False
    turn.off()
    try:
        return call(*args, **kwargs)
    finally:
        turn.is_on = True
        turn.on()


def _public(frame: FrameType) -> str:
    """What people call a function of `os` that the environment hides behind."""
    name = frame.f_code.co_name
    return "environ" if name.startswith("_") or name in ("get", "encode", "decode") else name
