"""What a store tells of its members (`members.py`), to whoever asks."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from .connection import SqlConnection

# What is told when somebody came, went, or gave something away.
MEMBERS: Final = "m"


class MemberSeen(msgspec.Struct, frozen=True):
    """A member as its row tells it, also one whose lease has run out."""

    name: str
    url: str | None
    # What it says of itself, for people.
    about: dict[str, Any]
    joined_ns: int
    until_ns: int
    shards: int


class MemberReads(SqlConnection):
    def members_seen(self) -> list[MemberSeen]:
        query = """SELECT name, url, about, joined_ns, until_ns,
                          (SELECT count(*) FROM shards WHERE owner = members.name)
                   FROM members ORDER BY joined_ns, name"""
        return [
            MemberSeen(name, url, json.loads(about or "{}"), joined, until, int(shards))
            for name, url, about, joined, until, shards in self._all(query)
        ]

    def members_present(self) -> set[str]:
        query = f"""SELECT name FROM members WHERE until_ns >= {self._dialect.now_ns}
                    UNION SELECT owner FROM shards WHERE owner IS NOT NULL"""
        return {name for (name,) in self._all(query)}
