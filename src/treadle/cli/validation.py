"""`--validation`: what becomes of a definition that does not compile. `deploy`, `serve` and `worker` take it."""

from __future__ import annotations

from typing import Annotated

import typer

from .output import Usage

Validation = Annotated[
    str | None,
    typer.Option(
        "--validation",
        metavar="strict|warn",
        help="warn: go on with what is sound; what is invalid is kept as unavailable. Default strict.",
        envvar="TREADLE_VALIDATION",
        show_default=False,
    ),
]


def checked(given: str | None) -> str | None:
    if given not in (None, "strict", "warn"):
        raise Usage(f"--validation is strict or warn, not {given!r}")
    return given
