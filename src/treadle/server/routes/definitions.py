"""Definitions: deploy, list, look at, draw, export."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from treadle.kernel.errors import UnknownWorkflow
from treadle.kernel.values import encode
from treadle.lang.definition import Definition
from treadle.server import bodies, scope, shapes
from treadle.server.access import ADMIN, BLOBS, VIEWER
from treadle.server.paging import cursor, position
from treadle.server.problems import RequestRefused
from treadle.server.routing import Described, JsonAnswer, Routes, actor_of

from .runs import PICTURE, Limit, engine_of, picture

routes = Routes()


@routes.answers(
    "POST", "/definitions", ADMIN, status=201, gives=shapes.Deployed | shapes.CheckShown, also=(200,)
)
async def deploy(request: Request, body: bodies.DefinitionsBody, dry_run: bool = False) -> Response:
    """Deploys files as one folder: all of them or none. Problems come back with file, line and remedy. With the
    validation `warn`, what is wrong is kept as unavailable."""
    bundles = request.app.state.bundles
    if dry_run:
        problems = await bundles.check(body.files)
        return JsonAnswer({"ok": not any(p["severity"] == "error" for p in problems), "problems": problems})
    engine = engine_of(request)
    before = {row["digest"] for row in await engine.definitions()}
    deployed = await bundles.deploy(body.files, by=actor_of(request).user, validation=body.validation)
    found = {definition.name for definition in deployed}
    rows = [row for row in await engine.definitions() if row["name"] in found]
    new = any(row["digest"] not in before for row in rows)
    return JsonAnswer({"items": rows}, 201 if new else 200)


@routes.answers(
    "GET", "/definitions", VIEWER, within=scope.by_itself, gives=shapes.Page[shapes.DefinitionShown]
)
async def listed(
    request: Request, limit: Limit = 100, cursor_: Annotated[str | None, Query(alias="cursor")] = None
) -> Any:
    """The deployed definitions."""
    begin = position(cursor_, {}) or 0
    rows = [row for row in await engine_of(request).definitions() if scope.sees(request, row["name"])]
    more = cursor({}, begin + limit) if len(rows) > begin + limit else None
    return {"items": rows[begin : begin + limit], "next": more}


@routes.answers(
    "GET",
    "/definitions/{name}",
    BLOBS,
    within=scope.definition,
    gives=shapes.DefinitionBody,
    told=Described(media=("application/cbor",)),
)
async def shown(request: Request, name: str) -> Any:
    """One definition with its canonical body; `NAME`, `NAME@VERSION` or a digest. Workers take it as CBOR."""
    row = await _found(request, name)
    if "application/cbor" in request.headers.get("accept", ""):
        return Response(
            encode(msgspec.to_builtins(row, builtin_types=(bytes,))), media_type="application/cbor"
        )
    engine = engine_of(request)
    dialect = engine.dialects[row.dialect]
    versions = await engine.read(lambda reads: reads.versions(row.name))
    claimed = next((one for one in versions if one.digest == row.digest), None)
    return {
        "name": row.name,
        "version": row.version,
        "dialect": row.dialect,
        "digest": row.digest,
        "path": row.path,
        "status": "available" if claimed is None else claimed.status,
        "reasons": [] if claimed is None else claimed.reasons,
        "description": dialect.about(row.body)[0],
        "input_schema": dialect.input_schema(row.body),
        "body": row.body,
    }


@routes.answers(
    "GET", "/definitions/{name}/graph", VIEWER, within=scope.definition, gives=shapes.GraphShown, told=PICTURE
)
async def graph(request: Request, name: str, format: str = "json") -> Response:
    """The picture of a definition."""
    await _found(request, name)
    return picture(await engine_of(request).graph(name), format)


@routes.answers(
    "GET",
    "/definitions/{name}/export",
    VIEWER,
    within=scope.definition,
    told=Described(media=("text/plain",), json=False),
)
async def export(request: Request, name: str, format: str = "yaml", canonical: bool = False) -> Response:
    """A definition as text again."""
    engine = engine_of(request)
    row = await _found(request, name)
    definition = Definition(row.dialect, row.name, row.version, row.body, path=row.path)
    text = engine.dialects[row.dialect].export(definition, format, canonical=canonical)
    return Response(text, media_type="text/plain; charset=utf-8")


async def _found(request: Request, name: str) -> Any:
    try:
        return await engine_of(request).definition(name)
    except UnknownWorkflow as error:
        raise RequestRefused("DEFINITION_NOT_FOUND", error.message) from error
