"""One command that cannot be dealt with, kept from stopping all the others.

What is wrong with a command is refused where it is found, with its own error. This is for what was
not foreseen: a value that the database does not take, a bug. The core finds out which command it was
(`Core._single_out`), and here that one is turned away: its caller is told; what has happened outside
and cannot be refused leaves its run as it is, as a run that cannot be read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import REFUSABLE
from treadle.kernel.run import error_of

from .commands import Change, CheckpointSaved, Command, FrameSent, Operate, Progress, Write
from .messages import GUEST
from .ports import Item

if TYPE_CHECKING:
    from .core import Core

log = logging.getLogger("treadle.core")


def known(error: Exception) -> TreadleError:
    """An error of ours for whoever is told."""
    if isinstance(error, TreadleError):
        return error
    found = TreadleError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def turn_away(core: Core, command: Command, error: Exception) -> None:
    """A command that could not even be taken in: nothing of it is anywhere."""
    log.error("a command was turned away", exc_info=error)
    ack = getattr(command, "ack", None)
    if ack is not None:
        core.reply(ack, None, known(error))


def expel(
    core: Core, culprit: Item | Change | Progress | None, error: TreadleError, read: Sequence[str]
) -> None:
    """Stages what is left of a command that failed alone: its refusal. `read` are the messages that it
    had come from."""
    log.error("a command was turned away: %s", error, exc_info=error.__cause__)
    if isinstance(culprit, Item):
        core.staged.taken.append(culprit)
        if (
            culprit.ack is not None
            or culprit.create is not None
            or (culprit.inbox or "").startswith(GUEST)
            or isinstance(culprit.event, REFUSABLE)
        ):
            core.refuse(culprit, error)
        else:
            core.quarantine(culprit, error)
        return
    told = {"error": error_of(error)}
    for key in read:
        core.diagnose("", "inbox.unreadable", {**told, "key": key})
        core.dispose(key, None, error)
    if isinstance(culprit, FrameSent | CheckpointSaved):
        core.diagnose(culprit.run, "refused", {**told, "intent": culprit.intent})
    if isinstance(culprit, Operate):
        core.diagnose(culprit.home, "refused", {**told, "operation": culprit.name})
    if isinstance(culprit, Operate | Write):
        core.settle(culprit, None, error)
    elif isinstance(culprit, CheckpointSaved) and culprit.ack is not None:
        core.staged.answers.append((culprit.ack, None, error))
