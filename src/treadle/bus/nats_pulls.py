"""Pull requests to several queues of NATS at once, and whatever comes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

# With the first message comes what is there already, and what comes within this time.
MORE_S: Final = 0.25


class Pulls:
    """Messages of pull requests, whatever consumer they come from. The library's own `fetch` waits on one consumer."""

    def __init__(self, client: Client, javascript: str) -> None:
        self._client = client
        self._api = javascript
        self._prefix = client.new_inbox()
        self._got: asyncio.Queue[Msg] = asyncio.Queue()
        self._asked = 0

    async def open(self) -> None:
        async def take(message: Msg) -> None:
            self._got.put_nowait(message)

        await self._client.subscribe(f"{self._prefix}.*", cb=take)

    async def ask(self, stream: str, consumer: str, batch: int, wait_s: float) -> str:
        """Asks for messages; the subject on which they come."""
        self._asked += 1
        reply = f"{self._prefix}.{self._asked}"
        body: dict[str, Any] = {"batch": batch}
        body |= {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
        await self._client.publish(
            f"{self._api}.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(body).encode(), reply
        )
        return reply

    async def gather(self, replies: Collection[str], limit: int, wait_s: float) -> list[Msg]:
        """Waits for the first message, or until every request is answered; with it comes what is there already."""
        found: list[Msg] = []
        open_ = set(replies)
        until = asyncio.get_running_loop().time() + wait_s
        while len(found) < limit:
            left = until - asyncio.get_running_loop().time()
            try:
                if found and self._got.empty() and not open_:
                    break
                async with asyncio.timeout(max(left, 0.001)):
                    message = await self._got.get()
            except TimeoutError:
                break
            status = (message.headers or {}).get("Status") if not message.data else None
            if status is None:
                found.append(message)
                until = min(until, asyncio.get_running_loop().time() + MORE_S)
            elif status not in ("100",):
                open_.discard(message.subject)
                if not open_ and self._got.empty():
                    break
        return found
