"""Commands that are decided in another process: left there as messages, their answers brought as rows.

Whatever was asked is answered by what the store says, and by nothing else: an answer that is not there says nothing,
the message waits, and whoever decides it answers it, be it us by then.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import PASSING, EngineStopped, TreadleError, Unsupported
from treadle.runtime.commands import (
    CheckpointSaved,
    Command,
    Deliver,
    Inspect,
    Operate,
    message_to_bytes,
    reply_from_bytes,
)
from treadle.runtime.isolation import known
from treadle.runtime.mail import unusable
from treadle.runtime.ports import Ack, Answer
from treadle.store.rows import GUEST, Message

if TYPE_CHECKING:
    from treadle.runtime.ports import Port
    from treadle.store.protocol import Store


_ANSWERED: Final = (Deliver, Operate, Inspect, CheckpointSaved)
# How often answers are looked for that nobody announces.
_LOOK_S: Final = 0.25
# What those are told whose engine stopped under them.
UNDECIDED: Final = "the engine stopped before this was decided; look before you repeat it"


def _token(bytes_: int) -> str:
    return os.urandom(bytes_).hex()


class Correspondence:
    """Those in this process who wait for others' answers. On the core's thread, but for `announced`."""

    def __init__(
        self,
        port: Port,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        token: Callable[[int], str] = _token,
    ) -> None:
        self.asker = token(4)
        self._token = token
        self._port = port
        self._monotonic = monotonic
        # Who waits for an answer, by the key of what was asked.
        self.waiting: dict[str, Ack] = {}
        self._outgoing: deque[Deliver | Operate] = deque()
        self._announced = False
        self._looked = 0.0

    # --- what the core needs of others (`ports.Elsewhere`) ---

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        self.waiting.update(asked)

    def forward(self, commands: list[Deliver | Operate]) -> None:
        self._outgoing.extend(commands)

    # --- bringing them there, and their answers back ---

    def announced(self) -> None:
        """An answer is there; from any thread."""
        self._announced = True

    def go_on(self, store: Store) -> None:
        """After every turn: leaves what is to be left, brings the answers that are there."""
        if self._outgoing:
            commands: list[Deliver | Operate] = []
            while self._outgoing:
                commands.append(self._outgoing.popleft())
            self.hand_over(store, commands)
        if self.waiting and (self._announced or self._monotonic() - self._looked >= _LOOK_S):
            self._announced = False
            self._looked = self._monotonic()
            self.read_replies(store)

    def hand_over(self, store: Store, commands: Sequence[Command]) -> None:
        """Writes commands for others, with one commit. What cannot be written is refused here."""
        messages: list[Message] = []
        asked: dict[str, Ack] = {}
        answers: list[Answer] = []
        for command in commands:
            ack = command.ack if isinstance(command, _ANSWERED) else None
            try:
                message = self._message(command)
            except Exception as error:
                if ack is not None:
                    answers.append((ack, None, known(error)))
                continue
            messages.append(message)
            if ack is not None:
                asked[message.key] = ack
        try:
            if messages:
                store.post(messages)
        except Exception as error:
            refused = known(error)
            answers += [(ack, None, refused) for ack in asked.values()]
        else:
            self.waiting.update(asked)
        if answers:
            self._port.answer(answers)

    def _message(self, command: Command) -> Message:
        """A command as a message for whoever decides it, under a key of its own."""
        if not isinstance(command, Deliver | Operate):
            raise Unsupported(
                "another process owns this store; do it there, or stop it first", code="STORE_OWNED"
            )
        if (error := unusable(command)) is not None:
            raise error
        key = f"{GUEST}{self.asker}:{self._token(12)}"
        if isinstance(command, Operate):
            return Message(key, command.written or message_to_bytes(command), command.home)
        return Message(key, message_to_bytes(command), command.run)

    def read_replies(self, store: Store) -> None:
        """Passes on the answers that are there by now."""
        try:
            found = store.replies(list(self.waiting))
        except PASSING:
            return  # the store does not answer now; it is asked again
        if not found:
            return
        self._port.answer([(self.waiting.pop(key), *reply_from_bytes(body)) for key, body in found.items()])
        with suppress(*PASSING):  # what stays goes by its age
            store.forget_replies(list(found))

    def abandon(self, failure: BaseException | None) -> None:
        """What was left stays in the inbox; whoever waits for its answer is told that none comes."""
        told = failure if isinstance(failure, TreadleError) else None
        error = told or EngineStopped(UNDECIDED)
        never = [command.ack for command in self._outgoing if command.ack is not None]
        self._port.answer([(ack, None, error) for ack in (*self.waiting.values(), *never)])
        self.waiting.clear()
        self._outgoing.clear()
