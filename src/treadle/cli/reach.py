"""Which store or server a command speaks to, and as whom."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import typer

from .output import Usage

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask a running server instead of a store. Env TREADLE_SERVER.",
        rich_help_panel="Common",
        show_default=False,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="With --server: who asks. Better in env TREADLE_TOKEN, which no history keeps.",
        rich_help_panel="Common",
        show_default=False,
    ),
]


class Reach(Enum):
    """What a command speaks to."""

    EITHER = "a store or a server"
    STORE = "a store"
    # It needs no runs: wherever they are, it does the same.
    NEITHER = "files"


EITHER: Final = Reach.EITHER
NEITHER: Final = Reach.NEITHER


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server, and who asks it."""

    url: str
    token: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """What the command line said about whom to ask."""

    server: str | None
    store: str | None
    token: str | None
    # Who acts: as somebody said, and in any case.
    said: str | None
    user: str

    @property
    def url(self) -> str | None:
        """The server that is meant: the one that was named, else that of the environment unless a store was named."""
        if self.server and self.store:
            raise Usage("--store and --server: name one of the two")
        return self.server or (None if self.store else os.environ.get("TREADLE_SERVER")) or None


def address_of(name: str, reach: Reach, why: str, asked: Destination) -> ServerAddress | None:
    """Where a command asks; none if it works on a store, or asks nobody. With a token its user acts, unless
    another was named."""
    url, token = asked.url, asked.token
    if url is None or reach is NEITHER:
        return None
    if reach is Reach.STORE:
        because = f": {why}" if why else ""
        unset = "" if asked.server else ", or unset TREADLE_SERVER"
        raise Usage(
            f"{name} works on a store and not on a server{because}. Give --store URL{unset}",
            code="NOT_ON_A_SERVER",
        )
    check_server(url)
    if token is not None and not _fits(token):
        raise Usage("--token: this is no token; `treadle token create` makes one")
    acting = asked.said if token is not None else asked.user
    if acting is not None and not _fits(acting):
        if asked.said is not None:
            raise Usage(f"--user {acting!r}: a server takes names of printable ASCII characters")
        acting = None
    return ServerAddress(url, token, acting)


def check_server(url: str) -> None:
    """Refuses an address at which no server can be."""
    from treadle.store.open import has_host

    if not url.startswith(("http://", "https://")) or not has_host(url):
        raise Usage(f"--server takes http://HOST:PORT or https://HOST, not {url!r}")


def _fits(text: str) -> bool:
    """Whether a text can stand in a header."""
    return bool(text) and text.isascii() and text.isprintable()


def lasting(store: str) -> str:
    """The address of a store that is still there when a command is over; one in memory is refused."""
    from treadle.store.open import Place

    if not Place.of(store).shared:
        raise Usage("a store in memory ends with this command; name one with --store")
    return store
