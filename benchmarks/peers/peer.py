"""What a peer is: a class `Peer` in `on_<name>.py` that can do these few things. It runs in its own environment.

A peer that cannot do a workload says why in `cannot` and leaves the method out. `run` names a run of the caller's
choice. Every method gives a result that the driver checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


def version(package: str) -> str:
    """Looks through the installed packages, which is no part of what is measured."""
    from importlib.metadata import version

    return version(package)


class Peer(Protocol):
    cannot: dict[str, str]  # workload → why not

    @property
    def about(self) -> dict[str, str]:
        """Version, durability (what it really does at a commit), recovery, …; asked for after the measurement."""

    async def open(self, folder: Path, program: str) -> None:
        """Ready to run what is named: chain, pure (a chain of steps that touch nothing outside, where there are such), fan, children, wait, slow or nodes; nothing else needs to be loaded.
        What was unfinished in the folder goes on by itself, if the peer does that."""

    async def close(self) -> None: ...

    async def chain(self, steps: int) -> int:
        """A run of so many steps, each of them `work.count` of the last one's value. → steps"""

    async def fan(self, width: int) -> int:
        """A run with so many parallel steps, each `work.count(0)`. → their sum"""

    async def children(self, count: int) -> int:
        """A run with so many children, each with one step `work.count(0)`. → the sum"""

    async def wait(self, run: str) -> None:
        """Starts a run that waits for a signal; returns when that is durable."""

    async def wake(self, run: str) -> None:
        """Sends the number 7 to a run that waits."""

    async def woken(self, run: str) -> int:
        """The result of a run that was sent something: what it was sent."""

    async def slow(self, run: str, steps: int) -> None:
        """Starts a run of 1 + `steps` steps, `work.slow(run, number)` each, that ends with the list of their values.
        Where the peer has no start of its own, this may run to the end."""

    async def slow_result(self, run: str, steps: int) -> list[str]:
        """After a restart: the result of such a run, taken up again by the caller where the peer does not."""

    async def nodes(self, count: int) -> int:
        """A chain of agent nodes that a model answers. → how many were answered"""

    async def serve(self, folder: Path) -> tuple[str, int, str, dict[str, Any]]:
        """A server in a process of its own: host, port, path and JSON body of a POST that starts a run of one step."""

    async def served(self, folder: Path) -> int:
        """How many runs that server has completed. The driver asks until it has done what it took."""
