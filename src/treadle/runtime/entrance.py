"""Where commands come in, and go to whoever decides them: here, or elsewhere. On the thread that turns the core."""

from __future__ import annotations

import logging

from .changes import Changes
from .commands import CheckpointSaved, Command, Elsewhere, FrameSent, Operate, Progress, Write
from .isolation import known
from .mail import Mail
from .messages import unusable
from .ports import Item, Port
from .progress import ProgressQueue, stale
from .shards import Held

log = logging.getLogger("treadle.core")


class Entrance:
    def __init__(
        self,
        port: Port,
        held: Held,
        elsewhere: Elsewhere,
        changes: Changes,
        progress: ProgressQueue,
        mail: Mail,
    ) -> None:
        self._port = port
        self._held = held
        self._elsewhere = elsewhere
        self._changes = changes
        self._progress = progress
        self._mail = mail

    def accept(self, command: Command | None) -> None:
        """Takes a command in."""
        if command is None:
            return
        try:
            self._accept(command)
        except Exception as error:
            # Nothing of it is anywhere.
            log.error("a command was turned away", exc_info=error)
            if not isinstance(command, FrameSent) and command.ack is not None:
                self._port.answer([(command.ack, None, known(error))])

    def _accept(self, command: Command) -> None:
        if type(command) is Item or type(command) is Operate:
            if (error := unusable(command)) is not None:
                if command.ack is not None:
                    self._port.answer([(command.ack, None, error)])
            elif self._held.several and not self.is_here(command):
                self._elsewhere.forward([command])
            elif isinstance(command, Operate):
                self._changes.add(command)
            else:
                self._mail.post(command)
        elif type(command) is Write:
            self._changes.add(command)
        else:
            assert isinstance(command, FrameSent | CheckpointSaved)
            if self._held.several and not self.is_here(command):
                self._port.answer(stale([command]))
            else:
                self._progress.add(command)

    def is_here(self, command: Item | Operate | Progress) -> bool:
        """Whether something is decided here: it lives on a shard that is ours."""
        return not self._held.several or self._held.holds(
            command.home if isinstance(command, Operate) else command.run
        )
