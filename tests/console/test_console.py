"""The console as a person meets it: in a browser, live, by keyboard, on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, look_over


def test_a_run_is_started_and_watched_to_its_end(site: Site, page: Page, tmp_path: Path) -> None:
    go = tmp_path / "go"
    page.goto(f"{site.url}/runs")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Workflow").select_option("order")
    dialog.get_by_label(re.compile("^Id")).fill("watched")
    expect(dialog.get_by_label("limit")).to_have_attribute(
        "placeholder", "100"
    )  # what is taken if nothing is given
    dialog.get_by_label("hold").fill(str(go))
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile("/runs/watched"))
    expect(page.locator("h1")).to_contain_text("working on charge")
    go.touch()
    expect(page.locator("h1")).to_contain_text("completed")
    expect(page.get_by_label("charge python, done")).to_be_visible()


def test_a_failed_run_shows_why_and_where(site: Site, page: Page) -> None:
    site.start("order", id="broke", input={"limit": 1})
    site.post("/runs/broke/wait")
    page.goto(f"{site.url}/runs/broke")
    expect(page.locator("h1")).to_contain_text("card declined")
    page.get_by_label("charge python, failed").click()
    panel = page.get_by_label("Step charge")
    expect(panel).to_contain_text("card declined")
    expect(panel).to_contain_text("raise ValueError")


def test_a_failed_run_is_retried_from_the_page(site: Site, page: Page) -> None:
    site.start("order", id="again", input={"limit": 1})
    site.post("/runs/again/wait")
    page.goto(f"{site.url}/runs/again")
    page.get_by_role("button", name="Retry", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("treadle retry again")
    dialog.get_by_role("button", name="Retry", exact=True).click()
    expect(dialog).not_to_be_visible()
    expect(page.locator("h1")).to_contain_text("card declined")


def test_the_slider_goes_back_in_time_and_says_what_changed(site: Site, page: Page) -> None:
    site.start("order", id="travelled")
    site.post("/runs/travelled/wait")
    page.goto(f"{site.url}/runs/travelled?at=1&tab=state")
    expect(page.get_by_text("record 1 of")).to_be_visible()
    expect(page.get_by_label("charge python", exact=True)).to_be_visible()  # not begun at record 1
    page.get_by_role("button", name="Compare from here").click()
    page.get_by_role("button", name="Now").click()
    expect(page.get_by_text("steps.charge")).to_be_visible()
    expect(page).to_have_url(re.compile("from=1"))


def test_a_task_is_claimed_and_completed_with_its_form_on_a_phone(site: Site, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    site.start("approval", id="loan")
    site.post("/runs/loan/wait")
    (task,) = httpx.get(f"{site.url}/api/v1/tasks", params={"run": "loan"}).json()["items"]
    page.goto(f"{site.url}/tasks")
    page.get_by_role("button", name=re.compile("Review the loan")).first.click()
    page.goto(f"{site.url}/tasks?task={task['id']}")
    view = page.get_by_label("Review the loan", exact=True)
    expect(view).to_contain_text("Look at the file")
    view.get_by_role("button", name="Claim").click()
    expect(view.get_by_label("History")).to_contain_text("claimed by local")
    view.get_by_label("Approved").check()
    view.get_by_label("Note").fill("fine")
    view.get_by_role("button", name="Complete").click()
    assert site.post("/runs/loan/wait")["status"] == "completed"


def test_runs_are_cancelled_in_bulk_after_a_preview(site: Site, page: Page) -> None:
    for n in range(3):
        site.start("approval", id=f"bulk-{n}")
    page.goto(f"{site.url}/runs?search=bulk-")
    for n in range(3):
        page.get_by_label(f"Choose bulk-{n}").check()
    page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 3 runs?")
    dialog.get_by_role("button", name="Cancel them").click()
    expect(dialog).to_contain_text("3 of 3 done")
    for n in range(3):
        assert httpx.get(f"{site.url}/api/v1/runs/bulk-{n}").json()["status"] == "cancelled"


def test_all_runs_that_match_a_filter_are_cancelled_after_a_preview(site: Site, page: Page) -> None:
    for n in range(5):
        site.start("approval", id=f"sweep-{n}")
    site.post("/runs/sweep-4/cancel")
    page.goto(f"{site.url}/runs?search=sweep-&status=waiting,cancelled")
    expect(page.get_by_label("Choose sweep-0")).to_be_visible()
    page.get_by_label("Choose all that match").check()
    expect(page.get_by_label("Choose sweep-0")).to_be_checked()
    page.get_by_label("Chosen runs").get_by_role("button", name="Retry…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This changes nothing for any of them.")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_label("Chosen runs").get_by_role("button", name="Cancel…").click()
    expect(dialog).to_contain_text("Cancel 4 runs?")
    expect(dialog).to_contain_text("sweep-0")
    expect(dialog).to_contain_text('"search":"sweep-"')
    dialog.get_by_role("button", name="Cancel them").click()
    expect(dialog).to_contain_text("4 of 4 done")
    dialog.get_by_role("button", name="Close").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="sweep-0"))
    expect(row).to_contain_text("cancelled")
    jobs = httpx.get(f"{site.url}/api/v1/bulk").json()["items"]
    assert [(job["action"], job["matched"], job["done"]) for job in jobs[:1]] == [("cancel", 4, 4)]


def test_two_runs_are_compared(site: Site, page: Page) -> None:
    for id, items in (("left", [1]), ("right", [2])):
        site.start("order", id=id, input={"items": items})
        site.post(f"/runs/{id}/wait")
    page.goto(f"{site.url}/compare?a=left&b=right")
    expect(page.get_by_text("input.items")).to_be_visible()


def test_the_keyboard_is_enough(site: Site, page: Page) -> None:
    site.start("order", id="by-keyboard")
    page.goto(f"{site.url}/runs")
    expect(page.get_by_role("link", name="by-keyboard")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_role("dialog").get_by_role("combobox").fill("by-keyb")
    expect(page.get_by_role("option", name=re.compile("by-keyboard"))).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/runs/by-keyboard"))
    expect(page.get_by_role("dialog")).to_be_hidden()
    for _ in range(10):  # one within a second of the other, which a busy machine does not manage at once
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.wait_for_timeout(300)
        if page.url.endswith("/tasks"):
            break
    expect(page).to_have_url(re.compile("/tasks"))


PAGES = {
    "runs": "/runs",
    "run": "/runs/pictured",
    "failed": "/runs/pictured-broken?step=charge",
    "tasks": "/tasks",
    "schedules": "/schedules",
    "definitions": "/definitions",
    "definition": "/definitions/order",
    "compare": "/compare?a=pictured&b=pictured-broken",
}


# As long as the site, which has each of these names once.
@pytest.fixture(scope="session")
def pictured(site: Site) -> None:
    site.start("order", id="pictured")
    site.start("order", id="pictured-broken", input={"limit": 1})
    site.start("approval", id="pictured-loan", reference="C-881")
    site.post("/schedules", {"name": "closing", "workflow": "order", "cron": "30 2 * * *", "paused": True})
    site.post("/schedules", {"name": "reminders", "workflow": "order", "every": "6h"})
    site.post("/schedules/reminders/trigger")
    for id in ("pictured", "pictured-broken"):
        site.post(f"/runs/{id}/wait")


@pytest.mark.usefixtures("pictured")
@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_within_reach_of_everybody(site: Site, browser: Browser, name: str) -> None:
    with look_over(browser, site.url + PAGES[name], name) as page:
        if name in ("run", "failed", "definition"):
            expect(page.locator(".react-flow__node").first).to_be_visible()


def test_dark_is_chosen_and_kept(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs")
    page.get_by_role("button", name="Change to dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Change to light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_an_error_leads_to_what_it_means_and_what_to_do(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs/nobody")
    link = page.get_by_role("alert").get_by_role("link", name="RUN_NOT_FOUND")
    with page.context.expect_page() as opened:
        link.click()
    told = opened.value
    expect(told.get_by_role("heading", name="Remedy")).to_be_visible()
    told.goto(f"{site.url}/docs/errors/BAD_CURSOR")  # a row of a table
    expect(told.get_by_text("begin without a cursor")).to_be_visible()


def test_the_page_obeys_a_strict_policy(site: Site, page: Page) -> None:
    """Nothing from elsewhere, no inline script."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    refused: list[str] = []
    page.on(
        "console",
        lambda message: refused.append(message.text) if "Content Security Policy" in message.text else None,
    )
    page.goto(f"{site.url}/runs")
    expect(page.locator("h1")).to_be_visible()
    assert all(url.startswith(site.url) for url in asked)
    assert refused == []
    policy = httpx.get(f"{site.url}/runs").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_first_load_is_small(site: Site, page: Page) -> None:
    """Under 300 kB gzipped, and the layout engine only when a picture is shown."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site.url}/runs")
    expect(page.locator("h1")).to_be_visible()
    assert not any("elk" in url for url in asked)
    import gzip

    from treadle.server.console import FOLDER

    files = [FOLDER / url.removeprefix(f"{site.url}/") for url in asked if "/assets/" in url]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < 300_000
