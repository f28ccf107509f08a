"""A store as an engine offers it to people: which runs there are, its health, its house-keeping."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from treadle.arguments import check_filters, checked_state, checked_statuses
from treadle.kernel.errors import RunExists, RunNotFound, ValueRefused
from treadle.kernel.model import QUEUED, STATUSES
from treadle.runtime.commands import REMOVE, RETURN
from treadle.runtime.registry import Registry
from treadle.store.reads import SqlReads
from treadle.store.run_rows import RunRow

from .reach import Reaches

if TYPE_CHECKING:
    from treadle.arguments import RunFilters
    from treadle.runtime.finding import Found
    from treadle.store.protocol import Reads

T = TypeVar("T")
# What a run remembers an answer by: the same again is answered, not done.
Once = tuple[str, str] | None
# Runs that are read at once.
PAGE: Final = 500
# `list` is a method here, so signatures need the type under another name.
Rows = list[dict[str, Any]]


class StoreMethods(Reaches):
    """What an engine can be asked about its store."""

    async def list(
        self,
        *,
        status: str | Sequence[str] = (),
        workflow: str | None = None,
        reference: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        search: str | None = None,
        parent: str | None = None,
        state: Mapping[str, Any] | None = None,
        before_no: int | None = None,
        limit: int = 100,
    ) -> Rows:
        """Runs, newest first, as many as `limit`. `state` names values that are shown under a run's state, by
        dotted names: each run that the other filters leave is looked into."""
        if not isinstance(limit, int) or not all(isinstance(at, int | None) for at in (since_ns, until_ns)):
            raise ValueRefused(
                "since_ns, until_ns and limit are whole numbers; times count nanoseconds since 1970"
            )
        check_filters(workflow=workflow, reference=reference, search=search, parent=parent)
        asked: dict[str, Any] = {
            "status": checked_statuses(status, STATUSES),
            "workflow": workflow,
            "reference": reference,
            "since_ns": since_ns,
            "until_ns": until_ns,
            "search": search,
            "parent": parent,
        }
        rows = await self.run_rows(asked, state, before_no=before_no, limit=limit)
        return await self.listed(rows)

    async def listed(self, rows: Sequence[RunRow]) -> Rows:
        """Rows of runs as lists show them; those who are in line with their place."""
        from treadle.runtime import document

        waiting = [row.id for row in rows if row.status == QUEUED]
        places: dict[str, Any] = {}
        if waiting:
            places = await self._host.reading.read(
                lambda reads: {id: place for id in waiting if (place := document.queued(reads, id))}
            )
        return [
            {**document.list_row(row), **({"queued": places[row.id]} if row.id in places else {})}
            for row in rows
        ]

    async def run_rows(
        self,
        filters: Mapping[str, Any],
        state: Mapping[str, Any] | None,
        *,
        before_no: int | None,
        limit: int,
    ) -> Sequence[RunRow]:
        """One page of runs as the store has them, newest first; `list` says which filters there are."""
        if not state:
            return await self._host.reading.read(
                lambda reads: reads.runs(**filters, before_no=before_no, limit=limit)
            )
        from treadle.runtime import document

        wanted = checked_state(state)

        def ask(reads: Reads) -> Sequence[RunRow]:
            found = document.in_state(reads, self.library.registry(reads), wanted, filters, before_no)
            return [*islice(found, limit)]

        return await self._host.reading.read(ask, long=True)

    async def rows(self, **filters: Unpack[RunFilters]) -> AsyncIterator[dict[str, Any]]:
        """Every run that `list` would find, however many, newest first; read in pages as they are asked for."""
        state = filters.pop("state", None)
        asked = {**filters, "status": checked_statuses(filters.get("status", ()), STATUSES)}
        before: int | None = None
        while page := await self.run_rows(asked, state, before_no=before, limit=PAGE):
            for row in await self.listed(page):
                yield row
            if len(page) < PAGE:
                return
            before = page[-1].no

    async def gc(
        self,
        *,
        now_ns: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        ruled: bool = False,
        archive: str | Path | None = None,
    ) -> dict[str, Any]:
        """Removes ended runs past their retention date, and payloads nobody refers to any more; `ruled`: only runs of
        which an operator said how long they are kept. A dry run says how many it would be, by workflow and status.
        With an `archive` (a folder) runs are in its files before they are removed."""
        from treadle.runtime.collecting import Collection  # with all that is ever removed
        from treadle.store.archives import Archive  # most engines have no archive

        host = self._host
        shelf = None if archive is None else Archive(Path(archive))

        def ask(question: Callable[[Reads, Registry], T]) -> Awaitable[T]:
            return host.reading.read(lambda reads: question(reads, self.library.registry(reads)), long=True)

        async def put_away(runs: Sequence[Found]) -> Sequence[int]:
            def put(reads: Reads) -> list[int]:
                assert shelf is not None
                assert isinstance(reads, SqlReads), "every store is one of SQL"
                return shelf.put(reads, [run.no for run in runs])

            return await host.reading.read(put, long=True)

        collection = Collection(
            host.asks.operate,
            ask,
            host.seat.homes(),
            clock=self.clock.now_ns,
            now_ns=now_ns,
            ruled=ruled,
            pins=self.offers.pins,
        )
        if dry_run:
            return await collection.preview()
        try:
            return await collection.collect(by=by, archive=None if shelf is None else put_away)
        finally:
            if shelf is not None:
                await asyncio.to_thread(shelf.close)

    async def archive_restore(
        self, file: str | Path, ids: Sequence[str] = (), *, by: str | None = None
    ) -> dict[str, Any]:
        """Puts runs of a file of an archive back, or all that are in it. Each is checked first, and comes back as it was:
        its records, events, tasks, payloads. If one of them is in the store already, none comes back. What came back is
        collected no more; `delete` removes it."""
        from treadle.store import returning

        path, host = Path(file), self._host
        meant = await asyncio.to_thread(returning.checked, path, ids)
        there = await host.reading.read(lambda reads: [id for id in meant if reads.run(id) is not None])
        if there:
            more = f", and {len(there) - 1} others of {path}" if len(there) > 1 else ""
            raise RunExists(
                f"the store has a run {there[0]!r} already{more}; nothing was put back. Name those that are to come back"
            )

        def ask(id: str, **step: Any) -> Awaitable[Any]:
            return host.asks.operate(RETURN, {"id": id, "by": by, **step}, home=id)

        for id in meant:
            found = await asyncio.to_thread(returning.taken, path, id)
            for digest in found.payloads:
                body = await asyncio.to_thread(returning.payload, path, digest)
                await ask(id, step="payload", body=body)
            package = await ask(id, step="payload", body=found.to_bytes())
            await ask(id, step="run", package=package)
        return {"archive": str(path), "restored": meant}

    async def delete(self, id: str, *, by: str | None = None) -> dict[str, Any]:
        """Removes a run that has ended and the runs below it, which must have ended too. Their payloads go with the
        next collection."""
        from treadle.runtime import keeping

        family = await self._host.reading.read(lambda reads: keeping.family_of(reads, id))
        # Itself last: cut in between, the same call goes on with the rest.
        for member in reversed(family):
            try:
                await self._host.asks.operate(REMOVE, {"id": member, "by": by}, home=member)
            except RunNotFound:
                if member == id:
                    raise
        return {"id": id, "removed": len(family)}

    async def doctor(self, *, deep: bool = False) -> dict[str, Any]:
        """Health of the store: what is damaged, one by one, and how much was looked at; with `deep`, all."""
        from . import checkup

        owner = os.getpid() if self._host.seat.shards[0] else None
        return await self._host.reading.read(
            lambda reads: checkup.report(
                reads, self.library.registry(reads), self.store_url, owner, deep=deep
            ),
            long=True,
        )

    async def diagnostics(self, run: str | None = None) -> Rows:
        """What was refused or stale, for one run or for all; who deployed and collected, if they said so."""
        return await self._host.reading.read(lambda reads: reads.diagnostics(run))
