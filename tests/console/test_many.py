"""Many runs at once: signalled and retried after a preview, kept as a view, chosen by time, seen from above."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, look_over, served

SCRIPT = Path(__file__).with_name("scripts") / "answered.json"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One of its own: here runs are counted."""
    with served(tmp_path_factory.mktemp("many"), "--port", "0") as site:
        yield site


@pytest.fixture(scope="module", autouse=True)
def begun(site: Site) -> None:
    for n in range(3):
        site.start("parked", id=f"await-{n}")
    site.start("order", id="fine")
    site.start("order", id="broke", input={"limit": 1})
    site.start("approval", id="asked", reference="C-881")
    site.start("answered", id="agent", model=f"scripted:{SCRIPT}")
    for id in ("fine", "broke", "agent"):
        site.post(f"/runs/{id}/wait?until=terminal")


def test_runs_are_signalled_in_bulk_after_a_preview(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs")
    for id in ("await-0", "await-1", "fine"):
        page.get_by_label(f"Choose {id}").check()
    page.get_by_role("button", name="Signal…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Signal 2 runs?")
    expect(dialog).to_contain_text("1 left out")  # it has ended
    expect(dialog).to_contain_text("They await: go")
    send = dialog.get_by_role("button", name="Signal them")
    expect(send).to_be_disabled()
    dialog.get_by_label("Signal", exact=True).fill("go")
    dialog.get_by_label("Data (JSON)").fill("{")
    expect(send).to_be_disabled()
    dialog.get_by_label("Data (JSON)").fill('{"by": "ann"}')
    expect(dialog).to_contain_text("""treadle signal await-1 await-0 go --data '{"by":"ann"}'""")
    send.click()
    expect(dialog).to_contain_text("2 of 2 done")
    for id in ("await-0", "await-1"):
        assert site.post(f"/runs/{id}/wait?until=terminal")["status"] == "completed"
    assert httpx.get(f"{site.url}/api/v1/runs/await-2").json()["status"] == "waiting"


def test_runs_are_retried_in_bulk_after_a_preview(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs?search=bro")
    page.get_by_label("Choose broke").check()
    page.get_by_role("button", name="Retry…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Retry 1 run?")
    expect(dialog).to_contain_text("treadle retry broke")
    dialog.get_by_role("button", name="Retry them").click()
    expect(dialog).to_contain_text("1 of 1 done")
    kinds = [record["kind"] for record in httpx.get(f"{site.url}/api/v1/runs/broke/journal").json()]
    assert "retry" in kinds


def test_a_view_is_kept_shown_and_forgotten(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs?status=completed&workflow=order")
    page.get_by_role("button", name="Keep this view").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("Good orders")
    dialog.get_by_role("button", name="Keep").click()
    page.goto(f"{site.url}/runs")
    page.get_by_role("button", name="Good orders").click()
    expect(page).to_have_url(re.compile("status=completed&workflow=order"))
    expect(page.get_by_role("link", name="fine")).to_be_visible()
    page.get_by_role("button", name="Forget Good orders").click()
    expect(page.get_by_role("button", name="Good orders", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Failed today").click()
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    expect(page.get_by_role("link", name="fine")).to_have_count(0)


def test_a_time_is_chosen_by_dragging_over_the_histogram(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs")
    bars = page.get_by_role("img", name="Runs begun")
    box = bars.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.up()
    expect(page).to_have_url(re.compile("since=.*&until="))
    expect(page.get_by_text("No run matches")).to_be_visible()  # nothing was begun half a day ago
    page.get_by_role("button", name="Any end").click()
    expect(page.get_by_role("link", name="fine")).to_be_visible()


def test_the_overview_says_what_fails_waits_is_slow_and_costs(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/")
    expect(page.get_by_label("Workflows").get_by_role("row", name="order")).to_contain_text("50 %")
    failed = page.get_by_label("Why they failed")
    expect(failed.first).to_contain_text("card declined")
    expect(page.get_by_role("table", name="What runs wait for")).to_contain_text("task review")
    expect(page.get_by_role("table", name="Slowest steps")).to_contain_text("charge")
    cost = page.get_by_role("table", name="Cost of models").get_by_role("row", name="answered")
    expect(cost).to_contain_text("550")
    expect(cost).to_contain_text("$0.0175")
    page.get_by_label("Workflows").get_by_role("link", name=re.compile("1 \\(50 %\\)")).click()
    expect(page).to_have_url(re.compile("status=failed"))
    expect(page.get_by_role("link", name="broke")).to_be_visible()


def test_the_run_of_an_agent_is_read_as_a_conversation_with_what_it_cost(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs/agent?tab=transcript")
    expect(page.get_by_text("500 in, 50 out · $0.0175").first).to_be_visible()
    entries = page.get_by_role("list", name="Transcript").get_by_role("listitem")
    first = entries.first
    expect(first).to_contain_text("gather · turn 1")
    expect(first).to_contain_text("Collect what is known about the question.")
    expect(first).to_contain_text("the blank page")
    expect(first).to_contain_text("412 in, 38 out · $0.0125")
    route = entries.filter(has_text="gather · route")
    expect(route).to_contain_text("Somebody waits for an answer")
    expect(route).to_contain_text("draft")
    expect(page.get_by_label("Timeline of steps")).to_be_visible()


def test_a_step_tells_what_went_in_and_what_came_back(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/runs/fine?step=price")
    panel = page.get_by_label("Step price")
    panel.locator("details.attempt > summary").click()
    expect(panel.get_by_label("Input")).to_contain_text("items")
    expect(panel.get_by_label("Came back")).to_contain_text("12")
    expect(panel).to_contain_text("Idempotency key")


@pytest.mark.parametrize(("name", "at"), [("agent", "/runs/agent?tab=transcript"), ("overview", "/")])
def test_what_is_told_of_many_runs_is_within_reach_of_everybody(
    site: Site, browser: Browser, name: str, at: str
) -> None:
    with look_over(browser, site.url + at, name) as page:
        if name == "agent":
            expect(page.get_by_role("list", name="Transcript")).to_be_visible()
            page.get_by_role("list", name="Transcript").scroll_into_view_if_needed()
        else:
            expect(page.get_by_role("table", name="Cost of models")).to_be_visible()
