"""The drill with a line in front of it: of the runs that clients start at most two are under way at once.

Their children are not limited: a run that waits for a place that its parent holds would wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import msgspec

from treadle.kernel.model import Patch, Started
from treadle.lang.definition import Definition
from treadle.runtime.ports import NewRun

from .drill import Drill
from .workload import Action

NARROW = "narrow"


class NarrowDrill(Drill):
    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.concurrency: Mapping[str, int] = {NARROW: 2}
        self._narrow = Definition("drill", NARROW, "1.0.0", {"drill": True, "frames": False, "mark": NARROW})
        self.definitions = [*self.definitions, self._narrow]
        self._bodies[self._narrow.digest] = self._narrow.body

    def actions(self, rng: Random) -> list[Action]:
        # Who waits in line takes no patch.
        found = [action for action in super().actions(rng) if not isinstance(action.event, Patch)]
        return [self._limited(action) for action in found]

    def _limited(self, action: Action) -> Action:
        if not isinstance(action.event, Started):
            return action
        event = msgspec.structs.replace(action.event, definition=self._narrow.digest)
        return replace(action, event=event, create=NewRun("drill", NARROW, "1.0.0", self._narrow.digest))
