"""Several processes behind one port: every one is a member of the store, with an interpreter and a core of its own.

One process holds the socket and looks after the others: it starts them, starts again whichever dies, and has all of them
drain when it is told to go. It serves nothing itself. The children accept from its socket, so that a request that comes
while one of them dies is taken by the next. Each has the end of a pipe: if their keeper is gone, they drain, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

log = logging.getLogger("treadle.server")

# The variable of the environment that tells a child its place.
PLACE: Final = "TREADLE_PLACE"
AGAIN_S: Final = 0.1
AGAIN_S_MAX: Final = 5.0
# Who lived this long has not failed to start.
STEADY_S: Final = 10.0
# How a child ends that was told to go, also if it was told before it could listen.
LEFT: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


class ChildPlace(msgspec.Struct, frozen=True):
    """What a child is told: its name, the socket it accepts from, the pipe that ends with its keeper, and the one on
    which it says that it serves. Standard output is not its own: whatever a tool prints goes there."""

    name: str
    socket: int
    keeper: int
    ready: int

    def say_ready(self, about: dict[str, Any]) -> None:
        os.write(self.ready, msgspec.json.encode(about))
        os.close(self.ready)


def place() -> ChildPlace | None:
    """This process's place among several behind one port; None if it stands alone. Asked once: it is for this process,
    not for those that it starts."""
    said = os.environ.pop(PLACE, None)
    if said is None:
        return None
    found = msgspec.json.decode(said, type=ChildPlace)
    for descriptor in (found.socket, found.keeper, found.ready):
        os.set_inheritable(descriptor, False)
    return found


@dataclass(slots=True)
class _Child:
    process: asyncio.subprocess.Process
    began: float
    # The other end of what it says when it serves.
    word: int


class ProcessKeeper:
    """Keeps `count` children on a socket that listens. `command` serves; each child reads its options for itself."""

    def __init__(self, sock: socket.socket, name: str, count: int, command: Sequence[str]) -> None:
        self._socket = sock
        self._name = name
        self._count = count
        self._command = command
        self._children: dict[int, _Child] = {}
        # Those that serve now.
        self._serving: set[int] = set()
        self._all_serve = asyncio.Event()
        self._told = asyncio.Event()
        # Children look at it until we are gone; nothing is ever written.
        self._pipe, self._held = os.pipe()

    async def run(self, ready: Callable[[dict[str, Any]], None]) -> int:
        """Until a signal comes and all have drained; the exit code. The first child stands before the others are
        started: it makes the tables, and what it refuses is refused once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        try:
            about = await self._stand(0)
            if about is None:
                code = await self._children[0].process.wait()
                return 0 if self._told.is_set() else max(1, code)
            async with asyncio.TaskGroup() as tasks:
                kept = [tasks.create_task(self._keep(number)) for number in range(self._count)]
                saying = tasks.create_task(self._say(about, ready))
                await asyncio.wait(kept)
                saying.cancel()
            return 0 if all(task.result() in LEFT for task in kept) else 1
        finally:
            os.close(self._held)
            os.close(self._pipe)

    async def _say(self, about: dict[str, Any], ready: Callable[[dict[str, Any]], None]) -> None:
        await self._all_serve.wait()
        ready({**about, "name": self._name, "processes": self._count})

    def _drain(self) -> None:
        """All of them; told twice, they leave at once."""
        self._told.set()
        for child in self._children.values():
            if child.process.returncode is None:
                child.process.send_signal(signal.SIGTERM)

    async def _keep(self, number: int) -> int:
        """One child and whoever comes after it; the exit code of the last."""
        pause = AGAIN_S
        while not self._told.is_set():
            try:
                if number not in self._serving:
                    await self._stand(number)
            except OSError as error:  # the system has no room for a process now; the others go on
                lived, why = 0.0, f"cannot be started ({error})"
            else:
                child = self._children[number]
                why = f"ended ({await child.process.wait()})"
                lived = asyncio.get_running_loop().time() - child.began
                self._serving.discard(number)
            if self._told.is_set():
                break
            pause = AGAIN_S if lived > STEADY_S else min(pause * 2, AGAIN_S_MAX)
            log.warning("%s %s and is started again in %.1f s", self._named(number), why, pause)
            try:
                async with asyncio.timeout(pause):
                    await self._told.wait()
            except TimeoutError:
                continue
            return 0  # it died before anybody was told to go, and what it had others have
        left = self._children.get(number)
        return 0 if left is None else await left.process.wait()

    async def _stand(self, number: int) -> dict[str, Any] | None:
        """Starts a child; what it says of itself when it serves, or None if it ends before."""
        child = await self._start(number)
        about = await _heard(child.word)
        if about is not None:
            self._serving.add(number)
            if len(self._serving) == self._count:
                self._all_serve.set()
        return about

    async def _start(self, number: int) -> _Child:
        heard, said = os.pipe()
        told = ChildPlace(self._named(number), self._socket.fileno(), self._pipe, said)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, PLACE: msgspec.json.encode(told).decode()},
                # Their answers are ours to give; what a tool prints goes where it does in one process.
                stdout=sys.stderr.fileno(),
                pass_fds=(told.socket, told.keeper, told.ready),
                # A terminal's Ctrl-C is for the keeper, which passes it on.
                start_new_session=True,
            )
        except BaseException:
            os.close(heard)
            raise
        finally:
            os.close(said)
        child = self._children[number] = _Child(process, asyncio.get_running_loop().time(), heard)
        if self._told.is_set():
            process.send_signal(signal.SIGTERM)
        return child

    def _named(self, number: int) -> str:
        return f"{self._name}-{number + 1}"


async def _heard(word: int) -> dict[str, Any] | None:
    """What a child says of itself when it serves; None if it ends before it says anything."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(word, "rb", buffering=0)
    )
    try:
        said = await reader.read()
    finally:
        transport.close()
    if not said:
        return None
    found: dict[str, Any] = msgspec.json.decode(said)
    return found
