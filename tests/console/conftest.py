"""A server with live runs, and a real browser in front of it.

Chromium comes from the system's packages (`make test` installs it). Without it these tests cannot run: they say so by
failing in CI and by a loud skip elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright
from tests import nursery

from treadle.server.console import FOLDER

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
expect.set_options(timeout=30_000)
FLOWS = Path(__file__).with_name("flows")


def _cannot(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(f"BROWSER TESTS DID NOT RUN: {why}")


# No longer than a module: while it is there, its event loop runs on this thread, and no other test could have one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        _cannot("there is no Chromium; `make browser` installs it")
    if not (FOLDER / "index.html").is_file():
        _cannot("the console is not built; `make web` builds it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@dataclass
class Site:
    url: str
    process: nursery.Process
    store: str

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/api/v1{path}", json=body or {}, timeout=60)
        assert answer.status_code < 300, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def start(self, workflow: str, **more: Any) -> str:
        return str(self.post("/runs", {"workflow": workflow, **more})["id"])


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Site]:
    """A server with the flows of these tests."""
    with serving(folder, "--deploy", str(FLOWS), *options) as site:
        yield site


@contextmanager
def serving(folder: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Site]:
    command = ["-m", "treadle.cli", "serve", "--json", *options]
    process = nursery.Process(command, cwd=folder, env=env, stdout=nursery.PIPE, stderr=nursery.DEVNULL)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Site(said["url"], process, said["store"])
    finally:
        process.kill()
        process.communicate(timeout=30)


# One for all who do not count what is there: starting it is what takes long.
@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("site"), "--port", "0") as site:
        yield site


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which nothing may go wrong in silence."""
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    page = context.new_page()
    page.set_default_timeout(20_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == []


AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
SHOTS = Path(__file__).parents[2] / ".screenshots"


LOOKS: Final[dict[str, tuple[ViewportSize, Literal["dark", "light"]]]] = {
    "light": ({"width": 1360, "height": 860}, "light"),
    "dark": ({"width": 1360, "height": 860}, "dark"),
    "phone": ({"width": 390, "height": 800}, "light"),
}
# The page is the same in all looks but for its colours and what a phone has room for.
_RULES: Final[dict[str, dict[str, Any]]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast"]},
    "phone": {"rules": {"color-contrast": {"enabled": False}}},
}
_VIOLATIONS = (
    "async how => (await axe.run(how)).violations.map(v => [v.id, v.nodes.map(n => n.html).slice(0, 3)])"
)
# What moves has come to rest, but for what never does.
_STILL = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame(); await frame();
  const ends = document.getAnimations().filter(one => one.effect?.getComputedTiming().endTime < 1000);
  await Promise.all(ends.map(one => one.finished.catch(() => null)));
  await frame(); await frame();
}"""


@contextmanager
def look_over(browser: Browser, url: str, name: str) -> Iterator[Page]:
    """A page as the test brings it about; then, light, dark and on a phone: a screenshot, no violation that axe
    finds, nothing wider than the screen."""
    size, scheme = LOOKS["light"]
    # Axe is put into the page, which the policy forbids.
    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(url)
    page.wait_for_load_state("domcontentloaded")
    expect(page.locator("h1").first).to_be_visible()
    yield page
    page.add_script_tag(path=AXE)
    SHOTS.mkdir(exist_ok=True)
    wrong: list[Any] = []
    for look, (size, scheme) in LOOKS.items():
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        page.evaluate(_STILL)
        page.screenshot(path=SHOTS / f"{name}-{look}.png")
        wrong += [[look, *one] for one in page.evaluate(_VIOLATIONS, _RULES[look])]
        if not page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"):
            wrong.append([look, "wider than the screen"])
    context.close()
    assert wrong == []
