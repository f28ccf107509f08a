from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from treadle.kernel.errors import SecretMissing
from treadle.secrets.files import SecretStore
from treadle.secrets.keychain import Keychain
from treadle.secrets.providers import Secrets


def keychain(*entries: dict[str, Any], secrets: Secrets | None = None, **more: Any) -> Keychain:
    return Keychain(entries, secrets or Secrets(env={}), **more)


async def test_provider_env_maps_fields_to_variables():
    secrets = Secrets(env={"PGUSER": "ann", "PGPASS": "hunter2-hunter2"})
    chain = keychain(
        {"name": "pg", "kind": "postgres_credential", "provider": "env", "map": {"db_user": "PGUSER", "db_password": "PGPASS"}},
        secrets=secrets,
    )  # fmt: skip
    assert await chain.resolve("pg") == {"db_user": "ann", "db_password": "hunter2-hunter2"}
    assert secrets.redact("hunter2-hunter2") == "[redacted:pg.db_password]"


async def test_provider_file_maps_fields_to_paths_beside_the_definition(tmp_path):
    (tmp_path / "token").write_text("from a file\n")
    chain = keychain(
        {"name": "t", "kind": "secret_manager", "provider": "file", "map": {"value": "token"}},
        base=str(tmp_path),
    )
    assert await chain.resolve("t") == {"value": "from a file"}
    (tmp_path / "pg.yaml").write_text("db_host: localhost\ndb_port: 5432\n")
    chain = keychain(
        {"name": "pg", "kind": "postgres_credential", "provider": "file", "path": "pg.yaml"},
        base=str(tmp_path),
    )
    assert await chain.resolve("pg") == {"db_host": "localhost", "db_port": "5432"}


async def test_provider_store_maps_fields_to_secret_names(tmp_path):
    store = SecretStore(tmp_path / "s")
    store.set("prod/password", "hunter2-hunter2")
    store.set("whole", {"a": "1"})
    secrets = Secrets(store=store, env={})
    chain = keychain(
        {"name": "pg", "kind": "credential", "provider": "store", "map": {"db_password": "prod/password"}},
        {"name": "whole", "kind": "credential", "provider": "store"},
        secrets=secrets,
    )
    assert await chain.resolve_all() == {"pg": {"db_password": "hunter2-hunter2"}, "whole": {"a": "1"}}


async def test_without_a_provider_the_secret_of_that_name_is_used():
    secrets = Secrets({"openai_token": "sk-1234567890", "pg_k8s": {"host": "db", "pw": "x"}}, env={})
    chain = keychain(
        {"name": "openai_token", "kind": "secret_manager"},
        {"name": "pg_k8s", "kind": "postgres_credential", "map": {"db_password": "pw"}},
        {"name": "cloud", "kind": "secret_manager", "provider": "gcp"},
        secrets=secrets,
    )
    assert await chain.resolve("openai_token") == "sk-1234567890"
    assert await chain.resolve("pg_k8s") == {"host": "db", "pw": "x", "db_password": "x"}
    with pytest.raises(SecretMissing, match="'gcp' is not reached"):
        await chain.resolve("cloud")


async def test_static_and_bearer():
    chain = keychain(
        {"name": "s", "kind": "static", "map": {"region": "eu", "n": 5}},
        {"name": "v", "kind": "static", "value": "just this"},
        {"name": "b", "kind": "bearer", "token": "abc"},
        {"name": "c", "kind": "bearer"},
        {"name": "basic", "kind": "static", "username": "ann", "password": "pw"},
        secrets=Secrets({"c": "named-token"}, env={}),
    )
    assert await chain.resolve("s") == {"region": "eu", "n": "5"}
    assert await chain.resolve("v") == "just this"
    assert await chain.resolve("b") == {"token": "abc", "access_token": "abc"}
    assert await chain.resolve("c") == {"token": "named-token", "access_token": "named-token"}
    assert await chain.resolve("basic") == {"username": "ann", "password": "pw"}


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "secret_manager"},
        {"kind": "secret_manager", "provider": "env", "map": {"x": "NOT_SET"}},
        {"kind": "secret_manager", "provider": "file", "map": {"x": "/no/such/file"}},
        {"kind": "secret_manager", "provider": "file"},
        {"kind": "secret_manager", "provider": "store", "map": {"x": "nothing"}},
        {"kind": "oauth2", "endpoint": "http://127.0.0.1:1/token"},
        {"kind": "oauth2", "endpoint": "http://127.0.0.1:1/token", "data": {"client_id": "a"}},
        {"kind": "bearer", "map": {"nothing": "nothing"}},
    ],
)
async def test_an_entry_that_cannot_be_resolved_is_named_in_an_authorization_error(entry):
    with pytest.raises(SecretMissing) as caught:
        await keychain({"name": "my_entry", **entry}).resolve_all()
    assert caught.value.cls == "authorization"
    assert "'my_entry'" in caught.value.message


async def test_a_name_that_is_not_declared_is_an_ordinary_secret():
    assert await keychain(secrets=Secrets({"x": "y"}, env={})).resolve("x") == "y"


