"""How long one decision may take. A function that computes without an await holds up every other run of its engine.

A thread of its own looks on: after a second it tells the line, after ten it breaks the decision off, by an exception
that the interpreter raises in the deciding thread between two of its instructions. The run is then stalled, as it was
before. What a single call into C does for long is broken off when that returns.

No clock is read: patience is counted in ticks, so nothing of it can reach a decision.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from threading import Event, Thread, get_ident
from typing import Final

from .errors import DecisionTooLong
from .guard import Turn, Watched, begin, end, here
from .source import place_of

log = logging.getLogger("treadle.flow")

TICK_S: Final = 0.25
TICKS_TOLD: Final = 4
TICKS_MAX: Final = 40
# How many ticks without any decision before the thread sleeps until the next one.
TICKS_IDLE: Final = 8


class BrokenOff(BaseException):
    """Raised inside a decision that took too long. No `except Exception` holds it, and what holds it is broken
    off again."""


class Patience:
    def __init__(self, *, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._turns: dict[int, Turn] = {}
        self._began = 0
        self._asleep = True
        self._wake = Event()
        self._never = Event()
        self._thread: Thread | None = None

    def during(self, life: Watched, call: Callable[[Turn], None]) -> None:
        """Calls; breaks the call off if it takes too long, and leaves the offence with the life. Whatever happens,
        the turn is ended: the exception may come between any two instructions."""
        thread = get_ident()
        turn = Turn(life, thread, here.turn, sys.getprofile(), life.guarded and gc.isenabled())
        outer = self._turns.get(thread)
        self._turns[thread] = turn
        self._began += 1
        if self._asleep:
            self._rouse()
        error: BaseException | None = None
        called = ended = False
        while not ended:
            try:
                if not called:
                    called = True
                    begin(turn)
                    call(turn)
                # Whoever breaks a turn off says so before it looks whether the turn is over; we say that it is over
                # before we look: one of us sees the other.
                turn.over = True
                if turn.breaking:
                    self._spend(turn)
                end(turn)
                if outer is None:
                    self._turns.pop(thread, None)
                else:
                    self._turns[thread] = outer
                ended = True
            except BrokenOff:
                continue
            except BaseException as raised:
                error = raised
        if error is not None:
            raise error

    def _spend(self, turn: Turn) -> None:
        """Nothing is raised in this thread any more when this returns."""
        assert turn.quiet is not None
        turn.quiet.wait()
        _spend(turn.thread)

    # --- the thread that looks on ---

    def _rouse(self) -> None:
        self._asleep = False
        if self._thread is None or not self._thread.is_alive():  # none yet, or this is a forked child
            self._thread = Thread(target=self._look_on, name="treadle-patience", daemon=True)
            self._thread.start()
        self._wake.set()

    def _look_on(self) -> None:
        idle, began = 0, 0
        while True:
            self._never.wait(self._tick_s)
            turns = list(self._turns.values())
            for turn in turns:
                self._tick(turn)
            idle = 0 if turns or began != self._began else idle + 1
            began = self._began
            if idle >= TICKS_IDLE:
                self._wake.clear()
                self._asleep = True
                if self._turns:  # one that began meanwhile, and may not have seen that we sleep
                    self._asleep = False
                else:
                    self._wake.wait()
                idle = 0

    def _tick(self, turn: Turn) -> None:
        turn.ticks += 1
        if turn.ticks == TICKS_TOLD:
            log.warning(
                "%s: a decision takes long, at %s, and holds up every other run; compute in a step",
                turn.life.run,
                _place(turn),
            )
        if turn.ticks < TICKS_MAX:
            return
        if turn.quiet is None:
            turn.quiet = Event()
        turn.breaking = True
        if turn.over:
            turn.quiet.set()
            return
        place = _place(turn)
        turn.life.offence = turn.life.offence or DecisionTooLong(
            f"{turn.life.run}: the function did not come to an await in {TICKS_MAX * TICK_S:.0f} s, at {place}. "
            "Compute in a step: @flow.step; then retry the run",
            where=place,
            details={"seconds": int(TICKS_MAX * TICK_S)},
        )
        _raise_in(turn.thread, BrokenOff)


def _place(turn: Turn) -> str | None:
    return place_of(sys._current_frames().get(turn.thread))


def _raise_in(thread: int, kind: type[BrokenOff]) -> None:
    import ctypes  # the first to need it is the thread that looks on, and few do

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _spend(thread: int) -> None:
    """Has what may still be raised in this thread raised here. (To take it back instead leaves the interpreter of
    Python 3.11 looking for it for ever.)"""
    try:
        _raise_in(thread, BrokenOff)
        while True:
            pass
    except BrokenOff:
        return


PATIENCE: Final = Patience()
