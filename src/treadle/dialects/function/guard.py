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
from threading import local
from types import FrameType
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

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
# The same without telling the watch that it is called: no call of a `partial` is.
_unset: Final = partial(sys.setprofile, None)
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


class _Here(local):
    """The watch that is on in this thread. To ask the interpreter for it would be a call, of which the watch is told."""

    watch: Watch | None = None


_here = _Here()


class FlowRandom(Random):
    """Chance of a run: of its seed, so the same each time. The watch knows it by its type."""


class Watched(Protocol):
    guarded: bool
    offence: Undecidable | None


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


def watched(life: Watched, call: Callable[[Watch | None], None]) -> None:
    """Calls with a watch, to be put on whatever is not ours (`seen`). None: nothing is watched."""
    if not life.guarded:
        call(None)
        return
    before, outer = sys.getprofile(), _here.watch
    # A collection would run other people's finalisers in the middle of this decision.
    collecting = gc.isenabled()
    gc.disable()
    try:
        call(_watch_of(life))
    finally:
        put_back(before, outer)
        if collecting:
            gc.enable()


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
        found: tuple[str, str] | None = None
        if event == "c_call":
            if not frame.f_globals.get("__name__", "").startswith(_OURS):
                found = _judged(argument)
        elif event != "call" or (module := frame.f_globals.get("__name__", "")) in _unjudged:
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


def watch_here() -> Watch | None:
    """The watch that is on in this thread."""
    return _here.watch


def put_back(profiler: Any, watch: Watch | None) -> None:
    """The profiler and the watch that were there before."""
    _here.watch = watch
    profile_again(profiler)


def seen(watch: Watch | None, call: Callable[[], object]) -> None:
    """Calls what may reach code of the author's, with the watch on."""
    if watch is None:
        call()
        return
    _here.watch = watch
    sys.setprofile(watch)
    try:
        call()
    finally:
        _unset()
        _here.watch = None


def unwatched(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A call of ours that reaches no code of the author's: to be told of all that it does would cost more than it."""
    watch = _here.watch
    if watch is None:
        return call(*args, **kwargs)
    _here.watch = None
    _unset()
    try:
        return call(*args, **kwargs)
    finally:
        _here.watch = watch
        sys.setprofile(watch)


def _public(frame: FrameType) -> str:
    """What people call a function of `os` that the environment hides behind."""
    name = frame.f_code.co_name
    return "environ" if name.startswith("_") or name in ("get", "encode", "decode") else name
