"""`--otlp`: where traces of runs and of work go."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from treadle.kernel.errors import Unsupported

from .output import Usage

OtlpOption = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        metavar="URL",
        envvar="TREADLE_OTLP",
        help="Tell a collector of runs and work, by OTLP over HTTP. Default: as OTEL_EXPORTER_OTLP_ENDPOINT says.",
        show_default=False,
    ),
]


def wanted(otlp: str | None) -> str | bool | None:
    """What an engine or a worker is told: an address, or that the environment names one. Before anything begins: what cannot
    be meant is bad usage."""
    if otlp:
        from treadle.telemetry.settings import settings

        try:
            settings(otlp, os.environ)
        except Unsupported as error:
            raise Usage(error.message) from error
        return otlp
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in os.environ):
        return None
    from treadle.telemetry.settings import is_asked

    return is_asked(os.environ) or None
