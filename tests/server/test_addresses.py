"""An address leads to the route that the framework would find for it, and to no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute

from treadle.server.addresses import Addresses
from treadle.server.app import PARTS
from treadle.server.reading import Arguments
from treadle.server.routing import Route

ADDRESSES = Addresses(PARTS)


def routes() -> Iterator[tuple[str, Route]]:
    for prefix, part in PARTS:
        for route in part.routes:
            assert isinstance(route, Route)
            yield prefix, route


def tried_in_turn(method: str, path: str) -> tuple[Route, dict[str, Any]] | None:
    """As the framework does it: the pattern of each route, one after the other."""
    for prefix, route in routes():
        if path.startswith(prefix) and method in (route.methods or ()):
            found = route.path_regex.match(path.removeprefix(prefix))
            if found is not None:
                named = found.groupdict()
                return route, {name: route.param_convertors[name].convert(named[name]) for name in named}
    return None


@pytest.mark.parametrize("said", ["r-1", "shop%2Forder%401%2Fo-1", "%E2%82%AC%25", "preview", "pool:gpu"])
def test_every_address_leads_where_trying_all_routes_in_turn_leads(said: str) -> None:
    seen = set()
    for prefix, route in routes():
        path = prefix + "/".join(
            said if part.startswith("{") else part for part in route.path_format.split("/")
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"):
            for address in (path, f"{path}/", f"/{path}", f"{path}/more"):
                found = ADDRESSES.find(method, address)
                assert found == tried_in_turn(method, address), (method, address)
                seen |= set() if found is None else {id(found[0])}
    if said == "r-1":
        assert seen == {id(route) for _, route in routes()}, "each route is reached"


def test_a_segment_that_is_empty_is_no_name() -> None:
    assert ADDRESSES.find("GET", "/api/v1/runs/") is None
    assert ADDRESSES.find("POST", "/api/v1/runs//signal") is None


def test_a_route_that_would_need_more_of_the_framework_cannot_be_made() -> None:
    async def two_bodies(first: dict[str, int], second: dict[str, int]) -> None: ...

    plain = APIRoute("/twice", two_bodies, methods=["POST"])
    with pytest.raises(TypeError, match="/twice"):
        Arguments(plain.dependant)
