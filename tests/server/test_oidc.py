"""Bearer tokens of an OIDC issuer, which the test runs: discovery, keys, and all that must not be believed."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from treadle import Engine
from treadle.access import trail
from treadle.kernel.errors import Unsupported
from treadle.server.access import AccessOptions
from treadle.server.app import create_app
from treadle.server.oidc import Oidc, OidcOptions

from .test_access import client, made


class LocalIssuer:
    """An issuer on this machine: it publishes its keys, and counts who asks for them."""

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {}
        self.asked = 0
        self.down = False
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if issuer.down:
                    self.send_error(503)
                    return
                if self.path == "/.well-known/openid-configuration":
                    body: dict[str, Any] = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                else:
                    issuer.asked += 1
                    body = {"keys": [issuer.published(name) for name in issuer.keys]}
                sent = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.rotate("k1")

    def published(self, name: str) -> dict[str, Any]:
        key = self.keys[name]
        algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))  # type: ignore[arg-type]
        return {**found, "kid": name, "use": "sig"}

    def rotate(self, name: str) -> None:
        self.keys = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048)}

    def token(self, *, key: Any = None, kid: str | None = None, alg: str = "RS256", **claims: Any) -> str:
        name = next(iter(self.keys))
        said = {
            "iss": self.url,
            "aud": "treadle",
            "sub": "ann",
            "exp": int(time.time()) + 300,
            "roles": ["viewer"],
            **claims,
        }
        said = {claim: value for claim, value in said.items() if value is not None}
        return jwt.encode(said, key or self.keys[name], algorithm=alg, headers={"kid": kid or name})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


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
