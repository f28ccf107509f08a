"""The house as an engine keeps it: who may ask its servers, what may call from outside, secrets, who did what."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle import access
from treadle.arguments import whole
from treadle.kernel.errors import InputInvalid, Unsupported
from treadle.kernel.values import from_caller
from treadle.lang.retention import Retention

from .reach import Reaches

if TYPE_CHECKING:
    from treadle.secrets.files import Secret, SecretStore

Rows = list[dict[str, Any]]


class HouseMethods(Reaches):
    """What an engine can do for those who look after it."""

    async def token_create(
        self, user: str, roles: Sequence[str], *, workflow: str | None = None, expires: str | None = None
    ) -> dict[str, Any]:
        """Makes a token; its text is in the answer and nowhere else."""
        return await access.tokens.create(self, user, roles, workflow=workflow, expires=expires)

    async def token_list(self) -> Rows:
        """All tokens that were ever made, without what proves them."""
        return await access.tokens.listed(self)

    async def token_revoke(self, id: str) -> dict[str, Any]:
        """Ends a token, at every server within a second."""
        return await access.tokens.revoke(self, id)

    async def hook_set(self, name: str, hook: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a webhook, or changes it."""
        return await access.hooks.put(self, name, hook)

    async def hook_list(self) -> Rows:
        """The webhooks; their secrets by name."""
        return await access.hooks.listed(self)

    async def hook_remove(self, name: str) -> None:
        """Removes a webhook."""
        await access.hooks.remove(self, name)

    async def retentions(self) -> Rows:
        """What operators have said of how long ended runs are kept, by workflow; `*` is all others."""
        from treadle.runtime import retention

        return await self.read(retention.listed)

    async def retention_set(self, workflow: str, keep: Any) -> dict[str, Any]:
        """Says how long ended runs of a workflow are kept, whatever its definition says: `"30d"`, `"forever"`, or by
        status, `{"completed": "7d", "failed": "90d"}`. Servers remove what is older by themselves."""
        from treadle.runtime import retention

        name = retention.checked_name(workflow)
        await self.operate(retention.KIND, {"do": "set", "name": name, "keep": from_caller(keep)})
        return {"workflow": name, "keep": Retention.read(keep).to_value()}

    async def retention_remove(self, workflow: str) -> dict[str, Any]:
        """Leaves it to the definition again, or to what is said of all."""
        from treadle.runtime import retention

        name = retention.checked_name(workflow)
        await self.operate(retention.KIND, {"do": "remove", "name": name})
        return {"workflow": name, "keep": None}

    async def dead_letters(self) -> Rows:
        """What workers sent back and nobody could use, newest first."""
        from treadle.runtime import dead_letters

        return await self.read(dead_letters.listed)

    async def dead_letter(self, id: str) -> dict[str, Any]:
        """One of them."""
        from treadle.runtime import dead_letters

        return await self.read(lambda reads: dead_letters.shown(reads, id))

    async def dead_letter_replay(self, id: str) -> dict[str, Any]:
        """Offers its work again, if that is still open."""
        return await self._deal(id, "replay")

    async def dead_letter_discard(self, id: str) -> dict[str, Any]:
        """Throws it away."""
        return await self._deal(id, "discard")

    async def _deal(self, id: str, op: str) -> dict[str, Any]:
        home = str((await self.dead_letter(id))["run"])
        return dict(await self.operate("deadletter", {"op": op, "id": id}, home=home))

    async def secret_set(self, name: str, value: Secret) -> None:
        """Stores a secret, or replaces it."""
        store = self._secret_store()
        await self.operate("secret", {"op": "set", "name": name})
        await asyncio.to_thread(store.set, name, value)

    async def secret_list(self) -> list[str]:
        """The names of the stored secrets."""
        return await asyncio.to_thread(self._secret_store().names)

    async def secret_remove(self, name: str) -> None:
        """Removes a secret."""
        store = self._secret_store()
        await self.operate("secret", {"op": "remove", "name": name})
        if not await asyncio.to_thread(store.remove, name):
            raise InputInvalid(f"there is no secret {name!r}", code="SECRET_NOT_FOUND")

    def _secret_store(self) -> SecretStore:
        if self.secrets.store is None:
            raise Unsupported("this store keeps no secrets; give them to workers with --secrets")
        return self.secrets.store

    async def audit(self, /, *, limit: int = 100, **filters: Any) -> Rows:
        """Who did what, newest first: `user`, `action`, `target`, `token`, `status`, `since_ns`, `until_ns`."""
        return await access.trail.listed(self, **filters, limit=whole("limit", limit))
