"""Secrets by name, resolved at the moment of use, redacted from all that leaves the worker.

Providers are asked in this order, the first that has the name wins: the mapping given in code, the
secrets file of the run, providers that an application registered, the encrypted store, the
environment (`TREADLE_SECRET_<NAME>`). Every value that is handed out is known to the `redactor`
before the caller sees it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import SecretMissing
from treadle.kernel.values import Value

from . import logs
from .redact import Redactor

if TYPE_CHECKING:
    # Most engines are never asked for a secret: what reads and opens them is imported by the first one.
    from .files import Secret, SecretStore
    from .tokens import Tokens

# Asked for a name: a value, fields, or None if it has none. May be `async`.
Provider = Callable[[str], "Secret | Awaitable[Secret | None] | None"]


def environment_name(name: str) -> str:
    """`pg-main` is read from TREADLE_SECRET_PG_MAIN."""
    return "TREADLE_SECRET_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def kept_for(store_url: str) -> Callable[[], SecretStore | None]:
    """The encrypted secrets of a store, for whoever first asks for one."""

    def opened() -> SecretStore | None:
        from .files import secret_store_of

        return secret_store_of(store_url)

    return opened


class Secrets:
    """The chain of providers of one worker."""

    def __init__(
        self,
        values: Mapping[str, str | Mapping[str, str]] | None = None,
        *,
        file: str | Path | None = None,
        store: SecretStore | Callable[[], SecretStore | None] | None = None,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._values = dict(values or {})
        self._file = None if file is None else Path(file)
        self._in_file: dict[str, Secret] | None = None
        self._env = os.environ if env is None else env
        self._providers: list[Provider] = []
        self._with_file: dict[Path, Secrets] = {}
        self._marked: set[str] = set()
        self._store = store
        self._clock = clock
        self.redactor = Redactor()
        logs.knows(self)

    @property
    def store(self) -> SecretStore | None:
        """The encrypted store, if there is one."""
        if callable(self._store):
            self._store = self._store()
        return self._store

    @cached_property
    def tokens(self) -> Tokens:
        from .tokens import Tokens

        return Tokens(self._clock, self.redactor.forget)

    def provider(self, provider: Provider) -> Provider:
        """Adds a source of secrets, such as a vault. Usable as a decorator."""
        self._providers.append(provider)
        return provider

    def mark(self, *names: str) -> None:
        """These are redacted whatever their length. Values below eight characters are not, otherwise."""
        self._marked.update(names)

    def with_file(self, file: str | Path) -> Secrets:
        """The same secrets with a run's own file in front. The redactor is shared."""
        path = Path(file)
        if (found := self._with_file.get(path)) is None:
            found = Secrets(self._values, file=path, store=self.store, env=self._env)
            found._providers, found._marked = self._providers, self._marked
            found.redactor, found.tokens = self.redactor, self.tokens
            self._with_file[path] = found
        return found

    async def resolve(self, name: str, options: Mapping[str, Any] | None = None) -> Secret:
        """The value or the fields of a secret; a run's `options` may name its own secrets file.
        Raises SecretMissing, which says where to put it."""
        if options and (file := options.get("secrets")):
            return await self.with_file(str(file)).resolve(name)
        found = await self._find(name)
        if found is None:
            raise SecretMissing(
                f"there is no secret named {name!r}; set it with `treadle secret set {name}`, "
                f"{environment_name(name)} or --secrets FILE",
                details={"name": name},
            )
        return self.learn(name, found)

    def redact(self, value: Value) -> Value:
        """The value without any secret that was handed out."""
        return self.redactor.value(value)

    def learn(self, name: str, value: Secret) -> Secret:
        """Makes a value known to the redactor, and gives it back."""
        self.redactor.add(name, value, marked=name in self._marked)
        return value

    def environment(self, variable: str) -> str | None:
        """A variable of the worker's environment, for keychain entries that name one."""
        return self._env.get(variable)

    async def _find(self, name: str) -> Secret | None:
        if (given := self._values.get(name)) is not None:
            return given if isinstance(given, str) else dict(given)
        if (value := self._file_values().get(name)) is not None:
            return value
        for provider in self._providers:
            answer = provider(name)
            value = await answer if inspect.isawaitable(answer) else answer
            if value is not None:
                return value
        if self.store is not None and (value := self.store.get(name)) is not None:
            return value
        return _from_environment(self._env.get(environment_name(name)), name)

    def _file_values(self) -> dict[str, Secret]:
        if self._file is None:
            return {}
        if self._in_file is None:
            from .files import read_secrets_file

            self._in_file = read_secrets_file(self._file)
        return self._in_file


def _from_environment(text: str | None, name: str) -> Secret | None:
    """A variable that holds a JSON object gives fields, so that a whole credential fits into one."""
    if text is not None and text.lstrip().startswith("{"):
        from .files import as_secret

        try:
            return as_secret(json.loads(text), environment_name(name))
        except ValueError:
            return text
    return text
