"""Several processes behind one port: every one is a member of the store, with an interpreter and a core of its own.

One process holds the socket and looks after the others: it starts them, starts again whichever dies, and has all of them
drain when it is told to go. It serves nothing itself. The children accept from its socket, so that a request that comes
while one of them dies is taken by the next. Each has the end of a pipe: if their keeper is gone, they drain, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

log = logging.getLogger("treadle.server")

MEMBER: Final = "TREADLE_PROCESS"
AGAIN_S: Final = 0.1
AGAIN_S_MAX: Final = 5.0
# Who lived this long has not failed to start.
STEADY_S: Final = 10.0


class Place(msgspec.Struct, frozen=True):
    """What a child is told: which one it is, the socket it accepts from, the pipe that ends with its keeper."""

    number: int
    socket: int
    keeper: int


def place() -> Place | None:
    """This process's place among several behind one port; None if it stands alone."""
    said = os.environ.get(MEMBER)
    return None if said is None else msgspec.json.decode(said, type=Place)


def say_ready(about: dict[str, Any]) -> None:
    """A child's word to its keeper."""
    print(json.dumps(about), flush=True)


@dataclass(slots=True)
class _Child:
    process: asyncio.subprocess.Process
    began: float


class Keeper:
    """Keeps `count` children on a socket."""

    def __init__(self, sock: socket.socket, count: int, arguments: list[str]) -> None:
        self._socket = sock
        self._count = count
        self._command = [sys.executable, "-m", "treadle.cli", *arguments]
        self._children: dict[int, _Child] = {}
        self._told = asyncio.Event()
        # Children read from it until we are gone; nothing is ever written.
        self._pipe, self._held = os.pipe()

    async def run(self, ready: Callable[[dict[str, Any]], None]) -> int:
        """Until a signal comes and all have drained; the exit code. The first child stands before the others start:
        what it refuses is refused once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        try:
            first = await self._start(0)
            about = await _ready(first)
            if about is None:
                return max(1, await first.process.wait())
            others = [await self._start(number) for number in range(1, self._count)]
            for child in others:
                await _ready(child)
            if not self._told.is_set():
                ready({**about, "processes": self._count})
            async with asyncio.TaskGroup() as tasks:
                kept = [tasks.create_task(self._keep(number)) for number in range(self._count)]
            return max(abs(task.result()) for task in kept) and 1
        finally:
            os.close(self._held)
            os.close(self._pipe)

    def _drain(self) -> None:
        """All of them; told twice, they leave at once."""
        self._told.set()
        for child in self._children.values():
            if child.process.returncode is None:
                child.process.send_signal(signal.SIGTERM)

    async def _start(self, number: int) -> _Child:
        told = Place(number, self._socket.fileno(), self._pipe)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, MEMBER: msgspec.json.encode(told).decode()},
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(told.socket, told.keeper),
            # A terminal's Ctrl-C is for the keeper, which passes it on.
            start_new_session=True,
        )
        child = self._children[number] = _Child(process, asyncio.get_running_loop().time())
        if self._told.is_set():
            process.send_signal(signal.SIGTERM)
        return child

    async def _keep(self, number: int) -> int:
        """One child and whoever comes after it; the exit code of the last."""
        pause = AGAIN_S
        while True:
            child = self._children[number]
            code = await child.process.wait()
            if self._told.is_set():
                return code
            lived = asyncio.get_running_loop().time() - child.began
            pause = AGAIN_S if lived > STEADY_S else min(pause * 2, AGAIN_S_MAX)
            log.warning("process %d ended (%d) and is started again", number + 1, code)
            try:
                async with asyncio.timeout(pause):
                    await self._told.wait()
                return code
            except TimeoutError:
                await _ready(await self._start(number))


async def _ready(child: _Child) -> dict[str, Any] | None:
    """What a child says of itself when it serves; None if it ends before. Whatever else it prints is left there."""
    assert child.process.stdout is not None
    line = await child.process.stdout.readline()
    if not line:
        return None
    found: dict[str, Any] = json.loads(line)
    return found
