"""Changes that are no events of a run: deploy, claim, comment, fork, collect. Each has its commit to
itself, so that one which refuses itself halfway takes nothing else with it.

What a change decides, the row of the message that asked for it and the answer are one commit. An operation
that is answered by an event (a task is completed by a receipt) leaves its message to that event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.errors import PASSING, TreadleError

from .commands import HANDED_ON, Change, Operate
from .isolation import known

if TYPE_CHECKING:
    from .core import Core


def perform(core: Core, write: Change) -> None:
    try:
        value = core.operations.perform(core, write) if isinstance(write, Operate) else write.change(core)
    except PASSING:
        core.write_later(write)
        raise
    except Exception as error:
        _refuse(core, write, known(error))
        return
    if value is HANDED_ON:
        return
    core.settle(write, value, None)
    core.staged.writes.append(write)


def _refuse(core: Core, write: Change, error: TreadleError) -> None:
    """Nothing of it is kept but what it left in the diagnostics: a refusal is audited."""
    before = core.staged
    core.next_batch()
    core.staged.batch.diagnostics = before.batch.diagnostics
    core.staged.handed, core.staged.writes = before.handed, [*before.writes, write]
    core.staged.answers, core.staged.dispatched = before.answers, before.dispatched
    core.staged.revoked = before.revoked
    core.settle(write, None, error)
