"""Messages that are larger than NATS takes (1 MiB, unless its server says otherwise): cut into parts.

The parts wait in a stream of their own, and a message without a body travels in place of the large one and names them.
Whoever asked takes them away when it has its answer; what a dead process left goes by its age. Like everything between
owner and worker they may be lost: then whoever misses them says nothing, and is asked again.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.client import JetStreamContext

from .carrier import Away

NAMES: Final = "Treadle-Parts"
PART_BYTES_MAX: Final = 512 * 1024
PARTS_MAX: Final = 1_000
AGE_S: Final = 3600.0


class Parts:
    """`subject` makes subjects of words, `name` is the stream's."""

    def __init__(self, name: str, subject: Callable[..., str]) -> None:
        self._name = name
        self._subject = subject
        self._made = False

    def forget(self) -> None:
        """The server lost the stream: it is made again when it is next needed."""
        self._made = False

    async def cut(self, client: Client, body: bytes) -> tuple[bytes, dict[str, str]]:
        """What is sent for this body: itself, or nothing and the name of its parts."""
        size = min(PART_BYTES_MAX, client.max_payload // 2)
        if len(body) <= size:
            return body, {}
        stream = client.jetstream()
        await self._make(stream)
        key = secrets.token_hex(12)
        starts = range(0, len(body), size)
        for number, start in enumerate(starts):
            await stream.publish(self._subject("parts", key, number), body[start : start + size])
        return b"", {NAMES: f"{key} {len(starts)}"}

    async def whole(self, client: Client, message: Msg) -> bytes:
        """The body that a message stands for."""
        named = (message.headers or {}).get(NAMES)
        if named is None:
            return message.data
        stream = client.jetstream()
        key, _, count = named.partition(" ")
        if not count.isdecimal() or int(count) > PARTS_MAX:
            raise Away
        parts: list[bytes] = []
        for number in range(int(count)):
            subject = self._subject("parts", key, number)
            parts.append((await stream.get_last_msg(self._name, subject, direct=True)).data or b"")
        return b"".join(parts)

    async def drop(self, client: Client, *headers: Mapping[str, str] | None) -> None:
        """The parts that these headers name are not needed any more."""
        for one in headers:
            if named := (one or {}).get(NAMES):
                subject = self._subject("parts", named.partition(" ")[0], "*")
                with contextlib.suppress(nats.errors.Error):  # their age takes them
                    await client.jetstream().purge_stream(self._name, subject=subject)

    async def _make(self, stream: JetStreamContext) -> None:
        if not self._made:
            config = api.StreamConfig(
                name=self._name, subjects=[self._subject("parts", ">")], max_age=AGE_S, allow_direct=True
            )
            with contextlib.suppress(nats.js.errors.BadRequestError):  # it is there, with other bounds
                await stream.add_stream(config)
            self._made = True
