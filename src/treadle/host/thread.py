"""The core's thread: it owns the store's connection, and the core lives and dies on it.

As owner it turns the core. While another process owns the store it is a guest: commands become
inbox rows, their answers come as rows too, and it takes over as soon as the owner is gone (the lock is
freed by its death). Whatever was asked is answered by what the store says, and by nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any, Final

from treadle.kernel.errors import PASSING, EngineStopped, TreadleError, Unsupported
from treadle.kernel.limits import OWNER_POLL_MS
from treadle.runtime.commands import CheckpointSaved, Command, Operate, Write
from treadle.runtime.core import Core
from treadle.runtime.isolation import known
from treadle.runtime.messages import GUEST, message_to_bytes, reply_from_bytes, unusable
from treadle.runtime.ports import Ack, Item, Port
from treadle.store.owner import Tenure
from treadle.store.protocol import Store

from .turning import AGAIN, Turning

_ANSWERED: Final = (Item, Operate, Write, CheckpointSaved)
# How often a guest that waits for an answer looks for it.
_REPLY_POLL_S = 0.01
# How many commands a guest writes with one commit.
_POSTS_MAX = 256


class CoreThread(threading.Thread):
    def __init__(
        self,
        open_store: Callable[[], Store],
        make_core: Callable[[Store], Core],
        port: Port,
        lock: Tenure | None,
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
        self._turning: Turning | None = None
        # Who waits for the answers to messages that we left in the inbox as a guest, by key: for its
        # owner, or for us if we became it.
        self._asked: dict[str, Ack] = {}

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
        if self._turning is not None:
            self._turning.stop()

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
            if self.core is not None and self._turning is not None:
                self._turn(self.core, self._turning)
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
        poll_s = OWNER_POLL_MS / 1000 if self._lock is not None else None
        renew = self._lock.renew if self._lock is not None else _nothing
        beside = partial(self._answer_asked, store)
        self._turning = Turning(core, poll_s=poll_s, renew=renew, beside=beside)
        self.core = core
        self._pass_on(core)
        if self._stopping.is_set():
            self._turning.stop()

    def _pass_on(self, core: Core) -> None:
        while True:
            try:
                core.submit(self._commands.get_nowait())
            except Empty:
                return

    def turn_with(self, item: Item) -> bool:
        """Turns the core with an event on the calling thread, if it is idle (`Turning.turn_with`)."""
        turning = self._turning
        return turning is not None and turning.turn_with(item)

    def _turn(self, core: Core, turning: Turning) -> None:
        steps = turning.steps()
        command: Command | None = None
        with suppress(StopIteration):
            while True:
                wait_s = steps.send(command)
                command = None if wait_s is AGAIN else core.wait(wait_s)

    def _visit(self, store: Store) -> None:
        """Guest of another owner: hand commands over, bring their answers, watch for the owner's death."""
        assert self._lock is not None
        tried = 0.0
        while not self._stopping.is_set():
            if commands := self._next_commands():
                self._hand_over(store, commands)
            if self._asked:
                self._read_replies(store)
            if (now := time.monotonic()) - tried >= OWNER_POLL_MS / 1000:
                tried = now
                if self._lock.acquire():
                    self._become_owner(store)
                    return

    def _next_commands(self) -> list[Command]:
        """What there is to hand over, after a short wait if there is nothing."""
        found: list[Command] = []
        with suppress(Empty):
            found.append(self._commands.get(timeout=_REPLY_POLL_S if self._asked else OWNER_POLL_MS / 1000))
            while len(found) < _POSTS_MAX:
                found.append(self._commands.get_nowait())
        return found

    def _hand_over(self, store: Store, commands: list[Command]) -> None:
        """Writes commands for the owner, with one commit. What cannot be written is refused here."""
        messages: dict[str, bytes] = {}
        asked: dict[str, Ack] = {}
        answers: list[tuple[Ack, Any, TreadleError | None]] = []
        for command in commands:
            ack = command.ack if isinstance(command, _ANSWERED) else None
            try:
                key, body = _message(command)
            except Exception as error:
                if ack is not None:
                    answers.append((ack, None, known(error)))
                continue
            messages[key] = body
            if ack is not None:
                asked[key] = ack
        try:
            if messages:
                store.post(messages.items())
        except Exception as error:
            refused = known(error)
            answers += [(ack, None, refused) for ack in asked.values()]
        else:
            self._asked.update(asked)
        if answers:
            self._port.answer(answers)

    def _answer_asked(self, store: Store) -> None:
        """What we asked for as a guest, and decided as the owner."""
        if self._asked:
            self._read_replies(store)

    def _read_replies(self, store: Store) -> None:
        """Passes on the answers that are there by now. One that is not there says nothing: the message
        waits, and whoever owns the store answers it, be it us."""
        try:
            found = store.replies(list(self._asked))
        except PASSING:
            return  # the store does not answer now; it is asked again
        if not found:
            return
        self._port.answer([(self._asked.pop(key), *reply_from_bytes(body)) for key, body in found.items()])
        with suppress(*PASSING):  # what stays goes by its age
            store.forget_replies(list(found))

    def _abandon(self, failure: BaseException | None) -> None:
        """What we handed over stays in the inbox; whoever waits for its answer is told that none comes."""
        known = failure if isinstance(failure, TreadleError) else None
        error = known or EngineStopped(
            "the engine stopped before this was decided; look before you repeat it"
        )
        self._port.answer([(ack, None, error) for ack in self._asked.values()])
        self._asked.clear()


def _nothing() -> None:
    """A store in memory is nobody else's: there is nothing to renew."""


def _message(command: Command) -> tuple[str, bytes]:
    """A command as a message for the process that owns the store, under a key of its own."""
    if not isinstance(command, Item | Operate):
        raise Unsupported(
            "another process owns this store; do it there, or stop it first", code="STORE_OWNED"
        )
    if (error := unusable(command)) is not None:
        raise error
    return f"{GUEST}{token_hex(16)}", message_to_bytes(command)
