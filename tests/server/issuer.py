"""An OIDC issuer on this machine: discovery, keys, and a login with the authorization code flow and PKCE."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm


class LocalIssuer:
    """Publishes its keys and counts who asks for them; whoever logs in is ann, once she has clicked."""

    def __init__(self) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = {}
        self.asked = 0
        self.down = False
        # How long its tokens are good, and what the next ones say besides.
        self.lasts_s = 300
        self.claims: dict[str, Any] = {}
        # Codes and refresh tokens that were given out, with what they were asked with; each is good once.
        self.codes: dict[str, dict[str, str]] = {}
        self.refreshing: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.rotate("k1")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(at.query).items()}
                if issuer.down:
                    self.send_error(503)
                elif at.path == "/authorize":
                    self._send(200, issuer.page(query).encode(), "text/html")
                elif at.path == "/.well-known/openid-configuration":
                    self._json(200, issuer.about())
                else:
                    issuer.asked += 1
                    self._json(200, {"keys": [issuer.published(name) for name in issuer.keys]})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                found = issuer.exchanged({name: values[0] for name, values in parse_qs(body).items()})
                self._json(400 if "error" in found else 200, found)

            def _json(self, status: int, body: dict[str, Any]) -> None:
                self._send(status, json.dumps(body).encode(), "application/json")

            def _send(self, status: int, sent: bytes, media: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", media)
                self.send_header("Content-Length", str(len(sent)))
                self.send_header("Access-Control-Allow-Origin", "*")
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                return

        return Handler

    def about(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }

    def page(self, asked: dict[str, str]) -> str:
        """Asks ann whether it is she: a link back with a code, another with a refusal."""
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_hex(8)
        self.codes[code] = asked
        back = {"state": asked["state"]}
        yes = f"{asked['redirect_uri']}?{urlencode({**back, 'code': code})}"
        no = f"{asked['redirect_uri']}?{urlencode({**back, 'error': 'access_denied'})}"
        return f'<!doctype html><a href="{yes}">I am ann</a> <a href="{no}">No</a>'

    def exchanged(self, given: dict[str, str]) -> dict[str, Any]:
        """A code, or a refresh token, for tokens."""
        nonce: str | None = None
        if given["grant_type"] == "refresh_token":
            if given["refresh_token"] not in self.refreshing:
                return {"error": "invalid_grant"}
            self.refreshing.discard(given["refresh_token"])
        else:
            asked = self.codes.pop(given["code"], None)
            digest = hashlib.sha256(given["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if asked is None or asked["code_challenge"] != challenge:
                return {"error": "invalid_grant"}
            if any(asked[name] != given[name] for name in ("client_id", "redirect_uri")):
                return {"error": "invalid_grant"}
            nonce = asked["nonce"]
        until = int(time.time()) + self.lasts_s
        again = secrets.token_hex(8)
        self.refreshing.add(again)
        return {
            "token_type": "Bearer",
            "expires_in": self.lasts_s,
            "access_token": self.token(exp=until, **self.claims),
            "id_token": self.token(exp=until, aud=given["client_id"], nonce=nonce),
            "refresh_token": again,
        }

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
