"""How the frame of a pipeline is saved while it goes through a loop around one task.

Such a frame holds the items and the results so far, and it is saved for every item: saved whole, a loop
would cost the square of its length. So the items are put away once, and the results in small chunks, each
of which names the one before it. What is saved for an item is then as large for the last as for the first.
In memory a frame is always whole.
"""

from __future__ import annotations

from typing import Any, Final

from treadle.kernel.values import Value, decode_trusted, encode
from treadle.work.job import Job

# So many results, or bytes of them, are saved with the frame itself.
TAIL_ITEMS_MAX: Final = 16
TAIL_BYTES_MAX: Final = 4096
# The items of a short loop stay in its frame.
ITEMS_BYTES_MAX: Final = 2048
HINT: Final = "pipeline frame"


class Frames:
    """What of one pipeline's frame is in the store already."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sub: dict[str, Any] | None = None
        self._items: Value = None
        self._chunk: Value = None
        self._count = 0

    async def saved(self, frame: dict[str, Any]) -> dict[str, Any]:
        """A copy of the frame as it is saved."""
        sub = frame.get("sub")
        if sub is not None:
            frame = {**frame, "sub": await self._loop(sub)}
        return decode_trusted(encode(frame))  # type: ignore[no-any-return]  # a copy has the type of what it copies

    async def whole(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The frame that was saved, in a copy."""
        frame: dict[str, Any] = decode_trusted(encode(saved))
        sub = frame.get("sub")
        if sub is None or (put := sub.pop("put", None)) is None:
            return frame
        if put["items"] is not None:
            sub["items"] = await self._job.load_blob(put["items"])
        chunks: list[list[Value]] = [sub["results"]]
        chunk = put["chunk"]
        while chunk is not None:
            payload = await self._job.load_blob(chunk)
            chunks.append(payload["results"])
            chunk = payload["before"]
        sub["results"] = [result for part in reversed(chunks) for result in part]
        self._sub, self._items, self._chunk = sub, put["items"], put["chunk"]
        self._count = len(sub["results"]) - len(chunks[0])
        return frame

    async def _loop(self, sub: dict[str, Any]) -> dict[str, Any]:
        if sub is not self._sub:
            self._sub, self._items, self._chunk, self._count = sub, None, None, 0
            if len(encode(sub["items"])) > ITEMS_BYTES_MAX:
                self._items = await self._job.store_blob(sub["items"], schema_hint=HINT)
        tail = sub["results"][self._count :]
        if len(tail) >= TAIL_ITEMS_MAX or len(encode(tail)) > TAIL_BYTES_MAX:
            chunk = {"before": self._chunk, "results": tail}
            self._chunk = await self._job.store_blob(chunk, schema_hint=HINT)
            self._count, tail = len(sub["results"]), []
        if self._items is None and self._chunk is None:
            return sub
        items = sub["items"] if self._items is None else []
        put = {"items": self._items, "chunk": self._chunk}
        return {**sub, "items": items, "results": tail, "put": put}
