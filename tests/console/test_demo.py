"""`treadle serve --demo`: the first look is not an empty page."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from treadle.dialects import INSTALLED

from .conftest import Site, look_over, serving

COMMAND = [sys.executable, "-m", "treadle.cli", "serve", "--demo", "--port", "0", "--json"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "kept").mkdir()
    own = {**os.environ, "TMPDIR": str(folder / "kept")}
    with serving(folder, "--demo", "--port", "0", env=own) as site:
        yield site
        site.process.terminate()
        assert site.process.wait(60) == 0
    # It leaves nothing behind.
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert list((folder / "kept").iterdir()) == []


def test_the_demo_shows_every_dialect_and_every_state_that_matters(demo: Site, page: Page) -> None:
    page.goto(f"{demo.url}/runs")
    for status in ("completed", "waiting", "failed"):
        expect(page.get_by_role("row").filter(has_text=status).first).to_be_visible()
    runs = httpx.get(f"{demo.url}/api/v1/runs").json()["items"]
    assert {run["dialect"] for run in runs} == set(INSTALLED)
    page.get_by_role("link", name="words-broken").click()
    expect(page.get_by_role("alert").first).to_contain_text("has no attribute 'split'")
    page.get_by_role("link", name="Tasks").click()
    expect(page.get_by_role("listitem").first).to_be_visible()
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("listitem", name="every-now-and-then")).to_contain_text("next in")


def test_a_durable_function_shows_with_the_picture_of_what_happened(demo: Site, page: Page) -> None:
    runs = httpx.get(f"{demo.url}/api/v1/runs").json()["items"]
    (id,) = [run["id"] for run in runs if run["dialect"] == "function"][:1]
    page.goto(f"{demo.url}/runs/{id}")
    nodes = page.locator(".react-flow__node")
    expect(nodes.filter(has_text="step orders.charge").first).to_be_visible()


def test_the_demo_is_good_to_look_at(demo: Site, browser: Browser) -> None:
    with look_over(browser, f"{demo.url}/", "demo"):
        pass


def test_the_demo_takes_no_store_of_yours(demo: Site, tmp_path: Path) -> None:
    assert demo.store == "memory:"
    refused = subprocess.run(
        [*COMMAND, "--store", "sqlite:///mine.db"], cwd=tmp_path, text=True, capture_output=True, timeout=60
    )
    assert refused.returncode == 2
    assert "--demo has a store of its own" in refused.stderr + refused.stdout
    assert list(tmp_path.iterdir()) == []
