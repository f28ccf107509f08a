"""Definitions at the console: versions side by side, and what the analysis found, at its line."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from .conftest import FLOWS, Site, look_over

CARELESS = """dialect: process
name: careless
version: "1"
tasks:
  review: {roles: [boss]}
  forgotten: {roles: [boss]}
steps:
  - task: review
"""


def test_two_versions_are_compared_line_by_line(site: Site, page: Page) -> None:
    written = (FLOWS / "order.yaml").read_text("utf-8")
    changed = written.replace('version: "1"', 'version: "2"').replace("card declined", "card refused")
    site.post("/definitions", {"files": [{"path": "order.yaml", "text": changed}]})
    page.goto(f"{site.url}/definitions")
    page.get_by_role("table", name="Definitions").get_by_role("row", name="order@2").get_by_role(
        "link"
    ).click()
    page.get_by_label("Compare with").select_option("order@1")
    changes = page.get_by_label("Changes")
    expect(changes.locator(".was").filter(has_text="card declined")).to_be_visible()
    expect(changes.locator(".is").filter(has_text="card refused")).to_be_visible()
    expect(page).to_have_url(re.compile("than=order%401"))
    page.get_by_label("Version", exact=True).select_option("order@1")
    expect(page).to_have_url(re.compile("/definitions/order%401"))


def test_what_the_analysis_found_stands_at_its_line(site: Site, browser: Browser) -> None:
    site.post("/definitions", {"files": [{"path": "careless.yaml", "text": CARELESS}]})
    with look_over(browser, f"{site.url}/definitions/careless", "findings") as page:
        note = page.get_by_label("Source").get_by_role("note")
        expect(note).to_contain_text("nothing asks for the task forgotten")
        expect(page.locator(".source .found .number")).to_have_text(re.compile(r"\d+"))
        note.scroll_into_view_if_needed()
