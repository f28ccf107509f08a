"""Code that the core needs and does not have: a dialect's package, a user's file. It is loaded on a thread beside the
core's, however long that takes; who needs it waits aside, and is tried again when it is there. Everybody else goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from treadle.kernel.errors import StoreBusy

from .mail import Mail

log = logging.getLogger("treadle.core")

# Does something, on another thread or at once.
Beside = Callable[[Callable[[], None]], None]


def at_once(work: Callable[[], None]) -> None:
    work()


class NotAtHand(StoreBusy):
    """Code has to be loaded first. Nothing is wrong with what was asked; it is tried again."""

    # The run that needs it, with its events; None where a change does, which is put aside by itself.
    run: str | None = None

    def __init__(self, what: str, load: Callable[[], object]) -> None:
        super().__init__(f"{what} is being loaded; try again")
        self.what = what
        self.load = load


class Fetching:
    def __init__(self, mail: Mail, beside: Beside, wake: Callable[[], None]) -> None:
        self._mail = mail
        self._beside = beside
        self._wake = wake
        self._under_way: set[str] = set()
        # What came, as the threads beside say.
        self.came: deque[str] = deque()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for code that is on its way."""
        return bool(self._under_way)

    def wait_for(self, lacking: NotAtHand) -> None:
        """Who needs it takes no events until it came."""
        if lacking.run is not None:
            self._mail.bar_run(lacking.run)
        self.fetch(lacking)

    def fetch(self, lacking: NotAtHand) -> None:
        if lacking.what not in self._under_way:
            self._under_way.add(lacking.what)
            self._beside(partial(self._load, lacking))

    def _load(self, lacking: NotAtHand) -> None:
        try:
            lacking.load()
        except BaseException as error:  # whoever needs it meets that again; a file may even exit
            log.warning("%s cannot be loaded: %s", lacking.what, error)
        finally:
            self.came.append(lacking.what)
            self._wake()

    def taken(self) -> set[str]:
        """What came since this was last asked; runs that waited for any of it are tried again."""
        found: set[str] = set()
        while self.came:
            found.add(self.came.popleft())
        self._under_way -= found
        self._mail.unbar_all()
        return found
