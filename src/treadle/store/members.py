"""The members of a store: processes that share its shards, each with a lease by the store's own clock.

A member says that it is there well before its lease runs out; a shard is free once its owner's has. The lease is for
speed and good manners, as the lock of a file is: what protects the data is the epoch of each shard inside every
commit, and claiming a shard raises it. A member that was silent for too long finds out at its next commit or look.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treadle.kernel.errors import PASSING, StoreUnavailable, TreadleError

from .member_reads import MEMBERS
from .sharing import MemberRow, Standing

if TYPE_CHECKING:
    from .dialect import SqlDialect


LEASE_NS: Final = 5_000_000_000
# How often a member looks how things stand, and says that it is there.
LOOK_S: Final = 0.5
# How long a member is remembered that is gone.
FORGOTTEN_NS: Final = 3_600_000_000_000


class Roster(msgspec.Struct, frozen=True):
    """What a member saw: how things stand, and the shards that are its own, with their epochs."""

    standing: Standing
    mine: Mapping[int, int]


class Membership:
    """One process among the members of a store. Called on the core's thread, on a connection of its own."""

    def __init__(
        self,
        dialect: SqlDialect,
        *,
        name: str | None = None,
        notify: Callable[[Any, str], None] = lambda connection, what: None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        # Whether it works for its own runs only; others see that with the next look.
        self.alone = False
        # Where other members and clients reach it, and what else it says of itself, for people.
        self.url: str | None = None
        self.about: Mapping[str, Any] = {}
        self._dialect = dialect
        self._notify = notify
        self._connection: Any = None
        self._joined = False

    def look(self) -> Roster:
        """Says that it is there, and looks who else is."""
        now, lease = self._dialect.now_ns, LEASE_NS
        with self._transaction() as tx:
            tx.execute(
                f"""INSERT INTO members (name, url, alone, about, joined_ns, until_ns)
                    VALUES (?, ?, ?, ?, {now}, {now} + {lease}) ON CONFLICT (name) DO UPDATE
                    SET url = excluded.url, alone = excluded.alone, about = excluded.about,
                    until_ns = excluded.until_ns""",
                (self.name, self.url, int(self.alone), json.dumps(self.about)),
            )
            tx.execute(f"DELETE FROM members WHERE until_ns < {now} - {FORGOTTEN_NS}")
            if not self._joined:
                self._notify(tx, MEMBERS)
            found = tx.execute(
                f"SELECT name, alone, joined_ns, url FROM members WHERE until_ns >= {now} ORDER BY name"
            )
            shards = tx.execute("SELECT shard, epoch, owner FROM shards ORDER BY shard")
            members = [
                MemberRow(name, bool(alone), joined, url) for name, alone, joined, url in found.fetchall()
            ]
            rows = shards.fetchall()
        self._joined = True
        mine = {int(shard): int(epoch) for shard, epoch, owner in rows if owner == self.name}
        return Roster(Standing(members, {int(shard): owner for shard, _, owner in rows}), mine)

    def claim(self, shards: Iterable[int]) -> dict[int, int]:
        """Takes what is still free of these: the shards that it got, and their new epochs. Whoever had them commits
        nothing there any more."""
        wanted = ", ".join(map(str, sorted(shards)))
        with self._transaction() as tx:
            taken = tx.execute(
                f"""UPDATE shards SET owner = ?, epoch = epoch + 1 WHERE shard IN (
                      SELECT shard FROM shards WHERE shard IN ({wanted}) AND (owner IS NULL OR owner NOT IN (
                        SELECT name FROM members WHERE until_ns >= {self._dialect.now_ns}
                      )) ORDER BY shard {self._dialect.skip_locked}
                    ) RETURNING shard, epoch""",
                (self.name,),
            ).fetchall()
        return {int(shard): int(epoch) for shard, epoch in taken}

    def give(self, shards: Iterable[int]) -> None:
        """Gives shards away; nothing of theirs may be under way here."""
        given = ", ".join(map(str, sorted(shards)))
        with self._transaction() as tx:
            tx.execute(f"UPDATE shards SET owner = NULL WHERE owner = ? AND shard IN ({given})", (self.name,))
            self._notify(tx, MEMBERS)

    def dismiss(self, name: str) -> bool:
        """Takes a member out, and what it holds away from it, be it there or not; whether somebody had this name. One
        that is there finds out with its next commit or look, and comes back as one that has just come."""
        with self._transaction() as tx:
            tx.execute("UPDATE shards SET owner = NULL, epoch = epoch + 1 WHERE owner = ?", (name,))
            found = tx.execute("DELETE FROM members WHERE name = ? RETURNING name", (name,)).fetchall()
            self._notify(tx, MEMBERS)
        return bool(found)

    def leave(self) -> None:
        """Gives everything away, and is a member no more. Where that cannot be said, the lease runs out."""
        if self._joined:
            with contextlib.suppress(*PASSING), self._transaction() as tx:
                tx.execute("UPDATE shards SET owner = NULL WHERE owner = ?", (self.name,))
                tx.execute("DELETE FROM members WHERE name = ?", (self.name,))
                self._notify(tx, MEMBERS)
        self._joined = False
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(TreadleError):
                self._dialect.close(self._connection)
            self._connection = None

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        try:
            with self._dialect.errors():
                if self._connection is None:
                    self._connection = self._dialect.connect()
                with self._dialect.transaction(self._connection) as tx:
                    yield tx
        except StoreUnavailable:
            self.close()
            raise


class Pace:
    """When it is time to look again."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._next = 0.0

    @property
    def due(self) -> bool:
        return self._monotonic() >= self._next

    def looked(self) -> None:
        self._next = self._monotonic() + LOOK_S

    def hurry(self) -> None:
        self._next = 0.0
