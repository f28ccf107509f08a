"""The core's thread: it owns the store's connection, and cores live and die on it.

On a file there is one owner. While another process is that it is a guest: commands become inbox rows, their answers
come as rows too, and it takes over as soon as the owner is gone (the lock is freed by its death). On a server it is
one of several members: it has a core all the time, which drives the shards that it holds (`sharing.py`), be they none.
A store that does not answer for a while ends the core of a member, and the next one goes on where it was. Workers'
threads turn the core, too, each for one turn (`Turning`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from treadle.kernel.errors import PASSING, EngineStopped, OwnershipLost, TreadleError
from treadle.kernel.limits import OWNER_POLL_MS
from treadle.runtime.commands import Command, Deliver, FrameSent, Inspect
from treadle.runtime.core import Core
from treadle.store.member_reads import MEMBERS

from .asking import Correspondence
from .haste import LOOK_S

if TYPE_CHECKING:
    from treadle.runtime.commands import Elsewhere
    from treadle.runtime.ports import Port
    from treadle.store.members import Membership
    from treadle.store.owner import Tenure
    from treadle.store.protocol import Store

    from .sharing import Sharing, WorkPort

log = logging.getLogger("treadle")

# How often a guest that waits for an answer looks for it.
_REPLY_POLL_S = 0.01
# How many commands a guest writes with one commit.
_POSTS_MAX = 256
# How long a member waits before it opens a store again that did not answer.
_PAUSE_S: Final = (0.1, 2.0)
# What ends a core, and not its member.
_BEGINS_ANEW: Final[tuple[type[TreadleError], ...]] = (*PASSING, OwnershipLost)
# Something may be there for anybody (`store/postgres.py: Listener`).
EVERYTHING: Final = "*"
_IDLE_CHECKPOINT_TURNS: Final = 40
# So often the core's thread sleeps on for two polls, because workers who turn the core do them; then it sees to all of its
# errands again.
_SLEEPS_ON_MAX: Final = 5
# The core's thread has more to do: it goes on without waiting for a command.
AGAIN: Final = -1.0


if TYPE_CHECKING:

    class Listens(Protocol):
        def start(self) -> None: ...
        def stop(self) -> None: ...


class Together(msgspec.Struct, frozen=True):
    """What a thread needs as one of several members."""

    member: Membership
    bus: WorkPort
    listen: Callable[[Callable[[set[str]], None]], Listens | None]
    # The core is gone, and another comes: whoever waits for its answer is told, its work is nobody's.
    interrupted: Callable[[TreadleError], None]
    # Shards came or went.
    moved: Callable[[], None]
    # It was silent past its lease, or shards were taken from it: what others know of it may be forgotten.
    was_away: Callable[[], None]


class Turning:
    """Who turns the core, and when: its own thread, or a worker's for one turn.

    A worker that finished the only thing there was to do turns the core right there, which spares two changes of threads
    a step. The lock says who does; whoever finds it taken leaves the event in the queue, which wakes the core's thread.
    A turn on another thread may leave something to do, or a time to wait for: then the core's thread is woken, because
    it went to sleep knowing nothing of that. Whoever turns the core polls when it is time: while workers do, the core's
    thread sleeps on, for it would take the chain of a run out of their hands. The simulator drives this very object,
    with its threads as steps of a schedule."""

    def __init__(
        self,
        core: Core,
        *,
        poll_s: float | None,
        renew: Callable[[], None] | None = None,
        beside: Callable[[], None] = lambda: None,
        tend: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`poll_s`: how often to `renew` what makes the store ours, and to look for what other processes wrote;
        None if there are none. `beside` is called after every turn, on the thread of the core; `tend` as often as the
        store is polled, by whoever turns the core."""
        self._core = core
        self._poll_s = poll_s
        self._renew = renew
        self._beside = beside
        self._tend = tend
        self._monotonic = monotonic
        # Held by whoever turns the core.
        self._lock = threading.Lock()
        self._stopping = False
        # Whether somebody said that something is there for us, and whether a worker left us something.
        self._noticed = self._is_handed = False
        # When the store was last polled. What has to be renewed is renewed by the core's own thread alone.
        self._polled = -1e9
        self._pause_s = LOOK_S if poll_s is None else poll_s
        self._others_poll = renew is None
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

    def turn_with(self, item: Deliver) -> bool:
        """Takes an event in and turns the core on the calling thread. False if the core is busy: then the
        event has to be submitted."""
        core = self._core
        if self._stopping or not self._lock.acquire(blocking=False):
            return False
        try:
            taken = core.taken
            core.accept(item)
            if self._others_poll:
                self._poll()
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
        self._is_handed = True
        self._core.wake()

    def _poll(self) -> None:
        """Under the lock. Makes sure of what makes the store ours, and looks for what others wrote, when it is time."""
        now = self._monotonic()
        if now - self._polled < self._pause_s and not self._noticed:
            return
        self._tend()
        if self._poll_s is not None:
            self._noticed = False
            if self._renew is not None:
                self._renew()
            self._core.poll()
        self._polled = now

    def _workers_poll(self) -> bool:
        """Whether workers have polled just now, and left nothing to the core's own thread."""
        left = self._is_handed or self._noticed or self._stopping or self.failure is not None
        return self._others_poll and not left and self._monotonic() - self._polled < (self._poll_s or 0)

    def _is_called(self, poll_s: float | None) -> bool:
        """Whether we were woken for what is ours and not the core's; a turn may have taken that wake with all else."""
        return self._stopping or (self._noticed and poll_s is not None)

    def steps(self) -> Generator[float | None, Command | None, None]:
        """The life of the core's own thread, a turn at a time: yields how long it waits for a command (None:
        for ever), and is sent the command that came, if one did."""
        core, poll_s = self._core, self._poll_s
        idle = 0
        while not self._stopping:
            with self._lock:
                if self.failure is not None:
                    raise self.failure
                self._is_handed = False
                self._poll()
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
            left = _SLEEPS_ON_MAX
            while command is None and wait_s is None and left and self._workers_poll():
                left -= 1
                command = yield 2 * (poll_s or 0)
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