async def test_marked_entries_are_redacted_whatever_their_length():
    secrets = Secrets({"pin": "1234"}, env={})
    await keychain({"name": "pin", "kind": "secret_manager", "secret": True}, secrets=secrets).resolve("pin")
    assert secrets.redact("pin 1234") == "pin [redacted:pin]"


async def test_a_plain_text_secret_fills_the_one_field_of_an_entry():
    entry = {
        "name": "openai",
        "kind": "secrets",
        "provider": "gcp",
        "map": {"api_key": "projects/1/secrets/x"},
    }
    chain = keychain(entry, secrets=Secrets({"openai": "sk-1234567890"}, env={}))
    assert await chain.resolve("openai") == {"api_key": "sk-1234567890"}


async def test_a_plain_text_secret_cannot_fill_several_fields():
    entry = {"name": "pair", "kind": "secrets", "map": {"user": "u", "password": "p"}}
    with pytest.raises(SecretMissing, match="is one text, and the entry wants the fields user, password"):
        await keychain(entry, secrets=Secrets({"pair": "text-for-both"}, env={})).resolve("pair")


async def test_a_secret_of_a_cloud_that_is_missing_is_named_by_its_entry():
    entry = {
        "name": "openai",
        "kind": "secrets",
        "provider": "gcp",
        "map": {"api_key": "projects/1/secrets/x"},
    }
    with pytest.raises(SecretMissing, match="treadle secret set openai`"):
        await keychain(entry).resolve("openai")
    other = Secrets({"openai": {"token": "sk-1234567890"}}, env={})
    with pytest.raises(
        SecretMissing, match="'openai' has the fields token, and the entry wants 'api_key'"
    ) as no:
        await keychain(entry, secrets=other).resolve("openai")
    assert "treadle secret set openai --field token=… --field api_key=…" in no.value.message
    assert "projects/1" not in no.value.message


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ({"kind": "secret_manager"}, " "),
        ({"kind": "secret_manager", "map": {"api_key": "x"}}, ""),
        ({"kind": "secret_manager", "map": {"user": "u"}}, {"u": ""}),
        ({"kind": "secret_manager"}, {"token": ""}),
        ({"kind": "static", "token": " "}, "unused"),
    ],
)
async def test_an_empty_credential_is_a_missing_one(entry, value):
    with pytest.raises(SecretMissing, match=r"keychain entry 'e': .* empty"):
        await keychain({"name": "e", **entry}, secrets=Secrets({"e": value}, env={})).resolve("e")


# --- oauth2 ---


