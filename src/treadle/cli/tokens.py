"""token create|list|revoke: who may ask a server."""

from __future__ import annotations

from typing import Annotated

import typer

from .command import HOUSE, Commands, Session
from .reach import EITHER

token = Commands(HOUSE, group="token", help="Tokens for servers of this store. A token is shown once.")


@token(
    examples=[
        "treadle token create --user ann --role admin",
        "treadle token create --user ci --role operator --workflow shop/ --expires 30d --json",
        "treadle token create --user w1 --role worker --expires never",
    ],
    reach=EITHER,
)
async def create(
    cli: Session,
    owner: Annotated[
        str, typer.Option("--user", metavar="USER", help="Whose token it is.", show_default=False)
    ],
    role: Annotated[
        list[str],
        typer.Option(
            "--role",
            help="viewer, operator, worker, admin, or a role of tasks; repeatable.",
            show_default=False,
        ),
    ],
    workflow: Annotated[
        str | None,
        typer.Option(
            "--workflow",
            metavar="PREFIX",
            help="Only workflows whose names begin so.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="WHEN", help="30d, an instant, or never.")
    ] = "90d",
) -> None:
    """Make a token. The first one closes every server of the store to whoever has none."""
    async with cli.acts(work=False, lingers=False) as engine:
        made = await engine.token_create(owner, role, workflow=workflow, expires=expires)
    if cli.out.as_json:
        cli.out.document(made)
        return
    cli.out.raw(f"{made['token']}\n")
    until = made["expires_at"] or "it is revoked"
    cli.out.note(f"token {made['id']} of {made['user']}, good until {until}. It is not shown again.")


@token("list", examples=["treadle token list", "treadle token list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """List the tokens of this store, revoked and expired ones too."""
    async with cli.asks() as engine:
        rows = await engine.token_list()
    columns = {
        "id": "ID",
        "user": "USER",
        "roles": "ROLES",
        "workflow": "WORKFLOW",
        "status": "STATUS",
        "expires_at": "EXPIRES",
        "used_at": "USED",
    }
    cli.out.rows(rows, columns, empty="no token was made; make one with: treadle token create")


@token(examples=["treadle token revoke 3f0c9a1e5b7d2468"], reach=EITHER)
async def revoke(
    cli: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="See: treadle token list.", show_default=False)],
) -> None:
    """End a token, at every server within a second."""
    async with cli.acts(work=False, creates=False, lingers=False) as engine:
        row = await engine.token_revoke(id)
    cli.out.done(row, f"revoked {row['id']} of {row['user']}")
