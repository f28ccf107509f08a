"""How a server is reached, and what keeps others out: options of `serve`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .output import Usage

_SIZE: Final = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB)")
_UNITS: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_TOKEN_CHARS_MIN: Final = 24


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
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            envvar="TREADLE_TLS_CERT",
            help="Serve over TLS.",
            show_default=False,
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", envvar="TREADLE_TLS_KEY", help="Its key.", show_default=False
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            envvar="TREADLE_TOKEN_FILE",
            help="Holds a token of an admin, for containers.",
            show_default=False,
        ),
    ] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            envvar="TREADLE_CORS",
            help="Pages of this origin may ask; repeatable. Default none.",
            show_default=False,
        ),
    ] = None
    max_body: Annotated[
        str, typer.Option("--max-body", envvar="TREADLE_MAX_BODY", help="How large a body may be.")
    ] = "16MiB"

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
        }


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


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise Usage(f"--max-body: {text!r} is no size; write 16MiB")
    return int(found[1]) * _UNITS[found[2]]
