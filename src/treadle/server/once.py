"""`Idempotency-Key`: the same request again gets the first answer, and does nothing.

What is the same: key, who asks, path, query and body. The answer is kept as soon as it is there; of a request whose
server was killed in between nothing is known, and the same again is done again, which for a signal, too, is once: its
message has the key. Only what succeeded is kept: a refusal changed nothing, and is judged anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine import Engine
from treadle.host.acting import acting
from treadle.runtime import remembered

from .access import Caller
from .problems import RequestRefused

HEADER: Final = "idempotency-key"
REPLAYED: Final = "Idempotency-Replayed"
_PRINTABLE: Final = re.compile(r"[ -~]{1,200}")
# An answer that is larger is not kept: the request is done again.
ANSWER_BYTES_MAX: Final = 1024 * 1024
# These have keys of their own (a run's id, a lease, a signature), change nothing, or answer what is never kept (a token).
_APART: Final = re.compile(
    r"/runs|/work/.*|/hooks/.*|/tokens|/runs/\{id\}/(wait|replay)|/schedules/preview|/apps/\{app\}/shadow"
)

Handle = Callable[[Request], Awaitable[Response]]


def is_apart(route: str) -> bool:
    return _APART.fullmatch(route) is not None


def key_of(request: Request) -> str | None:
    """The key of a request, if it is one that this is about."""
    given = request.headers.get(HEADER)
    if given is None or request.method != "POST" or is_apart(request.state.route):
        return None
    if not _PRINTABLE.fullmatch(given):
        raise RequestRefused(
            "INPUT_INVALID", "Idempotency-Key has 1 to 200 printable characters", where="Idempotency-Key"
        )
    return given


class AnswersOnce:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Requests with one key take turns here.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def answer(
        self, request: Request, actor: Caller, key: str, body: bytes, handle: Handle
    ) -> Response:
        id = _digest(actor.user, key, request.url.path, request.url.query)
        said = hashlib.sha256(body).hexdigest()
        turn = self._turns.setdefault(id, asyncio.Lock())
        async with turn:
            now = self._engine.clock.now_ns()
            before = await self._engine.read(lambda reads: remembered.found(reads, id, now))
            if before is not None:
                if before["said"] != said:
                    raise RequestRefused("IDEMPOTENCY_REUSED", f"the key {key!r} was used with another body")
                return _again(before)
            answer = await handle(request)
            if answer.status_code < 300 and len(answer.body) <= ANSWER_BYTES_MAX:
                await self._keep(id, said, answer)
            return answer

    async def _keep(self, id: str, said: str, answer: Response) -> None:
        row = {
            "id": id,
            "said": said,
            "status": answer.status_code,
            "media": answer.media_type or "",
            "location": answer.headers.get("location", ""),
            "body": bytes(answer.body),
        }
        # Who did it stands with what was done.
        with acting(None):
            await self._engine.operate(remembered.KIND, row)


def _again(row: dict[str, object]) -> Response:
    headers = {REPLAYED: "true"}
    if location := str(row["location"]):
        headers["Location"] = location
    body, status = row["body"], row["status"]
    assert isinstance(body, bytes)
    assert isinstance(status, int)
    return Response(body, status, headers=headers, media_type=str(row["media"]))


def _digest(*words: str) -> str:
    said = b"".join(
        len(raw).to_bytes(4, "big") + raw for raw in (word.encode(errors="replace") for word in words)
    )
    return hashlib.sha256(said).hexdigest()
