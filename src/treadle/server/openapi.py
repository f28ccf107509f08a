"""The description of the API: every route with its role, its body, and every answer that it may give.

What a route answers when all is well is a type (`shapes.py`); what else may become of a request follows from what the
route is: one with a body may meet a body that is not JSON, one that changes something a store that is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from . import shapes
from .access import EVERYBODY, WORKER
from .problems import MEDIA_TYPE, TITLES
from .routing import Described, Route, Routes

_REFS: Final = "#/components/schemas/{model}"
_PROBLEM: Final = "Problem"


def describe(app: FastAPI, parts: Sequence[tuple[str, Routes]]) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas[_PROBLEM] = TypeAdapter(shapes.Problem).json_schema(ref_template=_REFS)
    document["components"]["responses"] = {str(status): _problem(status) for status in TITLES}
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, route, told in _routes(parts):
        for method in route.methods or ():
            operation = document["paths"][path][method.lower()]
            for parameter in operation.get("parameters", ()):
                _without_null(parameter)
            _body(operation, told, schemas)
            _answers(operation, route, told, method)
            if route.role != EVERYBODY:
                operation["security"] = [{"token": []}]
    return document


def _routes(parts: Sequence[tuple[str, Routes]]) -> Iterator[tuple[str, Route, Described]]:
    for prefix, routes in parts:
        for route in routes.routes:
            assert isinstance(route, Route), "routes are made with Routes.answers"
            (method,) = route.methods or {""}
            yield prefix + route.path_format, route, routes.told[method, route.path_format]


def _without_null(parameter: dict[str, Any]) -> None:
    """A parameter that is left out is None to us; nobody can send that."""
    schema = parameter["schema"]
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        schema |= kinds[0]
    elif kinds:
        schema["anyOf"] = kinds


def _body(operation: dict[str, Any], told: Described, schemas: dict[str, Any]) -> None:
    """A body that the route reads by itself."""
    if told.takes is None:
        return
    if isinstance(told.takes, str):
        content: dict[str, Any] = {told.takes: {"schema": {}}}
    else:
        _, made = models_json_schema([(told.takes, "validation")], ref_template=_REFS)
        schemas.update(made.get("$defs", {}))
        reference = {"schema": {"$ref": _REFS.format(model=told.takes.__name__)}}
        content = dict.fromkeys(("application/json", "application/cbor"), reference)
    operation["requestBody"] = {"required": True, "content": content}


def _answers(operation: dict[str, Any], route: Route, told: Described, method: str) -> None:
    found: dict[str, Any] = operation["responses"]
    found.pop("422", None)
    for status, answer in found.items():
        answer["description"] = TITLES.get(int(status), "Done")
        content = answer.get("content", {})
        if not told.json:
            content.clear()
        for media in told.media:
            content[media] = {"schema": {} if media.endswith("cbor") else {"type": "string"}}
    problems = {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in _refusals(route, told, method)
    }
    operation["responses"] = {
        **found,
        **{status: it for status, it in problems.items() if status not in found},
    }


def _refusals(route: Route, told: Described, method: str) -> list[int]:
    """How a request to a route may be refused."""
    found = {403, 429, 500, 503}
    has_body = route.body_field is not None or told.takes is not None
    if route.role != EVERYBODY:
        found.add(401)
    if has_body:
        found |= {400, 408, 413, 415}
    if "cursor" in route.query_names:
        found.add(400)
    if "{" in route.path:
        found.add(404)
    # A parameter that does not exist is refused, too.
    found.add(422)
    if method != "GET":
        found |= {404, 409, 507}
    if route.role == WORKER:
        found.add(426)
    return sorted(found | set(told.refuses))


def _problem(status: int) -> Mapping[str, Any]:
    return {
        "description": TITLES[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REFS.format(model=_PROBLEM)}}},
    }
