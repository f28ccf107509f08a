"""Schedules at the console: made with a preview, paused, set going by hand, removed."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Page, expect

from .conftest import Site


def test_a_schedule_is_made_and_what_it_starts_is_seen(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/schedules")
    page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    create = dialog.get_by_role("button", name="Create")
    dialog.get_by_label("Name").fill("hourly")
    dialog.get_by_label("Workflow").select_option("order")
    dialog.get_by_label("When").select_option("cron")
    dialog.get_by_label("Cron").fill("61 * * * *")
    expect(dialog.get_by_role("alert")).to_be_visible()  # there is no minute 61
    expect(create).to_be_disabled()
    dialog.get_by_label("When").select_option("every")
    dialog.get_by_label("Interval").fill("1h")
    expect(dialog.get_by_label("Next runs").get_by_role("listitem")).to_have_count(5)
    dialog.get_by_label("Input (JSON)").fill('{"items": [1, 2]}')
    create.click()
    row = page.get_by_role("listitem", name="hourly")
    expect(row).to_contain_text("every 1h")
    expect(row).to_contain_text(re.compile(r"next in \d+ (min|s|h)"))

    row.get_by_role("button", name="Trigger now").click()
    expect(dialog).to_contain_text("treadle schedule trigger hourly")
    dialog.get_by_role("button", name="Trigger").click()
    expect(page).to_have_url(re.compile("/runs/hourly"))
    expect(page.locator("h1")).to_contain_text("completed")
    runs = httpx.get(f"{site.url}/api/v1/runs", params={"search": "hourly"}).json()["items"]
    # On the hour there is another.
    assert {run["workflow"] for run in runs} == {"order"}


def test_a_schedule_is_paused_resumed_and_deleted(site: Site, page: Page) -> None:
    site.post("/schedules", {"name": "nightly", "workflow": "order", "cron": "30 2 * * *"})
    page.goto(f"{site.url}/schedules")
    row = page.get_by_role("listitem", name="nightly")
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("next in")
    row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("treadle schedule remove nightly")
    dialog.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert httpx.get(f"{site.url}/api/v1/schedules/nightly").status_code == 404
