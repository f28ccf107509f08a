"""Shards that come and go, between turns: what of their runs is taken up here, forgotten, or sent after them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from treadle.kernel.model import Frame, Receipt

from .changes import Changes, CoreDesk
from .commands import Deliver, Operate, Own
from .intake import Intake, ProgressQueue

if TYPE_CHECKING:
    from treadle.store.protocol import Store

    from .commands import Elsewhere


class Handover:
    def __init__(
        self,
        store: Store,
        desk: CoreDesk,
        elsewhere: Elsewhere,
        changes: Changes,
        progress: ProgressQueue,
        intake: Intake,
        take_in: Callable[[], None],
    ) -> None:
        """`take_in` has the core take in what was submitted to it."""
        self._store = store
        self._desk = desk
        self._elsewhere = elsewhere
        self._changes = changes
        self._progress = progress
        self._intake = intake
        self._take_in = take_in

    def gain(self, shards: Mapping[int, int]) -> None:
        """Shards were claimed for this core, at these epochs: it takes up what was left there."""
        self._store.hold(shards)
        self._desk.held.gain(shards)
        self._intake.gain(shards)

    def settling(self) -> set[int]:
        """The shards of whose runs something was done outside that is not durable yet."""
        self._take_in()
        desk = self._desk
        shards = {desk.held.shard_of(item.run) for item in desk.mail if isinstance(item.event, Receipt)}
        return shards | desk.staging.batch.shards

    def lose(self, shards: Collection[int]) -> None:
        """Shards are not ours any more: all of their runs is forgotten here. What waits for them and is nowhere
        else yet goes after them."""
        desk, held = self._desk, self._desk.held
        self._store.let_go(shards)
        held.lose(shards)
        items = desk.mail.drop_foreign()
        waiting = [_whole(item) for item in items if not self._is_found_again(item)]
        asked = self._changes.drop_foreign(held)
        waiting += [operate for operate in asked if operate.inbox is None]
        kept = desk.undecided.drop_foreign(held)
        self._intake.drop_foreign(shards, [*items, *asked, *kept])
        desk.hot.drop_foreign()
        desk.port.answer(self._progress.drop_foreign(held))
        if waiting:
            self._elsewhere.forward(waiting)
        if asked_here := [(i.inbox, i.ack) for i in items if i.inbox is not None and i.ack is not None]:
            # Who asked for them here is answered by whoever has them next.
            self._elsewhere.await_replies(asked_here)

    def _is_found_again(self, item: Deliver) -> bool:
        """Whether something that waits for a run is found by whoever has it next: messages, timers that are due, what
        a run owes itself. Frames may get lost."""
        event = item.event
        if item.inbox is not None or type(item) is Own or event is None or isinstance(event, Frame):
            return True
        hot = self._desk.hot.peek(item.run)
        return hot is not None and hot.state.pending() == event


def _whole(item: Deliver) -> Deliver | Operate:
    """An event that an operation left its answer to is the engine's own, and no message: the operation is."""
    return item if item.asked is None else item.asked
