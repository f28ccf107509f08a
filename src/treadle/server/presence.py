"""This server among those of its store: what it says of itself, and who else is there.

On PostgreSQL it is said with the lease of a member; on a file, in a small file beside it (`store/presence.py`). Whoever
is asked reads what all have said, so that every server gives the same list.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from treadle.engine import Engine
from treadle.kernel.errors import TreadleError
from treadle.lang.duration import instant_text
from treadle.store.member_reads import MemberSeen
from treadle.store.members import LEASE_NS
from treadle.store.open import store_path_or_none
from treadle.store.presence import FilePresence, ServerSeen

from .problems import RequestRefused

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


SAY_S: Final = 1.0
LIVE, DRAINING, LOST = "live", "draining", "lost"


@dataclass(slots=True)
class Member:
    """This server, by name and address."""

    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    url: str = ""
    started_at: str = field(default_factory=lambda: instant_text(time.time_ns()))


class Presence:
    def __init__(self, engine: Engine, member: Member, is_draining: Callable[[], bool]) -> None:
        self._engine = engine
        self._member = member
        self._is_draining = is_draining
        path = store_path_or_none(engine.store_url)
        self._file = None if path is None else FilePresence(path)

    @property
    def id(self) -> str:
        return self._engine.member_name or (self._member.name if self._file is None else self._file.id)

    def about(self) -> dict[str, Any]:
        """What others are told of this server."""
        return {
            "name": self._member.name,
            "url": self._member.url,
            "version": version("treadle"),
            "started_at": self._member.started_at,
            "status": DRAINING if self._is_draining() else LIVE,
            "shards": self._engine.shards,
            "runs": self._engine.runs_in_memory,
        }

    async def go_on(self) -> None:
        """Says again and again what has changed. Until cancelled."""
        while True:
            await self.say()
            await asyncio.sleep(SAY_S)

    async def say(self) -> None:
        about = self.about()
        self._engine.announce(self._member.url, about)
        if self._file is not None:
            with contextlib.suppress(TreadleError):  # a full disk says so elsewhere
                await asyncio.to_thread(self._file.say, about)

    async def leave(self) -> None:
        if self._file is not None:
            await asyncio.to_thread(self._file.leave)

    async def rows(self) -> list[dict[str, Any]]:
        """Everybody, this server first."""
        own = {"id": self.id, **self.about(), "seen_at": instant_text(time.time_ns())}
        return [own, *await self._others()]

    async def _others(self) -> list[dict[str, Any]]:
        if self._file is not None:
            return [_on_file(seen) for seen in await asyncio.to_thread(self._file.others)]
        mine, of = self._engine.member_name, self._engine.shards["of"]

        def seen(reads: Reads) -> tuple[int, list[MemberSeen]]:
            return reads.now_ns(), reads.members_seen()

        now, members = await self._engine.read(seen)
        rows = [_member(one, now, of) for one in members if one.name != mine]
        # Of an engine that serves nobody nothing is left to say once it is gone.
        return [row for row in rows if row["url"] or row["status"] != LOST]

    async def dismiss(self, id: str) -> dict[str, Any]:
        row = next((row for row in await self._others() if row["id"] == id), None)
        if row is None and id != self.id:
            raise RequestRefused(
                "SERVER_NOT_FOUND", f"there is no server {id!r}; GET /servers has those that there are"
            )
        if row is None or (self._file is not None and row["status"] != LOST):
            raise RequestRefused("SERVER_LIVE", f"{id} is there; stop it, and it leaves by itself")
        if self._file is None:
            await self._engine.dismiss(id)
        else:
            await asyncio.to_thread(self._file.dismiss, id)
        # Only now: what it held may be where this is written down.
        await self._engine.operate("server", {"op": "remove", "id": id})
        return {**row, "status": LOST, "shards": {**row["shards"], "held": 0}}


def _member(seen: MemberSeen, now_ns: int, of: int) -> dict[str, Any]:
    about, lost = seen.about, seen.until_ns < now_ns
    return {
        "id": seen.name,
        "name": about.get("name") or seen.name,
        "url": seen.url,
        "version": about.get("version"),
        "started_at": about.get("started_at") or instant_text(seen.joined_ns),
        "seen_at": instant_text(seen.until_ns - LEASE_NS),
        "status": LOST if lost else about.get("status", LIVE),
        "shards": {"held": 0 if lost else seen.shards, "of": of},
        "runs": None if lost else about.get("runs"),
    }


def _on_file(seen: ServerSeen) -> dict[str, Any]:
    about, at = seen.about, instant_text(seen.seen_ns)
    return {
        "id": seen.id,
        "name": about.get("name") or seen.id,
        "url": about.get("url"),
        "version": about.get("version"),
        "started_at": about.get("started_at") or at,
        "seen_at": at,
        "status": about.get("status", LIVE) if seen.is_there else LOST,
        "shards": about.get("shards", {"held": 0, "of": 1}) if seen.is_there else {"held": 0, "of": 1},
        "runs": about.get("runs") if seen.is_there else None,
    }
