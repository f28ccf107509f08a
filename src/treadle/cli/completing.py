"""What the shell completes besides commands and options: run ids, task ids, statuses, formats.

Completion must be quick and silent: it reads the store on its own connection, and whatever goes
wrong completes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

SHOWN_MAX = 50
STATUSES = ("running", "waiting", "queued", "stalled", "completed", "failed", "cancelled", "partial")


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, newest first."""
    return _ask(ctx, incomplete, lambda reads: [row.id for row in reads.runs(limit=1_000)])


def tasks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of tasks that wait for somebody."""
    return _ask(ctx, incomplete, lambda reads: [row.id for row in reads.tasks(status=("open", "claimed"))])


def one_of(*choices: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


def _ask(ctx: typer.Context, incomplete: str, question: Callable[[Any], list[str]]) -> list[str]:
    from treadle.store.open import has_store, read_store

    from .command import DEFAULT_STORE

    try:
        url = ctx.params.get("store") or os.environ.get("TREADLE_STORE") or DEFAULT_STORE
        if not has_store(url):
            return []
        reads = read_store(url)
        try:
            return [id for id in question(reads) if id.startswith(incomplete)][:SHOWN_MAX]
        finally:
            reads.close()
    except Exception:  # a shell that waits for completions shows nothing of it
        return []
