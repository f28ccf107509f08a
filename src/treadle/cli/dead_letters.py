"""deadletter list|show|replay|discard: what workers sent back and nobody could use."""

from __future__ import annotations

from typing import Annotated

import typer

from .command import HOUSE, Commands, Session
from .reach import EITHER

deadletter = Commands(HOUSE, group="deadletter", help="What workers sent back and nobody could use.")

Letter = Annotated[
    str, typer.Argument(metavar="ID", help="See: treadle deadletter list.", show_default=False)
]


@deadletter("list", examples=["treadle deadletter list", "treadle deadletter list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """List the dead letters, newest first."""
    async with cli.asks() as engine:
        rows = await engine.dead_letters()
    columns = {"id": "ID", "at": "AT", "run": "RUN", "worker": "WORKER", "reason": "REASON", "size": "BYTES"}
    cli.out.rows(rows, columns, empty="no dead letters")


@deadletter(examples=["treadle deadletter show 3f0c9a1e5b7d2468"], reach=EITHER)
async def show(cli: Session, id: Letter) -> None:
    """Show one: what was sent, by whom, and why nobody could use it."""
    async with cli.asks() as engine:
        found = await engine.dead_letter(id)
    if cli.out.as_json:
        cli.out.document(found)
    else:
        cli.out.value(found)


@deadletter(examples=["treadle deadletter replay 3f0c9a1e5b7d2468"], reach=EITHER)
async def replay(cli: Session, id: Letter) -> None:
    """Offer its work again, if that is still open; the letter is done with."""
    async with cli.acts(creates=False, work=False, lingers=False) as engine:
        done = await engine.dead_letter_replay(id)
    cli.out.done(done, f"the work of {done['run']} is offered again")


@deadletter(examples=["treadle deadletter discard 3f0c9a1e5b7d2468"], reach=EITHER)
async def discard(cli: Session, id: Letter) -> None:
    """Throw it away."""
    async with cli.acts(creates=False, work=False, lingers=False) as engine:
        done = await engine.dead_letter_discard(id)
    cli.out.done(done, f"discarded {done['id']}")
