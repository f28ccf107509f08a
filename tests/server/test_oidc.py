"""Bearer tokens of an OIDC issuer, which the test runs: discovery, keys, and all that must not be believed."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from treadle import Engine
from treadle.access import trail
from treadle.kernel.errors import Unsupported
from treadle.server.access import AccessOptions
from treadle.server.app import create_app
from treadle.server.oidc import Oidc, OidcOptions

from .issuer import LocalIssuer
from .test_access import client, made


@pytest.fixture
def issuer() -> Iterator[LocalIssuer]:
    found = LocalIssuer()
    yield found
    found.close()


def asking(engine: Engine, oidc: Oidc) -> httpx.AsyncClient:
    return client(create_app(engine, access=AccessOptions(issuer=oidc)))


async def status(http: httpx.AsyncClient, token: str, path: str = "/me") -> int:
    return (await http.get(path, headers={"Authorization": f"Bearer {token}"})).status_code


async def test_a_token_of_the_issuer_says_who_one_is(engine: Engine, issuer: LocalIssuer) -> None:
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"))) as http:
        headers = {"Authorization": f"Bearer {issuer.token(roles=['operator', 'boss'])}"}
        mine = (await http.get("/me", headers=headers)).json()
        assert (mine["user"], mine["roles"], mine["token"]) == ("ann", ["operator", "boss"], "oidc")
        assert (await http.get("/tokens", headers=headers)).status_code == 403
        assert (await http.get("/me")).status_code == 401, "a server with an issuer is not open"
        assert (await http.post("/runs/x/cancel", headers=headers)).status_code == 404
    row = (await trail.listed(engine, action="run.cancel"))[0]
    assert (row["user"], row["token"]) == ("ann", "oidc")


async def test_what_proves_nothing_is_401(engine: Engine, issuer: LocalIssuer) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = issuer.published("k1")
    now = int(time.time())
    head, body, _ = issuer.token().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    forged = {
        "a wrong key": issuer.token(key=other),
        "a key that is not published": issuer.token(key=other, kid="k9"),
        "another audience": issuer.token(aud="somebody else"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.example"),
        "expired": issuer.token(exp=now - 120),
        "no end": issuer.token(exp=None),
        "not yet": issuer.token(nbf=now + 600),
        "nobody": issuer.token(sub=None),
        "a name of the engine's own": issuer.token(sub="treadle:core"),
        "alg none": f"{none}.{body}.",
        "alg none, old signature": f"{none}.{body}.{issuer.token().rpartition('.')[2]}",
        "the public key as a shared secret": _shared(body, public),
        "no signature": f"{head}.{body}.",
        "another body": f"{head}.{body[:-4]}AAAA.{issuer.token().rpartition('.')[2]}",
        "no token at all": "nonsense",
    }
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"))) as http:
        assert await status(http, issuer.token()) == 200
        assert await status(http, issuer.token(exp=now - 30)) == 200, "a minute of leeway"
        for what, token in forged.items():
            assert await status(http, token) == 401, what


def _shared(body: str, public: dict[str, Any]) -> str:
    """Signed by hand: no library makes this any more."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').rstrip(b"=").decode()
    mac = hmac.digest(json.dumps(public).encode(), f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_a_rotated_key_is_fetched_once_a_minute_at_most(engine: Engine, issuer: LocalIssuer) -> None:
    now = 0.0
    oidc = Oidc(OidcOptions(issuer.url, "treadle"), now=lambda: now)
    async with asking(engine, oidc) as http:
        old = issuer.token()
        assert await status(http, old) == 200
        assert await status(http, old) == 200
        assert issuer.asked == 1
        issuer.rotate("k2")
        assert await status(http, issuer.token()) == 401, "fetched less than a minute ago"
        assert issuer.asked == 1
        now = 61
        assert await status(http, issuer.token()) == 200
        assert await status(http, old) == 401, "its key is not published any more"
        assert issuer.asked == 2
        for number in range(20):
            await status(http, issuer.token(kid=f"made-up-{number}"))
        assert issuer.asked == 2, "nobody makes us knock at the issuer's door"


async def test_an_issuer_that_is_away_is_503_until_it_is_back_and_known_keys_go_on(
    engine: Engine, issuer: LocalIssuer
) -> None:
    now = 0.0
    issuer.down = True
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"), now=lambda: now)) as http:
        assert await status(http, issuer.token()) == 503
        issuer.down = False
        assert await status(http, issuer.token()) == 200
        issuer.down = True
        now = 120
        assert await status(http, issuer.token()) == 200


async def test_groups_of_theirs_are_roles_here(engine: Engine, issuer: LocalIssuer) -> None:
    options = OidcOptions(
        issuer.url, "treadle", "email", "realm_access.groups", {"ops": "operator", "bosses": "boss"}
    )
    async with asking(engine, Oidc(options)) as http:
        token = issuer.token(email="ann@example.org", realm_access={"groups": ["ops", "bosses", "admin"]})
        mine = (await http.get("/me", headers={"Authorization": f"Bearer {token}"})).json()
        assert (mine["user"], mine["roles"]) == ("ann@example.org", ["operator", "boss"])


async def test_a_token_of_the_store_never_goes_to_the_issuer(engine: Engine, issuer: LocalIssuer) -> None:
    token = await made(engine, "viewer")
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"))) as http:
        assert await status(http, token) == 200
        assert await status(http, "tdl_not_one_of_ours") == 401
    assert issuer.asked == 0


async def test_keys_of_elliptic_curves_are_taken_too(engine: Engine, issuer: LocalIssuer) -> None:
    issuer.keys = {"e1": ec.generate_private_key(ec.SECP256R1())}
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"))) as http:
        assert await status(http, issuer.token(alg="ES256")) == 200


def test_an_issuer_has_an_address_that_cannot_be_read_on_the_way() -> None:
    with pytest.raises(Unsupported, match="https"):
        Oidc(OidcOptions("http://issuer.example", "treadle"))


async def test_the_console_is_told_where_people_log_in_and_may_ask_nobody_else(
    engine: Engine, issuer: LocalIssuer
) -> None:
    console = Oidc(OidcOptions(issuer.url, "treadle", client="console", scope="openid roles"))
    async with asking(engine, console) as http:
        told = await http.get("/login")
        assert told.json() == {
            "access": "tokens",
            "oidc": {
                "issuer": issuer.url,
                "client": "console",
                "audience": "treadle",
                "scope": "openid roles",
            },
        }
        policy = told.headers["content-security-policy"]
        assert policy == f"default-src 'self'; frame-ancestors 'none'; connect-src 'self' {issuer.url}"
    async with asking(engine, Oidc(OidcOptions(issuer.url, "treadle"))) as http:
        told = await http.get("/login")
        assert told.json()["oidc"] is None, "no client, no login there"
        assert "connect-src" not in told.headers["content-security-policy"]
