"""What a command of the house found, as a table for people and as it is for machines."""

from __future__ import annotations

from typing import Any

from .command import Session


def report(cli: Session, found: dict[str, Any]) -> None:
    if cli.out.as_json:
        cli.out.document(found)
        return
    rows = [{"what": key.replace("_", " "), "value": value} for key, value in found.items()]
    cli.out.rows(rows, {"what": "", "value": ""}, empty="")
