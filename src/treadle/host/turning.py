"""Who turns the core, and when: its own thread, or a worker's for one turn.

A worker that finished the only thing there was to do turns the core right there, which spares two changes of threads
a step. The lock says who does; whoever finds it taken leaves the event in the queue, which wakes the core's thread.
A turn on another thread may leave something to do, or a time to wait for: then the core's thread is woken, because
it went to sleep knowing nothing of that. The simulator drives this very object, with its threads as steps of a
schedule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Final

from treadle.runtime.commands import Command
from treadle.runtime.core import Core
from treadle.runtime.ports import Item

_IDLE_CHECKPOINT_TURNS: Final = 40
# The core's thread has more to do: it goes on without waiting for a command.
AGAIN: Final = -1.0


class Turning:
    def __init__(
        self,
        core: Core,
        *,
        poll_s: float | None,
        renew: Callable[[], None] = lambda: None,
        beside: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`poll_s`: how often to `renew` what makes the store ours, and to look for what other processes wrote;
        None if there are none. `beside` is called after every turn, on the thread of the core."""
        self._core = core
        self._poll_s = poll_s
        self._renew = renew
        self._beside = beside
        self._monotonic = monotonic
        # Held by whoever turns the core.
        self._lock = threading.Lock()
        self._stopping = False
        # Whether somebody said that something is there for us.
        self._noticed = False
        # The commit that is held open, as the core's thread saw it before it went to sleep.
        self._watched = 0
        # What happened to the core on a worker's thread; its own thread ends with it.
        self.failure: BaseException | None = None

    def stop(self) -> None:
        self._stopping = True
        self._core.wake()

    def notice(self) -> None:
        """Something may be there: it is looked for at once. From any thread."""
        self._noticed = True
        self._core.wake()

    def turn_with(self, item: Item) -> bool:
        """Takes an event in and turns the core on the calling thread. False if the core is busy: then the
        event has to be submitted."""
        core = self._core
        if self._stopping or not self._lock.acquire(blocking=False):
            return False
        try:
            taken = core.taken
            core.accept(item)
            turned = core.turn()
            if core.taken != taken:
                # The core's own thread may have been woken for what was taken from under it; a wait that is woken for
                # nothing at its deadline goes on for ever (SimpleQueue of CPython 3.11).
                self._hand_over()
            # A commit that is held open is left to this thread, once the core's own knows how long that may take.
            if core.staging.staged.held and (held := core.held_open) and held == self._watched:
                return True
            if not turned or core.wait_ns() is not None:
                self._hand_over()
        except BaseException as error:
            self.failure = error
            self._hand_over()
        finally:
            self._lock.release()
        return True

    def _hand_over(self) -> None:
        """What is left is for the core's own thread."""
        self._core.wake()

    def _is_called(self, poll_s: float | None) -> bool:
        """Whether we were woken for what is ours and not the core's; a turn may have taken that wake with all else."""
        return self._stopping or (self._noticed and poll_s is not None)

    def steps(self) -> Generator[float | None, Command | None, None]:
        """The life of the core's own thread, a turn at a time: yields how long it waits for a command (None:
        for ever), and is sent the command that came, if one did."""
        core, poll_s = self._core, self._poll_s
        idle, polled = 0, -1e9
        while not self._stopping:
            with self._lock:
                if self.failure is not None:
                    raise self.failure
                if poll_s is not None and ((now := self._monotonic()) - polled >= poll_s or self._noticed):
                    self._noticed = False
                    self._renew()
                    core.poll()
                    polled = now
                turned = core.turn()
                self._beside()
                wait_ns = core.wait_ns()
                self._watched = core.held_open
            if turned:
                idle = 0
            if (turned and wait_ns == 0) or self._is_called(poll_s):
                yield AGAIN
                continue
            wait_s = None if wait_ns is None else wait_ns / 1e9
            command = yield poll_s if wait_s is None else min(wait_s, poll_s or wait_s)
            with self._lock:
                core.accept(command)
                idle = 0 if command is not None else idle + 1
                if idle == _IDLE_CHECKPOINT_TURNS:
                    core.store.idle()
        with self._lock:
            while core.turn(intake=False):
                # What was handed in is finished; what time or a crash would bring waits for the next start.
                continue
            core.hot.drop_all()
