"""The dialects of one engine, each imported when it is first needed: short commands stay fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from treadle.dialects import INSTALLED
from treadle.kernel.errors import Unsupported
from treadle.kernel.machine import Machine
from treadle.lang.definition import Dialect, Surroundings
from treadle.runtime.fetching import NotAtHand


def not_installed(dialect: str) -> Unsupported:
    return Unsupported(f"no dialect {dialect!r} is installed")


class Dialects(Mapping[str, Dialect]):
    """By name. Each is told what this engine has."""

    def __init__(self, surroundings: Surroundings | None = None) -> None:
        # Those that were needed before.
        self.loaded: dict[str, Dialect] = {}
        # And their machines; asked at every step.
        self.machines: dict[str, Machine] = {}
        # Those that could not be imported, for whoever waits to be told.
        self._failed: dict[str, Exception] = {}
        self._surroundings = surroundings or Surroundings()

    def __getitem__(self, name: str) -> Dialect:
        if name not in self.loaded:
            if name not in INSTALLED:
                raise KeyError(name)
            found: Dialect = import_module(f"treadle.dialects.{name}").DIALECT
            # Two threads may meet here: all of them get the one that came first.
            loaded = self.loaded.setdefault(name, found.within(self._surroundings))
            self.machines[name] = loaded.machine
        return self.loaded[name]

    def at_hand(self, name: str) -> Dialect:
        """One that is imported; for the core's thread, which imports none. What it needs comes later (`NotAtHand`), or
        not at all: then it is told why, and the next who needs it tries again."""
        if (found := self.loaded.get(name)) is not None:
            return found
        if (failure := self._failed.pop(name, None)) is not None:
            raise failure
        if name not in INSTALLED:
            raise not_installed(name)
        raise NotAtHand(f"the dialect {name}", lambda: self._import(name))

    def _import(self, name: str) -> None:
        try:
            self[name]
        except Exception as error:
            self._failed[name] = error

    def __setitem__(self, name: str, dialect: Dialect) -> None:
        """For tests and plug-ins: a dialect of one's own."""
        self.loaded[name] = dialect
        self.machines[name] = dialect.machine

    def __contains__(self, name: object) -> bool:
        return name in INSTALLED or name in self.loaded

    def __iter__(self) -> Iterator[str]:
        return iter([*INSTALLED, *(name for name in self.loaded if name not in INSTALLED)])

    def __len__(self) -> int:
        return len(list(iter(self)))
