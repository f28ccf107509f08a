"""Secrets for workers elsewhere: which of them work in hand may have.

A worker asks its own providers first. What it lacks the server gives it for one piece of work, while that is in its
hands, over a way that nobody else reads, and only under a name that an author wrote: one that stands as a text in the
definition, or in what the machine asks of the worker. So a worker cannot go through the secrets of a house.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from starlette.requests import Request

from treadle.engine import Engine
from treadle.kernel.errors import SecretMissing
from treadle.kernel.values import Value
from treadle.runtime.ports import Work
from treadle.secrets.files import Secret

from .access import is_loopback
from .problems import RequestRefused

log = logging.getLogger("treadle.server")


def check_way(request: Request) -> None:
    """Refuses to say a secret where others may listen."""
    host = request.client.host if request.client is not None else ""
    if request.url.scheme != "https" and not is_loopback(host):
        raise RequestRefused(
            "FORBIDDEN",
            "secrets go over TLS or within one machine: serve with --tls-cert and --tls-key, or give the worker its own",
            cls="authorization",
        )


async def confide(engine: Engine, work: Work, worker: str, names: Sequence[str]) -> dict[str, Secret]:
    row = await engine.read(lambda reads: reads.definition(work.definition))
    declared = set(_texts([None if row is None else row.body, work.intent.params]))
    for name in names:
        if name not in declared:
            raise RequestRefused(
                "FORBIDDEN",
                f"nothing in {work.workflow} names the secret {name!r}: the worker needs it by itself",
                cls="authorization",
                where=name,
            )
    found: dict[str, Secret] = {}
    for name in names:
        try:
            found[name] = await engine.secrets.resolve(name)
        except SecretMissing:
            continue
        log.info(
            "the secret %s goes to the worker %s", name, worker, extra={"run": work.run, "worker": worker}
        )
    return found


def _texts(value: Value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
