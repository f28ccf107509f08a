"""The bus as a worker sees it that reaches only a server: long polls and batches over HTTP.

Bodies are canonical CBOR, which carries every value as it is. A server that does not answer is no error of the work:
`Away` says so, and whoever asked tries again, at the next server if there are several. The same request again is
safe: what was settled stays settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import httpx

from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.kernel.values import Value, decode, digest_bytes, encode
from treadle.kernel.values import digest as digest_of
from treadle.store.rows import DefinitionRow

from .carrier import Away
from .data import TAKE_MAX, Handed, Noted, Settled, Settling, Taken, Told
from .messages import convert, handed_from_value, settling_value, told_value

log = logging.getLogger("treadle.worker")
T = TypeVar("T")

CBOR: Final = "application/cbor"
PREFIX: Final = "/api/v1"
# A request that is not a long poll.
ANSWER_S: Final = 30.0


class Refused(TreadleError):
    """A server refuses a request, and would refuse it again."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, cls="authorization" if status in (401, 403) else "user", code=code)
        self.status = status


class HttpBus:
    """One worker's side. `about` is what it says of itself with each `take`."""

    def __init__(
        self,
        servers: Sequence[str],
        worker: str,
        *,
        token: str | None = None,
        about: Mapping[str, Value] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._servers = [url.rstrip("/") for url in servers]
        self._worker = worker
        self._about = dict(about or {})
        self.go_on: dict[str, Any] = {}
        headers = {"Accept": CBOR}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.AsyncClient(
            headers=headers, timeout=ANSWER_S, transport=transport, trust_env=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    # --- work ---

    async def register(self, **more: Value) -> None:
        """`go_on` is then how the server would have us go on."""
        answer = await self._post("register", {**self._about, **more})
        self.go_on = dict(answer.get("bus", {}))

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        about = {key: value for key, value in self._about.items() if key != "pools"}
        asked = {**about, "pools": sorted(pools), "limit": min(limit, TAKE_MAX), "wait": float(wait_s)}
        found = await self._post("take", asked, timeout_s=wait_s + ANSWER_S)
        return Taken([handed_from_value(item) for item in found["items"]], list(found.get("revoked", ())))

    async def renew(self, leases: Sequence[str]) -> list[str]:
        return list((await self._post("renew", {"leases": list(leases)}))["lost"])

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        found = await self._post("settle", {"receipts": [settling_value(receipt) for receipt in receipts]})
        return convert(found, Settled, "an answer")

    async def progress(self, told: Sequence[Told]) -> Noted:
        found = await self._post("progress", {"frames": [told_value(one) for one in told]})
        return convert(found, Noted, "an answer")

    async def release(self, leases: Sequence[str], *, reason: str = "") -> None:
        await self._post("release", {"leases": list(leases), "reason": reason[:1000]})

    # --- what work refers to ---

    async def blob(self, digest: str) -> bytes:
        body = await self._ask("GET", f"/blobs/{digest}", read=bytes)
        if digest_bytes(body) != digest:
            raise InputInvalid(f"the server gave another payload for {digest}")
        return body

    async def put_blob(self, digest: str, body: bytes) -> None:
        await self._ask("PUT", f"/blobs/{digest}", body, read=bytes)

    async def definition(self, digest: str) -> DefinitionRow:
        value = await self._ask("GET", f"/definitions/{digest}", read=_mapping)
        row = convert(value, DefinitionRow, "a definition")
        said = {"dialect": row.dialect, "name": row.name, "version": row.version, "body": row.body}
        if digest_of(said) != digest:
            raise InputInvalid(f"the server gave another definition for {digest}")
        return row

    async def secret(self, work: Handed, name: str) -> str | dict[str, str] | None:
        """Asked each time it is used, and kept by nobody. A server that gives it not to this work says why; for whoever
        asks it is as if there were none."""
        asked: dict[str, Value] = {"intent": work.work.intent.id, "lease": work.lease, "names": [name]}
        try:
            values = (await self._post("secrets", asked))["values"]
        except Refused as error:
            if error.status != 403:
                raise
            log.warning("the secret %s is not given to %s: %s", name, work.work.run, error.message)
            return None
        found: str | dict[str, str] | None = values.get(name)
        return found

    # --- requests ---

    async def _post(
        self, what: str, body: dict[str, Value], *, timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        sent = encode({"worker": self._worker, **body})
        return await self._ask("POST", f"/work/{what}", sent, timeout_s=timeout_s, read=_mapping)

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        read: Callable[[bytes], T],
        timeout_s: float = ANSWER_S,
    ) -> T:
        headers = {} if body is None else {"Content-Type": CBOR}
        for _ in range(len(self._servers)):
            server = self._servers[0]
            try:
                answer = await self._client.request(
                    method,
                    f"{server}{PREFIX}{path}",
                    content=body,
                    headers=headers,
                    timeout=timeout_s,
                )
            except httpx.HTTPError:
                self._pass_over(server)
                continue
            if answer.status_code >= 500 or answer.status_code == 429:
                self._pass_over(server)
                continue
            if answer.status_code >= 400:
                raise _refused(answer)
            try:
                if answer.is_success:
                    return read(answer.content)
            except TreadleError:
                log.debug("%s answered with what no server says", server)
            # Something on the way answers in its place: a gateway with a page of its own, a login.
            self._pass_over(server)
        raise Away

    def _pass_over(self, server: str) -> None:
        """The next one is asked, unless another request has moved on already."""
        if self._servers[0] == server:
            self._servers.append(self._servers.pop(0))


def _mapping(body: bytes) -> dict[str, Any]:
    found = decode(body)
    if not isinstance(found, dict):
        raise InputInvalid("an answer is a mapping")
    return found


def _refused(answer: httpx.Response) -> Refused:
    try:
        said = answer.json()
        return Refused(answer.status_code, str(said["code"]), str(said["detail"]))
    except (ValueError, KeyError, TypeError):
        return Refused(answer.status_code, "SERVER_REFUSED", f"the server answered {answer.status_code}")
