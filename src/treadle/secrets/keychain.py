"""The keychain of a playbook: declared credentials, resolved to fields, read-only.

An entry says where its fields come from: `provider: env | file | store` with a `map` of field to
variable, path or secret name; without a provider, the secret of the entry's own name. Two kinds do
more than look up: `static` holds its fields itself, `oauth2` fetches a token, keeps it until shortly
before it expires, and then refreshes it.

Values are resolved when they are asked for and known to the redactor before they are handed out.
Providers of clouds (gcp, aws, …) are not reached from here: their entries are looked up by name too,
so the same playbook runs on a laptop with `--secrets FILE`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import SecretMissing, TreadleError

from .files import Secret, as_secret, parse_secrets
from .providers import Secrets
from .tokens import RENEW_BEFORE_S, TokenRequest

# Where an entry may spell out its fields, besides `map`.
_OWN_FIELDS: Final = ("value", "token", "username", "password", "header", "prefix", "api_key", "type")
_NEVER_EMPTY: Final = frozenset(["", "value", "token", "access_token", "api_key", "client_secret"])
_GRANT_FIELDS: Final = frozenset(
    ["client_id", "client_secret", "refresh_token", "username", "password", "scope", "audience"]
)

# Renders the templates of an entry; the mapping holds the entries that are resolved so far.
Render = Callable[[Any, Mapping[str, Any]], Any]


def _as_is(value: Any, keychain: Mapping[str, Any]) -> Any:
    return value


class Keychain:
    """The entries of one definition. `resolve` gives one, `resolve_all` proves that each is there."""

    def __init__(
        self,
        entries: Sequence[Mapping[str, Any]],
        secrets: Secrets,
        *,
        render: Render = _as_is,
        base: str | None = None,
        ask: Callable[[str], Awaitable[Secret]] | None = None,
    ) -> None:
        """`ask` looks up a secret by name where more than these `secrets` may have it."""
        self._entries = {str(entry["name"]): entry for entry in entries}
        self._secrets = secrets
        self._ask = ask or secrets.resolve
        self._render = render
        self._base = base

    async def resolve(self, name: str) -> Secret:
        """The fields of an entry, or the text of one that has no fields. A name that the keychain
        does not declare is looked up among the secrets. Errors name the entry and show no value."""
        if (entry := self._entries.get(name)) is None:
            return await self._ask(name)
        before: dict[str, Any] = {}
        for other in self._entries:
            if other == name:
                break
            if f"keychain.{other}" in str(entry):
                before[other] = await self.resolve(other)
        try:
            rendered: dict[str, Any] = self._render(dict(entry), before)
            if rendered.get("secret") is True:
                self._secrets.mark(name)
            found = await self._fields(name, rendered)
            _refuse_empty(found, rendered.get("map") or {})
            return self._secrets.learn(name, found)
        except SecretMissing as error:
            raise SecretMissing(
                _about(name, error.message), details={"name": name, **error.details}
            ) from error
        except TreadleError as error:
            if error.cls != "authorization":
                raise
            raise SecretMissing(_about(name, error.message), details={"name": name}) from error

    async def resolve_all(self) -> dict[str, Secret]:
        """Every entry, in the order of the definition."""
        return {name: await self.resolve(name) for name in self._entries}

    async def _fields(self, name: str, entry: dict[str, Any]) -> Secret:
        kind = str(entry.get("kind") or "static").lower()
        if kind == "oauth2" and (entry.get("endpoint") or entry.get("token_url")):
            return await self._secrets.tokens.get(await self._token_request(name, entry))
        found = await self._look_up(name, entry, literal=kind == "static")
        if kind == "bearer":
            token = found if isinstance(found, str) else found.get("token") or found.get("access_token")
            if not token:
                raise SecretMissing("a bearer credential needs a field 'token'")
            rest = {} if isinstance(found, str) else found
            return {**rest, "token": token, "access_token": token}
        return found

    async def _look_up(self, name: str, entry: dict[str, Any], *, literal: bool) -> Secret:
        provider, wanted = entry.get("provider"), entry.get("map") or {}
        if not isinstance(wanted, Mapping):
            raise SecretMissing("'map' must be a mapping of field to source")
        match provider:
            case "env":
                return self._from_environment(name, wanted)
            case "file":
                return self._from_files(entry, wanted)
            case "store":
                if not wanted:
                    return await self._ask(str(entry.get("secret_name") or name))
                return {str(to): await self._one(str(source)) for to, source in wanted.items()}
        own = {key: str(entry[key]) for key in _OWN_FIELDS if entry.get(key) is not None}
        if literal and (wanted or own):
            return as_secret({**own, **wanted}, name) if wanted or set(own) != {"value"} else own["value"]
        if own:
            return own
        return await self._by_name(name, wanted, str(provider or ""))

    async def _by_name(self, name: str, wanted: Mapping[str, Any], provider: str) -> Secret:
        """The secret of the entry's name; `map` then picks and renames its fields."""
        try:
            found = await self._ask(name)
        except SecretMissing as error:
            if not wanted:
                hint = f" (the provider {provider!r} is not reached from here)" if provider else ""
                raise SecretMissing(error.message + hint, details=error.details) from error
            try:
                return {str(to): await self._one(str(source)) for to, source in wanted.items()}
            except SecretMissing:
                # What a cloud calls it is no name that anybody here could store a secret under.
                raise error from None
        if not wanted:
            return found
        if isinstance(found, str):
            return self._one_field(name, wanted, found)
        fields = dict(found)
        for to, source in wanted.items():
            value = found.get(str(source), found.get(str(to)))
            fields[str(to)] = (
                await self._elsewhere(name, str(to), str(source), found) if value is None else value
            )
        return fields

    async def _elsewhere(self, name: str, to: str, source: str, found: Mapping[str, str]) -> str:
        """A field that the entry's own secret does not have. What is asked for is that field, under the name that
        `check` told of: what a cloud calls it is no name that anybody here could store a secret under."""
        try:
            return await self._one(source)
        except SecretMissing:
            raise SecretMissing(
                f"the secret {name!r} has the fields {', '.join(found)}, and the entry wants {to!r}; "
                f"store that too: treadle secret set {name} {' '.join(f'--field {field}=…' for field in [*found, to])}",
                details={"name": name, "field": to},
            ) from None

    def _one_field(self, name: str, wanted: Mapping[str, Any], value: str) -> Secret:
        """A secret that is one text fills the entry's one field; it cannot be shared out among several."""
        if len(wanted) > 1:
            fields = ", ".join(str(to) for to in wanted)
            raise SecretMissing(
                f"the secret {name!r} is one text, and the entry wants the fields {fields}; "
                f"store it with fields: treadle secret set {name} {' '.join(f'--field {to}=…' for to in wanted)}"
            )
        return {str(to): value for to in wanted}

    async def _one(self, name: str) -> str:
        value = await self._ask(name)
        if isinstance(value, str):
            return value
        raise SecretMissing(f"the secret {name!r} has fields ({', '.join(value)}) where one value is needed")

    def _from_environment(self, name: str, wanted: Mapping[str, Any]) -> Secret:
        fields: dict[str, str] = {}
        for to, variable in (wanted or {"": name}).items():
            value = self._secrets.environment(str(variable))
            if value is None:
                raise SecretMissing(f"the environment variable {variable} is not set")
            fields[str(to)] = value
        return fields if wanted else fields[""]

    def _from_files(self, entry: dict[str, Any], wanted: Mapping[str, Any]) -> Secret:
        """Each field from a file of its own; without a map, all fields from one file at `path`."""
        if wanted:
            return {str(to): self._read(str(path)).removesuffix("\n") for to, path in wanted.items()}
        path = entry.get("path") or entry.get("file")
        if not path:
            raise SecretMissing("provider 'file' needs 'map: {field: path}' or 'path'")
        fields = parse_secrets(self._read(str(path)), file=str(path))
        return as_secret(fields, str(path))

    def _read(self, location: str) -> str:
        path = Path(location).expanduser()
        path = path if path.is_absolute() or self._base is None else Path(self._base) / path
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SecretMissing(f"the file {path} cannot be read: {reason}") from None

    async def _token_request(self, name: str, entry: dict[str, Any]) -> TokenRequest:
        """The grant of an oauth2 entry: its `data`, completed by the fields it looks up."""
        data = {str(k): str(v) for k, v in (entry.get("data") or {}).items()}
        if entry.get("provider") or entry.get("map") or "client_id" not in data:
            found = await self._look_up(name, entry, literal=False)
            if isinstance(found, str):
                raise SecretMissing("an oauth2 credential needs the fields client_id and client_secret")
            data = {**{k: v for k, v in found.items() if k in _GRANT_FIELDS}, **data}
        data.setdefault("grant_type", "refresh_token" if "refresh_token" in data else "client_credentials")
        if scopes := entry.get("scopes"):
            data.setdefault("scope", " ".join(scopes) if isinstance(scopes, list) else str(scopes))
        for part in ("client_secret", "refresh_token", "password"):
            if part in data:
                self._secrets.learn(f"{name}.{part}", data[part])
        config = entry.get("renew_config") or {}
        return TokenRequest(
            endpoint=str(entry.get("endpoint") or entry["token_url"]),
            method=str(entry.get("method") or "POST").upper(),
            headers={str(k): str(v) for k, v in (entry.get("headers") or {}).items()},
            data=data,
            auto_renew=bool(entry.get("auto_renew", True)),
            renew_before_s=float(config.get("renew_before_s", config.get("buffer_seconds", RENEW_BEFORE_S))),
        )


def _refuse_empty(found: Secret, wanted: Mapping[str, Any]) -> None:
    """What is empty is missing: nothing empty is ever sent as a credential. Fields that the entry does
    not ask for, and that are no credential by themselves (a database without a password), may be empty."""
    fields = {"": found} if isinstance(found, str) else found
    for field, value in fields.items():
        if not value.strip() and (field in wanted or field in _NEVER_EMPTY):
            raise SecretMissing(f"the field {field!r} is empty" if field else "its value is empty")


def _about(name: str, message: str) -> str:
    prefix = f"keychain entry {name!r}: "
    return message if message.startswith(prefix) else prefix + message
