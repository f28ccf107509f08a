"""Who works here, what got lost, and who did what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, look_over, served

WORKER = {"worker": "gpu-1", "pools": ["gpu"], "concurrency": 4, "version": "0.1.0", "apps": ["train.py"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that works for no pool itself."""
    with served(tmp_path_factory.mktemp("house"), "--port", "0", "--no-worker") as site:
        yield site


def take(site: Site) -> dict[str, Any]:
    """The next work of the pool, as a worker elsewhere takes it."""
    (item,) = site.post("/work/take", {**WORKER, "limit": 1, "wait": 30})["items"]
    found: dict[str, Any] = item
    return found


def lost(site: Site, id: str) -> None:
    """A run whose worker sent back what nobody can use."""
    site.start("trained", id=id)
    item = take(site)
    bad = {"intent": item["intent"], "lease": item["lease"], "status": "splendid"}
    site.post("/work/settle", {"worker": WORKER["worker"], "receipts": [bad]})


def test_workers_and_servers_are_shown_with_their_pools_and_load(site: Site, page: Page) -> None:
    site.start("trained", id="held")
    item = take(site)
    site.start("trained", id="queued")
    page.goto(f"{site.url}/workers")
    server = page.get_by_role("table", name="Servers").get_by_role("row").nth(1)
    expect(server).to_contain_text(site.url)
    expect(server).to_contain_text("live")
    worker = page.get_by_role("table", name="Workers").get_by_role("row", name="gpu-1")
    expect(worker).to_contain_text("1 of 4")
    expect(worker).to_contain_text("train.py")
    pool = page.get_by_role("table", name="Pools").get_by_role("row", name="gpu")
    expect(pool.get_by_role("meter")).to_have_attribute("aria-valuetext", "1 of 4")
    expect(pool.get_by_role("cell").nth(1)).to_have_text("1")  # queued
    receipt = {"intent": item["intent"], "lease": item["lease"], "status": "ok", "value": 1}
    site.post("/work/settle", {"worker": "gpu-1", "receipts": [receipt]})
    expect(worker).to_contain_text("0 of 4")  # live: nobody reloads
    site.post("/runs/queued/cancel")


def test_a_dead_letter_is_read_and_discarded(site: Site, page: Page) -> None:
    lost(site, "useless")
    page.goto(f"{site.url}/deadletters")
    letter = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="useless"))
    expect(letter).to_contain_text("worker gpu-1")
    letter.get_by_text("What came back").click()
    expect(letter.get_by_label("What came back")).to_contain_text("splendid")
    letter.get_by_role("button", name="Discard").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("/discard")  # the same from a terminal
    dialog.get_by_role("button", name="Discard").click()
    expect(letter).to_have_count(0)
    letters = httpx.get(f"{site.url}/api/v1/deadletters").json()["items"]
    assert [one["run"] for one in letters if one["run"] == "useless"] == []


def test_an_admin_reads_who_did_what_and_nobody_else_is_shown_the_page(site: Site, page: Page) -> None:
    as_ann = {"X-Treadle-User": "ann", "X-Treadle-Roles": "admin"}
    begun = httpx.post(
        f"{site.url}/api/v1/runs", json={"workflow": "approval", "id": "audited"}, headers=as_ann
    )
    assert begun.status_code == 201
    assert httpx.post(f"{site.url}/api/v1/runs/audited/retry", headers=as_ann).status_code >= 400
    page.goto(f"{site.url}/audit?user=ann")
    table = page.get_by_role("table", name="Audit")
    expect(table.get_by_role("row").filter(has_text="run.start")).to_contain_text("audited")
    expect(table.get_by_role("row").filter(has_text="run.retry")).to_contain_text("refused")
    page.get_by_label("Outcome").select_option("refused")
    expect(table.get_by_role("row").filter(has_text="run.start")).to_have_count(0)
    expect(page).to_have_url(re.compile("status=refused"))
    # A viewer is not offered it, and is led away from its address.
    page.set_extra_http_headers({"X-Treadle-User": "vic", "X-Treadle-Roles": "viewer"})
    page.goto(f"{site.url}/audit")
    expect(page).to_have_url(re.compile("/runs$"))
    expect(page.get_by_role("link", name="audited")).to_be_visible()
    expect(page.get_by_role("link", name="Audit", exact=True)).to_have_count(0)


@pytest.mark.parametrize("name", ["workers", "deadletters", "audit"])
def test_the_pages_of_the_house_are_within_reach_of_everybody(
    site: Site, browser: Browser, name: str
) -> None:
    lost(site, f"lost-{name}")
    with look_over(browser, f"{site.url}/{name}", name) as page:
        expect(page.get_by_role("list" if name == "deadletters" else "table").last).to_be_visible()
