"""Limits of workflows, as an engine offers them: look, set, leave to the definition again."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treadle.lang.handed import from_caller
from treadle.runtime.lines import POOL, pool_caps

from .reach import Reaches

if TYPE_CHECKING:
    # Most engines limit nothing: imported by whoever asks.
    from treadle.runtime import quotas


class LimitMethods(Reaches):
    """What an engine can do with limits."""

    async def limits(self) -> list[dict[str, Any]]:
        """Every workflow that is limited: what its limits are, who said so, who is in line."""
        from treadle.runtime import quotas

        rows = await self._host.reading.read(lambda reads: quotas.listed(reads, self.library.registry(reads)))
        return [self._with_work(row) for row in rows]

    async def limit(self, workflow: str) -> dict[str, Any]:
        """The limits of one workflow; none where `limits` is None."""
        from treadle.runtime import quotas

        name = quotas.checked_name(workflow)
        row = await self._host.reading.read(
            lambda reads: quotas.shown(reads, self.library.registry(reads), name)
        )
        return self._with_work(row)

    def _with_work(self, row: quotas.LimitsRow) -> dict[str, Any]:
        """Of a pool, how much of its work is in hand here, and how much waits."""
        name = row["workflow"]
        if not name.startswith(POOL):
            return {**row}
        held, waiting = self._host.bus.in_pool(name.removeprefix(POOL))
        return {**row, "running": held, "queued": waiting}

    async def limit_pools(self) -> None:
        """Goes by what operators have said of pools, from now on; of several members each by what it has leave for."""
        host = self._host
        async with self._capping:
            if host.pools is None:
                host.bus.limit_pools(await host.reading.read(pool_caps))
            else:
                await host.pools.look()

    @cached_property
    def _capping(self) -> asyncio.Lock:
        """What was read last is what counts: one at a time reads and goes by it."""
        return asyncio.Lock()

    async def limit_set(self, workflow: str, /, **limits: Any) -> dict[str, Any]:
        """Limits a workflow from now on, whatever its definition says, or the work of a pool (`pool:NAME`): `concurrency`, `per`, `rate`, `queue`,
        `priority`. Runs that were started while it was not limited are not counted."""
        from treadle.runtime import quotas

        asked = {"do": "set", "name": quotas.checked_name(workflow), "limits": from_caller(limits)}
        return await self._changed(workflow, await self._host.asks.operate("limit", asked))

    async def limit_remove(self, workflow: str) -> dict[str, Any]:
        """Leaves the limits of a workflow to its definition again."""
        from treadle.runtime import quotas

        asked = {"do": "remove", "name": quotas.checked_name(workflow)}
        return await self._changed(workflow, await self._host.asks.operate("limit", asked))

    async def _changed(self, workflow: str, said: dict[str, Any]) -> dict[str, Any]:
        """What was said is what this call said, whatever others say by now; who is in line, as it is after it."""
        await self.limit_pools()
        return {**await self.limit(workflow), "limits": said["limits"], "origin": said["origin"]}
