"""Whose work a process does: everybody's, or that of some runs only.

A command that was started for one run (`treadle run flow.yaml`) stands in somebody's shell, with somebody's
environment and rights. It must not do a payment of another run there because that one was left open. So it
works for its own runs and their families alone; all other work stays open, as rows, for an engine that helps.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.kernel.model import root_of


class Others:
    """Any thread may call."""

    def __init__(self) -> None:
        # Whether everybody's work is done here.
        self.helps = True
        self._roots: frozenset[str] = frozenset()

    @property
    def wanted(self) -> list[str]:
        return sorted(self._roots)

    def leave_alone(self) -> None:
        """From now on only what is wanted is done."""
        self.helps = False

    def want(self, runs: Iterable[str]) -> None:
        """These runs are wanted, with all that they called or that called them."""
        self._roots = self._roots.union(map(root_of, runs))

    def help(self) -> None:
        """Everybody's work is done from now on."""
        self.helps = True

    def takes(self, run: str) -> bool:
        return self.helps or root_of(run) in self._roots
