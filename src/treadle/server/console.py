"""The console's files, built from `web/` into this package, and the page that shows them.

They are the same for everybody and hold nothing of the store, so they need no role. Everything else the console
shows it asks of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, Response

from .access import EVERYBODY
from .problems import RequestRefused, wrong_method

FOLDER: Final = Path(__file__).with_name("console")
_MISSING: Final = """<!doctype html><html lang="en"><title>Treadle</title><body>
<h1>Treadle is serving</h1><p>The console is not built in this checkout: <code>make web</code> builds it.
The API is at <a href="/api/v1/openapi.json">/api/v1</a>.</p></body></html>"""


def install(app: FastAPI, methods_at: Callable[[str], Sequence[str]], folder: Path) -> None:
    """Everything that is no route of the API: a file of the console, or its page, which then shows the address."""

    async def shown(request: Request) -> Response:
        await app.state.access.judge(request, EVERYBODY)
        name: str = request.path_params["name"]
        if taken := methods_at(f"/{name}"):
            return wrong_method(taken)
        if name.startswith("api/"):
            raise RequestRefused(
                "ROUTE_NOT_FOUND", "there is nothing at this address; see /api/v1/openapi.json"
            )
        file = folder / name
        if name and folder in file.resolve().parents and file.is_file():
            kept = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
            return FileResponse(file, headers={"Cache-Control": kept})
        if "." in name.rpartition("/")[2] and not request.headers.get("accept", "").startswith("text/html"):
            raise RequestRefused("ROUTE_NOT_FOUND", "there is no such file")
        page = folder / "index.html"
        if not page.is_file():
            return HTMLResponse(_MISSING)
        return FileResponse(page, headers={"Cache-Control": "no-cache"})

    app.router.add_route("/{name:path}", shown, methods=["GET"], include_in_schema=False)
