"""How agent performers read and write stored payloads: setups, context chunks, message histories.

All of them are content-addressed and never change, so they are cached by digest, whatever run asks.
A value that is large, or that looks like a reference although it is a user's, is stored and a
reference of ours (`schema_hint: agent`) stands in its place; views put the value back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from treadle.dialects.agent.context import entry, evals_of
from treadle.dialects.agent.limits import ITEMS_INLINE_BYTES_MAX, ITEMS_INLINE_MAX
from treadle.kernel.model import disarmed, is_reference, may_look_like_ours
from treadle.kernel.values import Value, digest, encode
from treadle.work.job import Job

HINT: Final = "agent"
PART_BYTES_MAX: Final = 4 * 1024
DATA_BYTES_MAX: Final = 16 * 1024
KEPT_BYTES_MAX: Final = 128 * 1024
FOLD_DEPTH: Final = 16
CACHED_BYTES_MAX: Final = 32 * 1024 * 1024
# In the canonical bytes of whatever has a field `checksum`: that could be taken for a reference.
CHECKSUM: Final = b"hchecksum"


def stays_inline(body: bytes, limit: int) -> bool:
    """Whether a value with these canonical bytes is what `Payloads.slim` gives for it."""
    return len(body) <= limit and CHECKSUM not in body and not may_look_like_ours(body)


def wants_chunk(own: list[Value]) -> bool:
    """Whether a list of own items should be stored as a chunk before it travels again."""
    if len(own) <= 1 and (not own or is_reference(own[0])):
        return False
    return len(own) > ITEMS_INLINE_MAX or len(encode(own)) > ITEMS_INLINE_BYTES_MAX


class Payloads:
    """Reads and stores payloads; used from the event loop and from worker threads alike."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, tuple[int, Value]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    async def load(self, job: Job, value: Value) -> Value:
        """The value, or what is stored behind it. What is given out must not be changed."""
        if not is_reference(value):
            return value
        with self._lock:
            if (kept := self._cache.get(value["checksum"])) is not None:
                self._cache.move_to_end(value["checksum"])
                return kept[1]
        found = await job.load_blob(value)
        self._keep(value, found)
        return found

    def _keep(self, reference: Mapping[str, Any], value: Value) -> None:
        checksum, size = str(reference["checksum"]), int(reference["size"])
        with self._lock:
            if checksum in self._cache or size > CACHED_BYTES_MAX // 4:
                return
            self._cache[checksum] = (size, value)
            self._bytes += size
            while self._bytes > CACHED_BYTES_MAX:
                _, (gone, _) = self._cache.popitem(last=False)
                self._bytes -= gone

    async def store(self, job: Job, value: Value) -> dict[str, Any]:
        reference = await job.store_blob(value, schema_hint=HINT)
        # What was stored may have been redacted: then it is another value, and not at hand. Large
        # ones are read again if need be, rather than digested a second time.
        if reference["size"] <= KEPT_BYTES_MAX and digest(value) == reference["checksum"]:
            self._keep(reference, value)
        return reference

    async def slim(self, job: Job, value: Value, limit: int, body: bytes | None = None) -> Value:
        """What a user, a model or a tool gave: the value itself if it is small, else a reference to it.
        `body` are its canonical bytes, where they are at hand."""
        if body is None:
            body = encode(value)
        if may_look_like_ours(body):
            value = disarmed(value)
            body = encode(value)
        return value if len(body) <= limit and CHECKSUM not in body else await self.store(job, value)

    async def items(self, job: Job, items: list[Value]) -> list[Value]:
        """A list of items with every chunk put in place of its reference, oldest first."""
        found: list[Value] = []
        waiting = list(reversed(items))
        while waiting:
            item = waiting.pop()
            if is_reference(item):
                waiting.extend(reversed(await self.load(job, item)))
            elif not isinstance(item, int):
                found.append(item)
        return found

    async def context(self, job: Job, input: Value, base: list[Value], own: list[Value]) -> dict[str, Any]:
        """The context object: the input, then the latest data of each node in order of completion."""
        found: dict[str, Any] = {"input": input}
        for item in await self.items(job, [*base, *own]):
            found[item[0]] = entry(await self.load(job, item[1]), evals_of(item))
        return found

    async def chunk(self, job: Job, own: list[Value]) -> dict[str, Any]:
        """Stores own items as a chunk; for when they have become many (`wants_chunk`). A chunk
        begins with its depth. Every so often the whole chain is looked through: in a loop most of it
        is data that a later visit has replaced, and a context must not cost more with every visit."""
        older = await self.load(job, own[0]) if is_reference(own[0]) else None
        depth = 1 if older is None else older[0] + 1
        if depth >= FOLD_DEPTH and depth & (depth - 1) == 0:
            items = await self.items(job, own)
            latest = {item[0]: item for item in items}
            if 2 * len(latest) <= len(items):
                return await self.store(job, [1, *latest.values()])
        return await self.store(job, [depth, *own])

    async def plain_calls(self, job: Job, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Tool calls or results with their stored inputs and outputs put back."""
        return [
            {
                key: await self.load(job, part) if key in ("input", "output") else part
                for key, part in call.items()
            }
            for call in calls
        ]
