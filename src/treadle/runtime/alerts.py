"""Alerts: a run that fails, stalls or is late starts a workflow that somebody named for that.

The start is part of the commit that holds the occasion, so there is one for each, whoever dies when. A run that an
alert started, and whatever that starts, raises none: alerts never set off one another.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.limits import RUN_ID_CHARS_MAX
from treadle.kernel.model import Started
from treadle.kernel.run import Step, error_of
from treadle.kernel.state import RunState
from treadle.kernel.values import Value
from treadle.lang.alerts import Alerts
from treadle.lang.duration import instant_text
from treadle.store.rows import TimerRow

from .commands import Deliver
from .hot import Hot
from .mail import Mail
from .ports import NewRun
from .registry import Registry
from .staging import Staging
from .timers import LATE, Timers

if TYPE_CHECKING:
    from .desk import Desk


# The option that runs of alerts carry, and hand on to what they start.
MARK: Final = "alert"


class AlertBell:
    def __init__(
        self,
        registry: Registry,
        staging: Staging,
        mail: Mail,
        timers: Timers,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._registry = registry
        self._staging = staging
        self._mail = mail
        self._timers = timers
        self._entropy = entropy

    def heed(self, hot: Hot, step: Step, alerts: Alerts) -> None:
        """The status of a run that has alerts has changed, or it has begun."""
        state = hot.state
        if MARK in state.options:
            return
        if alerts.late is not None:
            self._watch(hot, step, alerts.after_ns)
        workflow = {"failed": alerts.failed, "stalled": alerts.stalled}.get(step.status)
        if workflow is None:
            return
        try:
            item = start(self._registry, state, workflow, step.status, entropy=self._entropy)
        except PASSING:
            raise
        except TreadleError as error:
            self._staging.diagnose(
                state.id, "alert.refused", {"workflow": workflow, "error": error_of(error)}
            )
            return
        self._mail.post(item)

    def _watch(self, hot: Hot, step: Step, after_ns: int) -> None:
        """A run that has begun is late after a while; one that has ended is not any more."""
        batch, key = self._staging.batch, f"{LATE}{hot.no}"
        if step.seq == 1 and not step.ended:
            batch.timers[key] = TimerRow(key, hot.no, step.at_ns + after_ns, True, hot.state.id)
            self._timers.arm(step.at_ns + after_ns)
        elif step.ended and batch.timers.pop(key, None) is None:
            batch.timers_done[key] = hot.no


def late(desk: Desk, row: TimerRow) -> None:
    """A run has not ended in time."""
    desk.belongs(row.run_id)
    desk.batch.timers_done[row.intent] = row.run
    hot = desk.hot.get(row.run_id)
    if hot is None or hot.state.ended:
        return
    workflow = desk.registry.alerts(hot.state.definition, is_root=hot.state.parent is None).late
    if workflow is None:
        return
    try:
        desk.post(start(desk.registry, hot.state, workflow, "late", entropy=desk.entropy))
    except PASSING:
        raise
    except TreadleError as error:
        desk.diagnose(row.run_id, "alert.refused", {"workflow": workflow, "error": error_of(error)})


def start(
    registry: Registry, state: RunState, workflow: str, occasion: str, *, entropy: Callable[[int], bytes]
) -> Deliver:
    """The start of an alert's run: its id is that of the occasion."""
    row = registry.resolve(workflow)
    about = {"run": state.id, "occasion": occasion, "seq": state.seq}
    input: dict[str, Value] = {
        **about,
        "workflow": state.workflow,
        "version": state.version,
        "reference": state.reference,
        "started_at": instant_text(state.started_ns),
        "error": state.error,
    }
    options: dict[str, Value] = {MARK: about}
    event = Started(
        definition=row.digest,
        input=registry.prepare(row, input, options),
        seed=entropy(16),
        machine=registry.load(row.digest).machine.version,
        reference=state.reference,
        options=options,
    )
    run = f"{occasion}!{state.id}" if occasion == "late" else f"{occasion}-{state.seq}!{state.id}"
    if len(run) > RUN_ID_CHARS_MAX:
        run = f"{occasion}-{state.seq}!{sha256(state.id.encode()).hexdigest()}"
    create = NewRun(row.dialect, row.name, row.version, row.digest)
    return Deliver(run, event, create=create, derived=True, message=f"alert:{run}")
