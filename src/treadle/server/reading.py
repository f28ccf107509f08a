"""What a route's function is given, read off a request by the fields that its signature was made into.

The fields are the framework's, the same that the description of the API is made of, so what is described is what is
checked. Its machinery around them (trees of dependencies, stacks to close, forms) is for what our routes do not have, and
would cost several times as much as what they do with what they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

# A body that was not sent.
NOTHING: Final = object()


# What was found, by the names of the function's parameters, and what is wrong with it.
Found = tuple[dict[str, Any], list[Any]]


class Arguments:
    """How a request becomes the arguments of a function."""

    def __init__(self, signature: Dependant) -> None:
        if signature.dependencies or signature.cookie_params or len(signature.body_params) > 1:
            raise TypeError(f"{signature.path}: a route takes its path, a query, headers and one body")
        self._path, self._query = signature.path_params, signature.query_params
        self._headers = [(field, field.alias.lower().encode("latin-1")) for field in signature.header_params]
        self._body = signature.body_params[0] if signature.body_params else None
        # Most requests say nothing of what they may leave out, and then it is always the same.
        self._silent: dict[str, Found] = {
            **{field.name: request_params_to_args([field], {}) for field in self._query},
            **{field.name: request_params_to_args([field], Headers({})) for field, _ in self._headers},
        }
        self.query_names = frozenset(field.alias for field in self._query)

    def of(self, request: Request, body: object) -> dict[str, Any]:
        """What the function is called with, but for the request itself; raises what is wrong with all of it."""
        values: dict[str, Any] = {}
        wrong: list[Any] = []
        for found, errors in self._parts(request, body):
            values.update(found)
            if errors:
                wrong += errors
        if wrong:
            raise RequestValidationError(wrong)
        return values

    def _parts(self, request: Request, body: object) -> Iterator[Found]:
        for field in self._path:
            value, errors = field.validate(request.path_params[field.alias], {}, loc=("path", field.alias))
            yield {field.name: value}, errors
        if self._query:
            asked = request.query_params if request.scope["query_string"] else {}
            for field in self._query:
                said = field.alias in asked
                yield request_params_to_args([field], asked) if said else self._silent[field.name]
        if self._headers:
            names = {name for name, _ in request.scope["headers"]}
            for field, name in self._headers:
                said = name in names
                yield request_params_to_args([field], request.headers) if said else self._silent[field.name]
        if self._body is not None:
            yield self._read(body)

    def _read(self, body: object) -> Found:
        field = self._body
        assert field is not None, "only asked where there is a body"
        if body is not NOTHING:
            value, errors = field.validate(body, {}, loc=("body",))
            return {field.name: value}, errors
        if field.field_info.is_required():
            return {}, [{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}]
        return {field.name: field.default}, []
