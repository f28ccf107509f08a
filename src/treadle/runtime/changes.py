"""Changes that are no events of a run: deploy, claim, comment, fork, collect. Each has its commit to
itself, so that one which refuses itself halfway takes nothing else with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.run import error_of

from .commands import HANDED_ON, Write
from .isolation import known
from .ports import Item

if TYPE_CHECKING:
    from .core import Core


def perform(core: Core, write: Write) -> None:
    try:
        value = write.change(core)
    except PASSING:
        core.write_later(write)
        raise
    except Exception as error:
        _refuse(core, write, known(error))
        return
    if value is HANDED_ON:
        return
    if write.ack is not None:
        core.staged.answers.append((write.ack, value, None))
    core.staged.writes.append(write)


def _refuse(core: Core, write: Write, error: TreadleError) -> None:
    """Nothing of it is kept but what it left in the diagnostics: a refusal is audited."""
    before = core.staged
    core.next_batch()
    core.staged.batch.diagnostics = before.batch.diagnostics
    core.staged.batch.inbox_done = before.batch.inbox_done
    core.staged.answers, core.staged.writes = before.answers, before.writes
    core.staged.dispatched, core.staged.revoked = before.dispatched, before.revoked
    if write.ack is not None:
        core.staged.answers.append((write.ack, None, error))


def operate(core: Core, item: Item) -> Any:
    """An operation that came as data, because its sender may be another process."""
    if item.inbox is not None:
        core.staged.batch.inbox_done.append(item.inbox)
    try:
        return core.operations(core, item.notes["op"], item.ack)
    except PASSING:
        raise
    except Exception as error:
        if item.inbox is not None:
            core.diagnose("", "refused", {"error": error_of(error), "message": item.inbox})
        raise
