"""Code that a simulated process does not have when it begins: each dialect is loaded beside its core when it is first needed.

That takes its time, and may fail: then it is tried again for the next who needs it. The process may die over it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from treadle.kernel.machine import Machine
from treadle.runtime.fetching import NotAtHand

from .weather import MS

if TYPE_CHECKING:
    from .process import SimProcess

LOADING_NS: Final = 400 * MS


class LateCode:
    def __init__(self, process: SimProcess, machine_of: Callable[[str], Machine]) -> None:
        self._process = process
        self._machine_of = machine_of
        self._there: set[str] = set()

    def machine_of(self, dialect: str) -> Machine:
        if dialect not in self._there:
            raise NotAtHand(f"the dialect {dialect}", partial(self._load, dialect))
        return self._machine_of(dialect)

    def _load(self, dialect: str) -> None:
        world = self._process.world
        if world.chance(world.faults.late_code):
            raise ImportError(f"{dialect} cannot be imported (simulated)")
        self._there.add(dialect)

    def beside(self, work: Callable[[], None]) -> None:
        """On a thread of its own, which ends with the process."""
        world = self._process.world
        world.after(world.rng.randrange(LOADING_NS), lambda: None if self._process.dead else work())