class TokenServer(ThreadingHTTPServer):
    daemon_threads = True
    url: str
    seen: list[dict[str, str]]
    refresh: str
    lasts: Any


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"])).decode()
        is_json = "json" in self.headers["content-type"]
        form = json.loads(raw) if is_json else {k: v[0] for k, v in parse_qs(raw).items()}
        self.server.seen.append(form)
        number = len(self.server.seen)
        if form.get("client_secret") not in ("right-secret", None):
            self.answer(401, {"error": "invalid_client", "error_description": "no such client"})
        elif form["grant_type"] == "refresh_token" and form["refresh_token"].startswith("revoked"):
            self.answer(400, {"error": "invalid_grant"})
        else:
            extra = {"refresh_token": f"{self.server.refresh}-{number}"} if self.server.refresh else {}
            self.answer(
                200,
                {
                    "access_token": f"access-token-{number}",
                    "expires_in": self.server.lasts,
                    "token_type": "Bearer",
                    **extra,
                },
            )

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests stay quiet."""


@pytest.fixture
def token_server():
    server = TokenServer(("127.0.0.1", 0), TokenHandler)
    server.url = f"http://127.0.0.1:{server.server_address[1]}/token"
    server.seen, server.refresh, server.lasts = [], "", 300
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def oauth(server: TokenServer, clock: Clock, **entry: Any) -> tuple[Keychain, Secrets]:
    secrets = Secrets({"api": {"client_id": "me", "client_secret": "right-secret"}}, env={}, clock=clock)
    return keychain(
        {"name": "api", "kind": "oauth2", "endpoint": server.url, **entry}, secrets=secrets
    ), secrets


async def test_client_credentials_are_fetched_once_and_renewed_before_they_expire(token_server):
    clock = Clock()
    chain, secrets = oauth(token_server, clock, scopes=["read", "write"])
    first = await chain.resolve("api")
    assert first["access_token"] == first["token"] == "access-token-1"
    assert first["expires_at"] == "1970-01-12T13:51:40.000000Z"
    assert token_server.seen == [
        {
            "grant_type": "client_credentials",
            "client_id": "me",
            "client_secret": "right-secret",
            "scope": "read write",
        }
    ]
    clock.now += 200
    assert (await chain.resolve("api"))["token"] == "access-token-1"
    clock.now += 50  # within the last minute of its life
    assert (await chain.resolve("api"))["token"] == "access-token-2"
    assert secrets.redact("access-token-1 access-token-2 right-secret") == (
        "[redacted:api.access_token] [redacted:api.access_token] [redacted:api.client_secret]"
    )


@pytest.mark.parametrize("said", ["an hour", [], "nan", 1e300, -1, 0, None])
async def test_a_token_of_which_the_endpoint_says_no_time_is_kept_for_an_hour(token_server, said):
    clock = Clock()
    token_server.lasts = said
    chain, _ = oauth(token_server, clock)
    for seconds in (0, 3_500, 50):
        clock.now += seconds
        fields = await chain.resolve("api")
    assert fields["token"] == "access-token-2"
    assert len(token_server.seen) == 2


async def test_tokens_that_expired_long_ago_are_not_looked_for_any_more(token_server):
    """Or whatever leaves a worker would take ever longer, with each token that was ever renewed."""
    clock = Clock()
    chain, secrets = oauth(token_server, clock)
    for _ in range(40):
        newest = (await chain.resolve("api"))["token"]
        clock.now += 250
    assert newest == "access-token-40"
    assert secrets.redact("access-token-1 and access-token-20") == "access-token-1 and access-token-20"
    assert secrets.redact("access-token-39, access-token-40") == (
        "[redacted:api.access_token], [redacted:api.access_token]"
    )
    assert secrets.redact("right-secret") == "[redacted:api.client_secret]"


async def test_a_token_without_an_end_stays_a_secret(token_server):
    clock = Clock()
    token_server.lasts = None
    chain, secrets = oauth(token_server, clock)
    for _ in range(3):
        await chain.resolve("api")
        clock.now += 100_000
    assert secrets.redact("access-token-1") == "[redacted:api.access_token]"


async def test_a_refresh_token_is_used(token_server):
    clock = Clock()
    token_server.refresh = "refresh"
    chain, _ = oauth(token_server, clock)
    await chain.resolve("api")
    clock.now += 290
    assert (await chain.resolve("api"))["token"] == "access-token-2"
    assert token_server.seen[-1] == {
        "grant_type": "refresh_token", "client_id": "me", "client_secret": "right-secret", "refresh_token": "refresh-1"
    }  # fmt: skip


async def test_a_revoked_refresh_token_falls_back_to_the_first_grant(token_server):
    clock = Clock()
    token_server.refresh = "revoked"
    data = {"grant_type": "password", "client_id": "me", "username": "ann", "password": "a-password"}
    chain, _ = oauth(token_server, clock, data=data)
    await chain.resolve("api")
    clock.now += 290
    assert (await chain.resolve("api"))["token"] == "access-token-3"
    assert [form["grant_type"] for form in token_server.seen] == ["password", "refresh_token", "password"]


async def test_entries_can_use_earlier_ones_and_json_bodies(token_server):
    def render(value: Any, chain: Any) -> Any:
        if isinstance(value, dict):
            return {k: render(v, chain) for k, v in value.items()}
        if isinstance(value, str) and value.startswith("{{ keychain."):
            entry, field = value.removeprefix("{{ keychain.").removesuffix(" }}").split(".")
            return chain[entry][field]
        return value

    secrets = Secrets({"app": {"id": "me", "secret": "right-secret"}}, env={})
    data = {
        "grant_type": "client_credentials",
        "client_id": "{{ keychain.app.id }}",
        "client_secret": "{{ keychain.app.secret }}",
    }
    chain = keychain(
        {"name": "app", "kind": "secret_manager"},
        {
            "name": "token",
            "kind": "oauth2",
            "endpoint": token_server.url,
            "data": data,
            "headers": {"Content-Type": "application/json"},
        },
        secrets=secrets,
        render=render,
    )
    assert (await chain.resolve("token"))["token"] == "access-token-1"
    assert token_server.seen[0]["client_secret"] == "right-secret"


async def test_many_at_once_fetch_one_token(token_server):
    chain, _ = oauth(token_server, Clock())
    found = await asyncio.gather(*(chain.resolve("api") for _ in range(10)))
    assert {entry["token"] for entry in found} == {"access-token-1"}
    assert len(token_server.seen) == 1


async def test_what_the_endpoint_said_is_in_the_error_and_the_secret_is_not(token_server):
    secrets = Secrets({"api": {"client_id": "me", "client_secret": "wrong-secret"}}, env={})
    chain = keychain({"name": "api", "kind": "oauth2", "endpoint": token_server.url}, secrets=secrets)
    with pytest.raises(SecretMissing, match="401: no such client") as caught:
        await chain.resolve("api")
    assert "wrong-secret" not in str(caught.value)


async def test_a_token_endpoint_inside_is_not_reached_where_that_is_forbidden(token_server, monkeypatch):
    chain, _ = oauth(token_server, Clock())
    monkeypatch.setenv("TREADLE_HTTP_SSRF_SAFE", "1")
    with pytest.raises(SecretMissing, match=r"leads to 127\.0\.0\.1, which is not a public address"):
        await chain.resolve("api")
    assert token_server.seen == []
    monkeypatch.setenv("TREADLE_HTTP_ALLOW", "127.0.0.1")
    assert (await chain.resolve("api"))["access_token"]
