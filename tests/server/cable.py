"""A cable between a server and its database that a test can cut, or make lose what goes one way.

A connection goes through it byte for byte. `cut` ends all connections and refuses new ones; `deaf` still carries what
is asked and swallows what is answered; `mute` carries nothing and says nothing; `mend` makes it whole: what was
swallowed stays lost, so connections of before are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
State = Literal["whole", "cut", "deaf", "mute"]


class Cable:
    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._state: State = "whole"
        self._ends: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._open()

    def cut(self) -> None:
        self._set("cut")

    def deaf(self) -> None:
        self._set("deaf")

    def mute(self) -> None:
        self._set("mute")

    def mend(self) -> None:
        self._set("whole")

    def close(self) -> None:
        self._set("cut")
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # What was aborted is closed with the loop's next round.
        await asyncio.sleep(0)

    def _set(self, state: State) -> None:
        async def change() -> None:
            before, self._state = self._state, state
            if state == "cut" or (state == "whole" and before != "whole"):
                for end in list(self._ends):
                    end.transport.abort()
                self._ends.clear()
            if state == "cut" and self._server is not None:
                self._server.close()
                self._server = None

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(10)
        if state != "cut" and self._server is None:
            self._open()

    def _open(self) -> None:
        async def listen() -> None:
            self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
            self.port = int(self._server.sockets[0].getsockname()[1])

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            there, back = await asyncio.open_unix_connection(self._path)
        except BaseException as error:
            self._ends.discard(writer)
            writer.transport.abort()
            if isinstance(error, OSError):
                return
            raise
        if writer not in self._ends:  # it was cut meanwhile
            back.transport.abort()
            return
        self._ends.add(back)
        try:
            await asyncio.gather(
                self._pass(reader, back, lambda: self._state != "mute"),
                self._pass(there, writer, lambda: self._state == "whole"),
            )
        finally:
            self._ends -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, carries: Callable[[], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if carries():
                    target.write(data)
                    await target.drain()
        target.transport.abort()
