"""Who works here, what got lost, and who did what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from treadle import Engine

from .conftest import Site, look_over, served

WORKER = {"worker": "gpu-1", "pools": ["gpu"], "concurrency": 4, "version": "0.1.0", "apps": ["train.py"]}


PARTED = """
metadata: {name: parted, version: "1"}
workflow:
  - step: train
    spec: {pool: far}
    tool: {kind: noop, result: 1}
"""


async def part(store: str, folder: Path) -> None:
    """A run that waits for its work, and a letter about just that, as another release may have left it."""
    (folder / "parted.yaml").write_text(PARTED, "utf-8")
    async with Engine(store, work=False) as engine:
        engine.deploy(str(folder / "parted.yaml"))
        run = await engine.start("parted", id="parted")
        (wait,) = (await run.show())["waiting_for"]
        error = {"class": "transport", "code": "ODD", "message": "half of it came"}
        row = {"intent": wait["id"], "run": "parted", "worker": "far-1", "reason": "ODD", "error": error}
        kept = {**row, "size": 4, "sample": "hal…"}
        await engine.operate("deadletter", {"op": "keep", "id": "l-1", "row": kept}, home=row["run"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that works for no pool itself."""
    folder = tmp_path_factory.mktemp("house")
    store = f"sqlite:///{folder}/house.db"
    # In a thread: the browser's loop may be on this one.
    with ThreadPoolExecutor(1) as aside:
        aside.submit(asyncio.run, part(store, folder)).result(60)
    with served(folder, "--port", "0", "--no-worker", "--store", store) as site:
        yield site


def take(site: Site, *pools: str) -> dict[str, Any]:
    """The next work of the pool, as a worker elsewhere takes it."""
    asked = {**WORKER, "pools": list(pools or ["gpu"]), "limit": 1, "wait": 30}
    (item,) = site.post("/work/take", asked)["items"]
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
    shards = httpx.get(f"{site.url}/readyz").json()["shards"]
    expect(server).to_contain_text(f"{shards['held']} of {shards['of']}")
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
    letter.get_by_role("button", name="Replay").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Replay").click()
    # What could not be used failed its work at once: the way on is the run's.
    expect(dialog.get_by_role("alert")).to_contain_text("INTENT_NOT_OPEN")
    expect(dialog.get_by_role("link", name="useless")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    letter.get_by_role("button", name="Discard").click()
    expect(dialog).to_contain_text("treadle deadletter discard")  # the same from a terminal
    dialog.get_by_role("button", name="Discard").click()
    expect(letter).to_have_count(0)
    letters = httpx.get(f"{site.url}/api/v1/deadletters").json()["items"]
    assert [one["run"] for one in letters if one["run"] == "useless"] == []


def test_a_dead_letter_whose_work_is_still_waited_for_is_replayed(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/deadletters")
    letter = page.get_by_role("listitem").filter(has=page.get_by_role("link", name="parted"))
    expect(letter).to_contain_text("half of it came")
    intent = httpx.get(f"{site.url}/api/v1/deadletters/l-1").json()["intent"]
    letter.get_by_role("button", name="Replay").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("treadle deadletter replay l-1")
    dialog.get_by_role("button", name="Replay").click()
    expect(letter).to_have_count(0)
    assert take(site, "far")["intent"] == intent
    site.post("/runs/parted/cancel")


def test_who_is_in_line_is_told_its_place_and_what_limits_it(site: Site, page: Page) -> None:
    limit = httpx.put(f"{site.url}/api/v1/limits/parked", json={"concurrency": 1, "queue": 5})
    assert limit.status_code == 200
    for id in ("goes-on", "in-line"):
        site.start("parked", id=id)
    page.goto(f"{site.url}/runs?workflow=parked")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="in-line"))
    expect(row).to_contain_text("in line at place 1")
    page.get_by_role("link", name="Workers").click()
    limits = page.get_by_role("table", name="Limits").get_by_role("row", name="parked")
    expect(limits).to_contain_text("1 at once, 5 in line")
    limits.get_by_role("link", name="1", exact=True).click()
    expect(page).to_have_url(re.compile("status=queued&workflow=parked"))
    expect(page.get_by_role("link", name="goes-on")).to_have_count(0)
    site.post("/runs/goes-on/cancel")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(row).to_contain_text("waiting for the signal go")  # its turn came
    page.goto(f"{site.url}/definitions/parked")
    expect(page.get_by_text("at most 1 at once, 5 in line: 1 running")).to_be_visible()


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
