"""How a server is reached, and what keeps others out: options of `serve`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .output import Usage

if TYPE_CHECKING:
    from treadle.server.access import Issuer

_SIZE: Final = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB)")
_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_TOKEN_CHARS_MIN: Final = 24


def _said(flag: str, metavar: str, help: str) -> Any:
    """An option without a default: of the command line, or of the environment under the same name."""
    name = flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, metavar=metavar, envvar=f"TREADLE_{name}", help=help, show_default=False)


@dataclass(slots=True)
class Door:
    host: Annotated[str, typer.Option("--host", envvar="TREADLE_HOST", help="Address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, envvar="TREADLE_PORT", help="0 picks a free one.")
    ] = 8420
    tls_cert: Annotated[
        Path | None,
        _said("--tls-cert", "FILE", "Serve over TLS."),
    ] = None
    tls_key: Annotated[
        Path | None,
        _said("--tls-key", "FILE", "Its key."),
    ] = None
    token_file: Annotated[
        Path | None,
        _said("--token-file", "FILE", "Holds a token of an admin, for containers."),
    ] = None
    cors: Annotated[
        list[str] | None,
        _said("--cors", "ORIGIN", "Pages of this origin may ask; repeatable. Default none."),
    ] = None
    max_body: Annotated[
        str, typer.Option("--max-body", envvar="TREADLE_MAX_BODY", help="How large a body may be.")
    ] = "16MiB"

    rate_limit: Annotated[
        str | None,
        _said("--rate-limit", "N/s", "Requests of one token or address; default 200/s, none on loopback."),
    ] = None
    oidc_issuer: Annotated[
        str | None,
        _said("--oidc-issuer", "URL", "Who else vouches for people."),
    ] = None
    oidc_audience: Annotated[
        str | None,
        _said("--oidc-audience", "TEXT", "What its tokens must be meant for."),
    ] = None
    oidc_user: Annotated[
        str, typer.Option("--oidc-user", envvar="TREADLE_OIDC_USER", help="The claim that names the user.")
    ] = "sub"
    oidc_roles: Annotated[
        str, typer.Option("--oidc-roles", envvar="TREADLE_OIDC_ROLES", help="The claim that names roles.")
    ] = "roles"
    oidc_map: Annotated[
        list[str] | None,
        _said(
            "--oidc-map",
            "GROUP=ROLE",
            "What a group of theirs is here; repeatable. With one, others count for nothing.",
        ),
    ] = None

    oidc_client: Annotated[
        str | None,
        _said("--oidc-client", "ID", "The public client as which the console logs people in there."),
    ] = None
    oidc_scope: Annotated[
        str, typer.Option("--oidc-scope", envvar="TREADLE_OIDC_SCOPE", help="What that client asks for.")
    ] = "openid"

    def checked(self) -> dict[str, Any]:
        """What `serving.Options` takes of it."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise Usage("--tls-cert and --tls-key go together")
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise Usage(f"there is no file {file}")
        return {
            "host": self.host,
            "port": self.port,
            "certificate": None if self.tls_cert is None else str(self.tls_cert),
            "key": None if self.tls_key is None else str(self.tls_key),
            "token": None if self.token_file is None else _token(self.token_file),
            "origins": tuple(_origin(one) for text in self.cors or () for one in text.split(",")),
            "body_max": _bytes(self.max_body),
            "rate": None if self.rate_limit is None else _rate(self.rate_limit),
            "issuer": self._issuer(),
        }

    def _issuer(self) -> Issuer | None:
        if self.oidc_issuer is None and self.oidc_audience is None:
            if self.oidc_client is not None:
                raise Usage("--oidc-client needs --oidc-issuer and --oidc-audience")
            return None
        if self.oidc_issuer is None or self.oidc_audience is None:
            raise Usage("--oidc-issuer and --oidc-audience go together")
        try:
            from treadle.server.oidc import Oidc, OidcOptions
        except ModuleNotFoundError as error:
            raise Usage(f"--oidc-issuer needs {error.name}: pip install 'treadle[oidc]'") from error
        pairs = [one.partition("=") for text in self.oidc_map or () for one in text.split(",")]
        if any(not group or not role for group, _, role in pairs):
            raise Usage("--oidc-map takes GROUP=ROLE")
        groups = {group: role for group, _, role in pairs}
        return Oidc(
            OidcOptions(
                self.oidc_issuer,
                self.oidc_audience,
                self.oidc_user,
                self.oidc_roles,
                groups,
                self.oidc_client,
                self.oidc_scope,
            )
        )


PLAIN: Final = Door()


def _token(file: Path) -> str:
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Usage(f"--token-file: {file} cannot be read") from error
    if len(found) < _TOKEN_CHARS_MIN or len(found.split()) != 1:
        raise Usage(f"--token-file: {file} holds one token of at least {_TOKEN_CHARS_MIN} characters")
    return found


def _origin(text: str) -> str:
    if not re.fullmatch(r"https?://[^/*\s]+", text):
        raise Usage(f"--cors: {text!r} is no origin; write https://console.example.org, never *")
    return text


def _rate(text: str) -> float:
    found = re.fullmatch(r"([1-9]\d{0,8})(/s)?", text)
    if found is None:
        raise Usage(f"--rate-limit: {text!r} is no rate; write 200/s")
    return float(found[1])


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise Usage(f"--max-body: {text!r} is no size; write 16MiB")
    return int(found[1]) * _UNITS[found[2]]
