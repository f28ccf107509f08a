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
    written = (FLOWS / "order.yaml").read_text("utf-8").replace("name: order", "name: sale")
    changed = written.replace('version: "1"', 'version: "2"').replace("card declined", "card refused")
    for text in (written, changed):
        site.post("/definitions", {"files": [{"path": "sale.yaml", "text": text}]})
    page.goto(f"{site.url}/definitions")
    page.get_by_role("table", name="Definitions").get_by_role("row", name="sale@2").get_by_role(
        "link"
    ).click()
    page.get_by_label("Compare with").select_option("sale@1")
    changes = page.get_by_label("Changes")
    expect(changes.locator(".was").filter(has_text="card declined")).to_be_visible()
    expect(changes.locator(".is").filter(has_text="card refused")).to_be_visible()
    expect(page).to_have_url(re.compile("than=sale%401"))
    page.get_by_label("Version", exact=True).select_option("sale@1")
    expect(page).to_have_url(re.compile("/definitions/sale%401"))


def test_what_the_analysis_found_stands_at_its_line(site: Site, browser: Browser) -> None:
    site.post("/definitions", {"files": [{"path": "careless.yaml", "text": CARELESS}]})
    with look_over(browser, f"{site.url}/definitions/careless", "findings") as page:
        note = page.get_by_label("Source").get_by_role("note")
        expect(note).to_contain_text("nothing asks for the task forgotten")
        expect(page.locator(".source .found .number")).to_have_text(re.compile(r"\d+"))
        note.scroll_into_view_if_needed()


def large(steps: int) -> str:
    """A chain with a short cut at every tenth step."""
    lines = ['metadata: {name: large, version: "1"}', "workflow:"]
    for n in range(steps):
        arcs = [f"{{step: s{n + 1}}}"] if n + 1 < steps else []
        if n % 10 == 0 and n + 5 < steps:
            arcs.append(f'{{step: s{n + 5}, when: "{{{{ false }}}}"}}')
        lines += [f"  - step: s{n}", "    tool: {kind: noop}"]
        lines += [f"    next: {{arcs: [{', '.join(arcs)}]}}"] if arcs else []
    return "\n".join(lines) + "\n"


def test_a_large_picture_is_folded_opens_where_one_looks_and_is_a_list_as_well(
    site: Site, browser: Browser
) -> None:
    site.post("/definitions", {"files": [{"path": "large.yaml", "text": large(160)}]})
    with look_over(browser, f"{site.url}/definitions/large", "large") as page:
        nodes = page.locator(".react-flow__node")
        fold = page.get_by_role("button", name=re.compile(r"^start … s\d+ \d+ nodes"))
        expect(fold).to_be_visible()
        assert nodes.count() < 40
        fold.click()
        expect(page.get_by_role("button", name="s5 noop", exact=True)).to_be_visible()
        page.get_by_role("button", name="Fold", exact=True).click()
        expect(fold).to_be_visible()
        page.get_by_role("button", name="Show all 161").click()
        expect(page.get_by_role("button", name="start", exact=True)).to_be_visible()
        assert nodes.count() < 150, "what is out of sight is not there"
        page.get_by_role("button", name="List", exact=True).click()
        listed = page.get_by_role("region", name="Steps")
        expect(listed.get_by_role("button", name="s3 noop", exact=True)).to_be_visible()
        page.get_by_role("button", name="Picture", exact=True).click()
        page.get_by_role("button", name="Fold", exact=True).click()
        expect(fold).to_be_visible()
