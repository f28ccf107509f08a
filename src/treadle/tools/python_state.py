"""What one task may leave behind in a warm Python process, and how the next one is spared it.

A process is kept because its modules stay loaded; everything else of a task should end with it. What
can be put back is put back (folder, environment, masks, limits, handlers, alarms, hooks); what cannot
(threads, child processes, a lowered hard limit, a patched library) means that the process has to go.

Standard library only, and no import of Treadle: the inline Python child loads this file by its path.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal.getsignal` makes an enum of each, 60 times as slow
import _thread
import builtins
import contextlib
import datetime
import functools
import gc
import io
import json
import locale
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar, cast

T = TypeVar("T")

# Modules that much code leans on and that tests and quick fixes like to patch. Comparing all of a
# process's modules would cost more than most tasks; these take a few microseconds each.
_WATCHED: tuple[ModuleType, ...] = (
    *(builtins, datetime, functools, io, json, math, os, os.path, random, re, socket, subprocess, time),
)


class State:
    """The process as it was before any task. `clean()` puts it back after each one, and says whether
    that was possible; a process that has changed for good must not serve anybody else."""

    def __init__(self) -> None:
        self._parts: list[tuple[Callable[[], Any], Callable[[Any], None], Any]] = []
        self._keep(lambda: dict(os.environ), _set_environment)
        self._keep(os.getcwd, os.chdir)
        self._keep(lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path))
        self._keep(_umask, _set_umask)
        self._keep(sys.getrecursionlimit, sys.setrecursionlimit)
        self._keep(sys.getswitchinterval, sys.setswitchinterval)
        self._keep(gc.isenabled, lambda on: gc.enable() if on else gc.disable())
        self._keep(socket.getdefaulttimeout, socket.setdefaulttimeout)
        self._keep(lambda: list(sys.meta_path), lambda path: sys.meta_path.__setitem__(slice(None), path))
        self._keep(lambda: list(sys.argv), lambda words: sys.argv.__setitem__(slice(None), words))
        self._keep(lambda: locale.setlocale(locale.LC_ALL), lambda name: _ignore(locale.setlocale, name))
        self._keep(_limits, _set_limits)
        self._keep(_handlers, _set_handlers)
        self._keep(lambda: _signal.pthread_sigmask(signal.SIG_BLOCK, ()), _set_mask)
        self._keep(lambda: signal.set_wakeup_fd(-1), lambda fd: None)
        self._keep(_hooks, _set_hooks)
        self._keep(lambda: list(warnings.filters), _set_filters)
        # These cannot be put back: another value means that the process has to go.
        self._fixed = [(read, read()) for read in (_identity, _priority)]
        self._own = [(vars(module), dict(vars(module))) for module in _WATCHED]
        self._threads = _thread._count()
        self._modules: dict[str, Any] = {}

    def _keep(self, read: Callable[[], T], restore: Callable[[T], None]) -> None:
        self._parts.append((read, restore, read()))

    def begin(self) -> None:
        """Before a task: which modules are loaded is part of what makes the process warm."""
        self._modules = dict(sys.modules)

    def clean(self) -> bool:
        """After a task. Nothing in here may raise, whatever the task did to the process."""
        try:
            _stop_alarms()
            broken = [part for part in self._parts if not self._restored(*part)]
            random.seed()
            return not broken and not self._left_over()
        except BaseException:
            return False

    @staticmethod
    def _restored(read: Callable[[], Any], restore: Callable[[Any], None], wanted: Any) -> bool:
        try:
            if read() != wanted:
                restore(wanted)
                return bool(read() == wanted)
        except Exception:
            return False
        return True

    def _left_over(self) -> bool:
        return (
            _thread._count() > self._threads
            or _has_children()
            or any(read() != wanted for read, wanted in self._fixed)
            or any(now != before for now, before in self._own)
            or any(sys.modules.get(name) is not module for name, module in self._modules.items())
        )


def adopt_orphans() -> None:
    """On Linux: what a task starts stays below this process, also when its own parent ends first."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            pr_set_child_subreaper = 36
            ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # one that has ended: nobody else will ask for it
    except ChildProcessError:
        return False
    return True


def _stop_alarms() -> None:
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
        if hasattr(signal, name):
            signal.setitimer(getattr(signal, name), 0)


def _set_environment(wanted: dict[str, str]) -> None:
    zone = os.environ.get("TZ")
    os.environ.clear()
    os.environ.update(wanted)
    if zone != wanted.get("TZ") and hasattr(time, "tzset"):
        time.tzset()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _set_umask(mask: int) -> None:
    os.umask(mask)


def _each_limit() -> Iterator[int]:
    with contextlib.suppress(ImportError):
        import resource

        for name in sorted(vars(resource)):
            if name.startswith("RLIMIT_"):
                yield getattr(resource, name)


_LIMITS = sorted(set(_each_limit()))


def _limits() -> list[tuple[int, int]]:
    if not _LIMITS:
        return []
    import resource

    return [resource.getrlimit(limit) for limit in _LIMITS]


def _set_limits(wanted: list[tuple[int, int]]) -> None:
    import resource

    for limit, pair in zip(_LIMITS, wanted, strict=True):
        if resource.getrlimit(limit) != pair:
            resource.setrlimit(limit, pair)


_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _handlers() -> list[Any]:
    return [_signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(wanted: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, wanted, strict=True):
        if handler is not None and _signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _set_mask(wanted: set[Any]) -> None:
    _signal.pthread_sigmask(signal.SIG_SETMASK, wanted)


def _hooks() -> list[Any]:
    return [sys.excepthook, sys.displayhook, sys.unraisablehook, sys.gettrace(), sys.getprofile()]


def _set_hooks(wanted: list[Any]) -> None:
    sys.excepthook, sys.displayhook, sys.unraisablehook, trace, profile = wanted
    sys.settrace(trace)
    sys.setprofile(profile)


def _set_filters(wanted: list[Any]) -> None:
    cast("list[Any]", warnings.filters)[:] = wanted


def _identity() -> tuple[Any, ...]:
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups(), os.getpgid(0)


def _priority() -> tuple[Any, ...]:
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return os.getpriority(os.PRIO_PROCESS, 0), affinity


def _ignore(call: Callable[..., Any], name: str) -> None:
    with contextlib.suppress(locale.Error):
        call(locale.LC_ALL, name)
