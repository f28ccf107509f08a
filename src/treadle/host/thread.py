"""The core's thread: it owns the store's connection, and the core lives and dies on it.

As owner it turns the core. While another process owns the store it is a guest: commands become
inbox rows, and it takes over as soon as the owner is gone (the lock is freed by its death).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from secrets import token_hex

from treadle.kernel.errors import PASSING, EngineStopped, TreadleError, Unsupported
from treadle.kernel.limits import OWNER_POLL_MS
from treadle.runtime.commands import Command
from treadle.runtime.core import Core
from treadle.runtime.isolation import known
from treadle.runtime.messages import GUEST, item_to_bytes, unusable
from treadle.runtime.ports import Ack, Item, Port
from treadle.store.owner import OwnerLock
from treadle.store.protocol import Store

_IDLE_CHECKPOINT_TURNS = 40


class CoreThread(threading.Thread):
    def __init__(
        self,
        open_store: Callable[[], Store],
        make_core: Callable[[Store], Core],
        port: Port,
        lock: OwnerLock | None,
        *,
        on_stop: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(name="treadle-core", daemon=True)
        self._open_store = open_store
        self._make_core = make_core
        self._port = port
        self._lock = lock
        self._on_stop = on_stop
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._stopping = threading.Event()
        self.opened: SimpleQueue[BaseException | None] = SimpleQueue()
        self.core: Core | None = None
        # Held by whoever turns the core: this thread, or a worker's for one turn.
        self._turning = threading.Lock()
        self._failure: BaseException | None = None
        # Answers owed for messages that we left in the inbox as a guest: for its owner, or for us if
        # we became it. They are given once the message was read, and its commit is done.
        self._handed: dict[str, tuple[str, Ack]] = {}

    @property
    def owns(self) -> bool:
        return self.core is not None

    def submit(self, command: Command) -> None:
        core = self.core
        if core is not None:
            core.submit(command)
            return
        self._commands.put(command)
        if self.core is not None:
            # It became the owner in between, and may have looked into the queue before us.
            self._pass_on(self.core)

    def stop(self) -> None:
        self._stopping.set()
        if self.core is not None:
            self.core.wake()

    def run(self) -> None:
        failure: BaseException | None = None
        store: Store | None = None
        try:
            store = self._open_store()
            if self._lock is None or self._lock.acquire():
                self._become_owner(store)
            self.opened.put(None)
            if self.core is None:
                self._visit(store)
            if self.core is not None:
                self._turn(self.core)
        except BaseException as error:
            failure = error
            self.opened.put(error)
        finally:
            self._abandon(failure)
            if store is not None:
                store.close()
            if self._lock is not None:
                self._lock.release()
            self._on_stop(failure)

    def _become_owner(self, store: Store) -> None:
        store.own()
        core = self._make_core(store)
        self.core = core
        self._pass_on(core)

    def _pass_on(self, core: Core) -> None:
        while True:
            try:
                core.submit(self._commands.get_nowait())
            except Empty:
                return

    def turn_with(self, item: Item) -> bool:
        """Takes an event in and turns the core right here, on a worker's thread, if nobody else does.
        A run that goes step by step is then spared two changes of threads a step. False if the core
        is busy: then the event has to be submitted."""
        core = self.core
        if core is None or self._stopping.is_set() or not self._turning.acquire(blocking=False):
            return False
        try:
            core.accept(item)
            core.turn()
            if core.wait_ns() is not None:
                # There is more to do, or a time to wait for: the core's own thread must know.
                core.wake()
        except BaseException as error:
            self._failure = error
            core.wake()
        finally:
            self._turning.release()
        return True

    def _turn(self, core: Core) -> None:
        idle, polled = 0, 0.0
        poll_s = OWNER_POLL_MS / 1000 if self._lock is not None else None
        while not self._stopping.is_set():
            with self._turning:
                if self._failure is not None:
                    raise self._failure
                if poll_s is not None and (now := time.monotonic()) - polled >= poll_s:
                    core.poll()
                    polled = now
                turned = core.turn()
                if self._handed:
                    self._answer_read(core.store)
                if turned:
                    idle = 0
                    continue
                wait_ns = core.wait_ns()
            wait_s = None if wait_ns is None else wait_ns / 1e9
            command = core.wait(poll_s if wait_s is None else min(wait_s, poll_s or wait_s))
            with self._turning:
                core.accept(command)
                idle = 0 if command is not None else idle + 1
                if idle == _IDLE_CHECKPOINT_TURNS:
                    core.store.idle()
        with self._turning:
            while core.turn(intake=False):
                # What was handed in is finished; what time or a crash would bring waits for the next start.
                continue

    def _visit(self, store: Store) -> None:
        """Guest of another owner: hand commands over, watch for the owner's death."""
        assert self._lock is not None
        while not self._stopping.is_set():
            try:
                self._hand_over(store, self._commands.get(timeout=OWNER_POLL_MS / 1000))
            except Empty:
                self._answer_read(store)
                if self._lock.acquire():
                    self._become_owner(store)
                    return

    def _hand_over(self, store: Store, command: Command) -> None:
        ack = getattr(command, "ack", None)
        error: TreadleError | None = None
        if isinstance(command, Item) and (command.event is not None or command.notes):
            key = f"{GUEST}{token_hex(16)}"
            try:
                if (error := unusable(command)) is None:
                    store.post([(key, item_to_bytes(command))])
                    if ack is not None:
                        self._handed[key] = (command.run, ack)
                    return
            except Exception as found:
                error = known(found)
        elif not isinstance(command, Item):
            error = Unsupported(
                "another process owns this store; do it there, or stop it first", code="STORE_OWNED"
            )
        if ack is not None:
            self._port.answer([(ack, None, error)])

    def _answer_read(self, store: Store) -> None:
        """A message that is gone from the inbox was read by the owner, and what it decided is durable:
        accepted, unless the diagnostics say that it was refused."""
        try:
            gone = [key for key in self._handed if not store.inbox_has(key)]
            # What belongs to no run, and what could not even be read, is noted under no run's name.
            runs = dict.fromkeys([*(self._handed[key][0] for key in gone), ""] if gone else ())
            noted = [d for run in runs for d in store.diagnostics(run) if "message" in d]
        except PASSING:
            return  # the store does not answer now; it is asked again
        refused = {d["message"]: d["error"] for d in noted}
        for key in gone:
            error = TreadleError.from_value(refused[key]) if key in refused else None
            _, ack = self._handed.pop(key)
            self._port.answer([(ack, None if error else {"posted": key}, error)])

    def _abandon(self, failure: BaseException | None) -> None:
        """What we handed over stays in the inbox; whoever waits for its answer is told that none comes."""
        known = failure if isinstance(failure, TreadleError) else None
        error = known or EngineStopped(
            "the engine stopped before this was decided; look before you repeat it"
        )
        self._port.answer([(ack, None, error) for _, ack in self._handed.values()])
        self._handed.clear()
