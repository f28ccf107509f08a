"""The keychain of one step-run: entries resolved at the worker, when a task is about to use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.dialects.playbook.handles import TemplateScope
from treadle.dialects.playbook.model import Playbook
from treadle.dialects.playbook.templates import Tree
from treadle.kernel.errors import SecretMissing
from treadle.secrets.providers import Secrets
from treadle.work.job import Job

if TYPE_CHECKING:
    from treadle.secrets.keychain import Keychain


class KeychainReader:
    """Resolves what a definition declares; names it does not declare are plain secrets."""

    def __init__(self, playbook: Playbook, job: Job, secrets: Secrets | None) -> None:
        self._entries, self._job, self._secrets = playbook.keychain, job, secrets
        self._fields = playbook.keychain_fields
        self._keychain: Keychain | None = None

    async def secret(self, name: str) -> str | dict[str, str]:
        """What `auth: NAME` gives a tool: a keychain entry, else a secret of that name."""
        if name not in self._entries:
            return await self._job.secret(name)
        found: str | dict[str, str] = await self._resolve(name)
        return found

    async def read(self, names: list[str] | None) -> Mapping[str, Any]:
        """The entries that a step's templates name; all of them where a template may read any."""
        if not self._entries or names == []:
            return {}
        wanted = list(self._entries) if names is None else [name for name in names if name in self._entries]
        return {name: await self._resolve(name) for name in wanted}

    async def prove(self, names: list[str]) -> None:
        """Every entry resolves and has the fields that tasks read, or SecretMissing names the one that
        does not. No value is kept."""
        for name in names:
            found = await self._resolve(name)
            for field in self._fields.get(name, ()):
                if isinstance(found, str) or not found.get(field):
                    raise SecretMissing(_without(name, field, found), details={"name": name, "field": field})

    async def _resolve(self, name: str) -> Any:
        if self._secrets is None:
            return await self._by_job(name)
        if self._keychain is None:
            secrets, options = self._secrets, self._job.options
            if file := options.get("secrets"):
                secrets = secrets.with_file(str(file))
            from treadle.secrets.keychain import Keychain  # most playbooks declare no credentials

            entries = list(self._entries.values())
            # The job asks these secrets first, then whoever owns the run.
            self._keychain = Keychain(
                entries, secrets, render=self._render, base=options.get("base"), ask=self._job.secret
            )
        return await self._keychain.resolve(name)

    async def _by_job(self, name: str) -> Any:
        """Without a chain of providers at hand, the job's own secrets by the entry's name."""
        try:
            return await self._job.secret(name)
        except KeyError:
            raise SecretMissing(
                f"keychain entry {name!r}: no provider has it", details={"name": name}
            ) from None

    def _render(self, value: Any, resolved: Mapping[str, Any]) -> Any:
        workload = self._job.intent.params.get("workload") or {}
        names = {"keychain": dict(resolved), "workload": workload}
        return Tree(value, "keychain").render(TemplateScope(names, (workload,)), load=True)


def _without(name: str, field: str, found: str | Mapping[str, str]) -> str:
    """What is wrong with an entry whose field is read and not there; it shows no value."""
    if isinstance(found, str):
        has, remedy = "is one text", f"write map: {{{field}: {name}}} in the entry"
    else:
        has = f"has {', '.join(found)}" if field not in found else "is empty there"
        remedy = "correct the name in the template"
    stored = f"store it with: treadle secret set {name} --field {field}=…"
    return f"keychain entry {name!r}: the playbook reads its field {field!r}, but the secret {has}; {remedy}, or {stored}"
