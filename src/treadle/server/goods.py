"""What a worker on a store gets from it: payloads and definitions by digest, with the database's own rights.

It reads, and puts payloads down for receipts that will refer to them; it owns nothing and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from treadle.bus.carrier import Away
from treadle.bus.data import Handed
from treadle.kernel.errors import PASSING, InputInvalid
from treadle.store.open import open_store
from treadle.store.rows import DefinitionRow
from treadle.store.sql import SqlStore

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


T = TypeVar("T")


class StoreGoods:
    """`bus.protocol.Goods`, on one connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: SqlStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="treadle-goods")

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drop)
        self._thread.shutdown()

    async def work_key(self) -> bytes:
        return await self._ask(lambda store: store.work_key())

    async def blob(self, digest: str) -> bytes:
        return await self._ask(lambda store: store.blob(digest))

    async def put_blob(self, digest: str, body: bytes) -> None:
        await self._ask(lambda store: store.keep_blobs({digest: body}))

    async def definition(self, digest: str) -> DefinitionRow:
        row = await self._ask(lambda store: store.definition(digest))
        if row is None:
            raise InputInvalid(f"the store has no definition {digest}")
        return row

    async def read(self, question: Callable[[Reads], T]) -> T:
        """Whoever works on a store sees its runs."""
        return await self._ask(question)

    async def secret(self, work: Handed, name: str) -> str | dict[str, str] | None:
        """Secrets are not in the database: this worker has its own, or none."""
        return None

    async def _ask(self, question: Callable[[SqlStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, question)

    def _answer(self, question: Callable[[SqlStore], T]) -> T:
        try:
            if self._store is None:
                self._store = open_store(self._url)
            return question(self._store)
        except PASSING as error:
            self._drop()
            raise Away from error

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()
