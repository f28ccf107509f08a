"""A page that is open while things happen: reloaded, cut off, and with the owner of its runs killed."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, served


def test_a_page_that_is_reloaded_in_the_middle_of_a_run_goes_on_live(
    site: Site, page: Page, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    site.start("order", id="reloaded", input={"hold": str(go)})
    page.goto(f"{site.url}/runs/reloaded")
    expect(page.locator("h1")).to_contain_text("working on charge")
    page.reload()
    expect(page.locator("h1")).to_contain_text("working on charge")
    go.touch()
    expect(page.locator("h1")).to_contain_text("completed")
    events = httpx.get(f"{site.url}/api/v1/runs/reloaded/events").json()["items"]
    expect(page.get_by_text(f"{len(events)} events")).to_be_visible()  # none twice, none missing


def test_a_page_that_was_cut_off_in_the_middle_of_a_run_catches_up(
    site: Site, page: Page, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    site.start("order", id="cut-off", input={"hold": str(go)})
    away = False

    def answer(route: object) -> None:
        route.abort() if away else route.fallback()  # type: ignore[attr-defined]

    page.route("**/api/v1/**", answer)
    page.goto(f"{site.url}/runs/cut-off")
    expect(page.locator("h1")).to_contain_text("working on charge")
    away = True
    page.evaluate("window.stop()")  # what is under way is cut, what is tried again fails
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    go.touch()
    site.post("/runs/cut-off/wait")
    expect(page.locator("h1")).to_contain_text("working on charge")  # what was seen stays
    away = False
    expect(page.get_by_text("Reconnecting")).not_to_be_visible()
    expect(page.locator("h1")).to_contain_text("completed")
    events = httpx.get(f"{site.url}/api/v1/runs/cut-off/events").json()["items"]
    expect(page.get_by_text(f"{len(events)} events")).to_be_visible()


def test_pages_go_on_when_their_server_is_killed_another_takes_over_and_it_comes_back(
    tmp_path: Path, browser: Browser
) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/shared.db")
    go = tmp_path / "go"
    context = browser.new_context()
    left, stayed = context.new_page(), context.new_page()
    with served(tmp_path, "--port", "0", *store) as owner, served(tmp_path, "--port", "0", *store) as other:
        owner.start("order", id="moved", input={"hold": str(go)})
        left.goto(f"{owner.url}/runs/moved")
        stayed.goto(f"{other.url}/runs/moved")
        for page in (left, stayed):
            expect(page.locator("h1")).to_contain_text("working on charge")
        owner.process.kill()
        owner.process.wait(30)
        expect(left.get_by_text("Reconnecting")).to_be_visible()
        go.touch()
        expect(stayed.locator("h1")).to_contain_text("completed", timeout=90_000)
        expect(left.locator("h1")).to_contain_text("working on charge")  # what was seen stays
        stayed.get_by_role("link", name="Workers").click()
        expect(stayed.get_by_role("table", name="Servers")).to_contain_text(other.url)
        assert other.post("/runs/moved/replay")["equal"]
        with served(tmp_path, "--port", owner.url.rpartition(":")[2], *store):
            expect(left.get_by_text("Reconnecting")).not_to_be_visible()
            expect(left.locator("h1")).to_contain_text("completed")
    context.close()


def test_new_runs_wait_until_one_comes_back_to_the_top(site: Site, page: Page) -> None:
    for n in range(60):
        site.start("parked", id=f"parked-{n:02}")
    page.goto(f"{site.url}/runs?workflow=parked")
    table = page.get_by_role("table", name="Runs")
    expect(page.get_by_role("link", name="parked-59")).to_be_visible()
    table.evaluate("box => box.scrollTo({top: 600})")
    expect(page.get_by_role("link", name="parked-59")).to_have_count(0)
    site.start("parked", id="late")
    site.post("/runs/parked-40/cancel")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="parked-40"))
    expect(row).to_contain_text("cancelled")  # in its place
    page.get_by_role("button", name="1 new").click()
    expect(page.get_by_role("link", name="late")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("new"))).to_have_count(0)
