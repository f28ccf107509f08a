"""The console's files: for everybody, by loopback names, nothing outside their folder."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from treadle import Engine
from treadle.server.app import create_app


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "console"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Treadle</title>")
    (folder / "assets" / "a-1.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


async def asked(engine: Engine, folder: Path, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=create_app(engine, console_files=folder))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("path", ["/", "/runs", "/runs/order%2F1?step=a", "/definitions/a.b"])
async def test_every_address_of_the_console_is_its_page(engine: Engine, built: Path, path: str) -> None:
    answer = await asked(engine, built, path, accept="text/html")
    assert (answer.status_code, answer.text) == (200, "<title>Treadle</title>")
    assert answer.headers["cache-control"] == "no-cache"


async def test_its_assets_are_kept_for_ever_because_their_names_change(engine: Engine, built: Path) -> None:
    answer = await asked(engine, built, "/assets/a-1.js")
    assert answer.text == "1"
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/assets/../../secret.txt", "//etc/passwd"]
)
async def test_nothing_outside_the_folder_is_served(engine: Engine, built: Path, path: str) -> None:
    assert "secret" not in (await asked(engine, built, path)).text
    assert "root:" not in (await asked(engine, built, path)).text


async def test_a_route_that_is_not_there_is_a_problem_and_no_page(engine: Engine, built: Path) -> None:
    answer = await asked(engine, built, "/api/v1/nope", accept="text/html")
    assert (answer.status_code, answer.json()["code"]) == (404, "ROUTE_NOT_FOUND")


async def test_a_checkout_without_the_console_says_how_to_build_it(engine: Engine, tmp_path: Path) -> None:
    assert "make web" in (await asked(engine, tmp_path / "nothing", "/")).text