class CoreThread(threading.Thread):
    def __init__(
        self,
        open_store: Callable[[], Store],
        make_core: Callable[[Store, Elsewhere], Core],
        port: Port,
        lock: Tenure | None,
        *,
        on_open: Callable[[BaseException | None], None],
        on_stop: Callable[[BaseException | None], None],
        tend: Callable[[], None] = lambda: None,
        together: Together | None = None,
    ) -> None:
        super().__init__(name="treadle-core", daemon=True)
        self._open_store = open_store
        self._make_core = make_core
        self._lock = lock
        self._together = together
        # Told once the store is open, or why it cannot be.
        self._on_open = on_open
        self._on_stop = on_stop
        self._tend = tend
        self._commands: SimpleQueue[Command] = SimpleQueue()
        # Set when it is to end; `_is_ending` says the same to those who ask for every command.
        self._stopping, self._is_ending = threading.Event(), False
        self.core: Core | None = None
        self.sharing: Sharing | None = None
        # Who turns the core; workers may (`Turning.turn_with`).
        self.turning: Turning | None = None
        self._begun = False
        self._port = port
        self._asked = Correspondence(port)

    def submit(self, command: Command) -> None:
        if self._is_ending:
            # Nothing more is taken; or those who go on calling would keep it from its end.
            raise EngineStopped()
        core = self.core
        if core is not None:
            core.submit(command)
            return
        self._commands.put(command)
        if self.core is not None:
            # There is a core since then, and it may have looked into the queue before us.
            self._pass_on(self.core)

    def decides(self, command: Command) -> bool:
        """Whether a command would be decided here, as things stand."""
        core = self.core
        return core is not None and (isinstance(command, Inspect) or core.is_here(command))

    def stop(self) -> None:
        self._is_ending = True
        self._stopping.set()
        if self.turning is not None:
            self.turning.stop()

    def run(self) -> None:
        failure: BaseException | None = None
        try:
            if self._together is None:
                self._be_owner_or_guest()
            else:
                self._be_member(self._together)
        except BaseException as error:
            failure = error
            self._on_open(error)
        finally:
            self._asked.abandon(failure)
            if self._lock is not None:
                self._lock.release()
            self._on_stop(failure)

    # --- on a file: one owner, and guests ---

    def _be_owner_or_guest(self) -> None:
        store = self._open_store()
        try:
            if self._lock is None or self._lock.acquire():
                self._become_owner(store)
            self._on_open(None)
            if self.core is None:
                self._visit(store)
            if self.core is not None and self.turning is not None:
                self._turn(self.core, self.turning)
        finally:
            store.close()

    def _become_owner(self, store: Store) -> None:
        store.own()
        core = self._make_core(store, self._asked)
        poll_s = OWNER_POLL_MS / 1000 if self._lock is not None else None
        turning = Turning(core, poll_s=poll_s, beside=partial(self._beside, store), tend=self._tend)
        self._go_on_with(core, turning)

    def _go_on_with(self, core: Core, turning: Turning) -> None:
        self.turning = turning
        self.core = core
        self._pass_on(core)
        if self._stopping.is_set():
            turning.stop()

    def _beside(self, store: Store) -> None:
        """What we asked for as a guest, and decided as the owner."""
        if self._asked.waiting:
            self._asked.read_replies(store)

    def _visit(self, store: Store) -> None:
        """Guest of another owner: hand commands over, bring their answers, watch for the owner's death."""
        assert self._lock is not None
        tried = 0.0
        while not self._stopping.is_set():
            if commands := self._next_commands():
                was_silent = not self._asked.waiting
                self._asked.hand_over(store, commands)
                if was_silent and self._asked.waiting:
                    # Who is asked has the time to look, and to answer, before it is taken for dead.
                    tried = time.monotonic() + OWNER_POLL_MS / 1000
            if self._asked.waiting:
                self._asked.read_replies(store)
            if (now := time.monotonic()) - tried >= OWNER_POLL_MS / 1000:
                tried = now
                # Nobody answers in a file that is gone.
                store.stay()
                if self._lock.acquire():
                    self._become_owner(store)
                    return

    def _next_commands(self) -> list[Command]:
        """What there is to hand over, after a short wait if there is nothing."""
        found: list[Command] = []
        with suppress(Empty):
            found.append(
                self._commands.get(timeout=_REPLY_POLL_S if self._asked.waiting else OWNER_POLL_MS / 1000)
            )
            while len(found) < _POSTS_MAX:
                found.append(self._commands.get_nowait())
        return found

    # --- on a server: one of several members ---

    def _be_member(self, together: Together) -> None:
        pause = _PAUSE_S[0]
        try:
            while not self._stopping.is_set():
                try:
                    self._share(together)
                except _BEGINS_ANEW as error:
                    if not self._begun:
                        raise  # whoever starts an engine is told that it cannot be
                    log.warning("%s. This member begins anew when it answers again", error.message)
                    together.interrupted(error)
                    self._turn_away(error)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, _PAUSE_S[1])
                else:
                    pause = _PAUSE_S[0]
        finally:
            together.member.leave()

    def _share(self, together: Together) -> None:
        """The life of one core of a member, from an open store to its end."""
        from .sharing import Sharing  # one who has a file to itself shares nothing

        store = self._open_store()
        listener: Listens | None = None
        try:
            core = self._make_core(store, self._asked)
            sharing = Sharing(
                core, together.member, together.bus, moved=together.moved, was_away=together.was_away
            )
            self.sharing = sharing
            sharing.look()
            turning = Turning(
                core,
                poll_s=OWNER_POLL_MS / 1000,
                renew=sharing.renew,
                beside=partial(self._asked.go_on, store),
                tend=self._tend,
            )
            listener = together.listen(partial(self._heard, core, turning))
            self._go_on_with(core, turning)
            if listener is not None:
                listener.start()
            self._begun = True
            self._on_open(None)
            self._turn(core, turning)
            self._asked.go_on(store)
        finally:
            self.core = self.turning = None
            if listener is not None:
                listener.stop()
            with suppress(TreadleError):
                store.close()

    def _heard(self, core: Core, turning: Turning, told: Iterable[str]) -> None:
        """What others say is there, on the thread that listens."""
        words, everything = set(told), EVERYTHING in told
        if (everything or MEMBERS in words) and self.sharing is not None:
            self.sharing.pace.hurry()
        if everything or f"r{self._asked.asker}" in words:
            self._asked.announced()
        # In one go: the core's thread gains and loses shards meanwhile.
        if everything or any(f"i{shard}" in words for shard in tuple(core.store.held)):
            core.store.notice()
        elif not words & {MEMBERS, f"r{self._asked.asker}"}:
            return
        turning.notice()

    def _turn_away(self, error: TreadleError) -> None:
        """What came while there was no core is not done behind the back of those who were told that it is not."""
        with suppress(Empty):
            while True:
                command = self._commands.get_nowait()
                if not isinstance(command, FrameSent) and command.ack is not None:
                    self._port.answer([(command.ack, None, error)])

    # --- both ---

    def _pass_on(self, core: Core) -> None:
        while True:
            try:
                core.submit(self._commands.get_nowait())
            except Empty:
                return

    def _turn(self, core: Core, turning: Turning) -> None:
        steps = turning.steps()
        command: Command | None = None
        with suppress(StopIteration):
            while True:
                wait_s = steps.send(command)
                command = None if wait_s is AGAIN else core.wait(wait_s)
