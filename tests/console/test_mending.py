"""A run that failed by its definition, mended where it failed."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, look_over


def failed(site: Site, id: str) -> dict[str, str]:
    site.start("order", id=id, input={"limit": 1})
    site.post(f"/runs/{id}/wait")
    found: dict[str, str] = httpx.get(f"{site.url}/api/v1/runs/{id}").json()
    assert found["status"] == "failed"
    return found


def test_a_failed_run_is_mended_and_goes_on_to_its_end(site: Site, page: Page) -> None:
    before = failed(site, "mended")
    page.goto(f"{site.url}/runs/mended?step=charge")
    expect(page.get_by_label("Step charge")).to_contain_text("raise ValueError")  # the traceback
    page.get_by_role("button", name="Mend and retry").click()
    dialog = page.get_by_role("dialog")
    retry = dialog.get_by_role("button", name="Retry with this")
    source = dialog.get_by_label("YAML")
    expect(retry).to_be_disabled()  # nothing is mended yet
    written = source.input_value()
    source.fill(written.replace("kind: noop", "kind: [noop", 1))
    expect(dialog.get_by_label("Problems")).to_contain_text(re.compile(r"error, line \d+: "))
    expect(retry).to_be_disabled()
    assert 'raise ValueError("card declined")' in written
    source.fill(written.replace('raise ValueError("card declined")', "total = limit"))
    retry.click()
    expect(dialog).not_to_be_visible()
    expect(page.locator("h1")).to_contain_text("completed")
    after = httpx.get(f"{site.url}/api/v1/runs/mended").json()
    assert after["state"]["steps"]["charge"]["result"] == {"charged": 1}
    assert after["digest"] != before["digest"]
    # What others start is as it was.
    assert httpx.get(f"{site.url}/api/v1/definitions/order").json()["digest"] == before["digest"]
    assert site.post("/runs/mended/replay")["equal"]


def test_a_stalled_call_is_made_again_with_another_payload(site: Site, page: Page) -> None:
    site.start("paid", id="stuck")
    site.post("/runs/stuck/wait")
    page.goto(f"{site.url}/runs/stuck")
    expect(page.locator("h1")).to_contain_text("too much at once")
    expect(page.get_by_role("button", name="Give up")).to_be_visible()
    page.get_by_role("button", name="Edit and retry").click()
    dialog = page.get_by_role("dialog")
    payload = dialog.get_by_label("Payload (JSON)")
    expect(payload).to_have_value(re.compile('"amount": 300'))  # what was sent is what one mends
    payload.fill("{")
    expect(dialog.get_by_role("button", name="Edit and retry")).to_be_disabled()
    payload.fill('{"amount": 30}')
    expect(dialog).to_contain_text("""treadle retry stuck --input '{"amount":30}'""")
    dialog.get_by_role("button", name="Edit and retry").click()
    expect(page.locator("h1")).to_contain_text("completed")
    assert site.post("/runs/stuck/replay")["equal"]


def test_mending_is_within_reach_of_everybody(site: Site, browser: Browser) -> None:
    failed(site, "to-mend")
    with look_over(browser, f"{site.url}/runs/to-mend", "mending") as page:
        page.get_by_role("button", name="Mend and retry").click()
        source = page.get_by_role("dialog").get_by_label("YAML")
        source.fill(source.input_value().replace("kind: noop", "kind: nope", 1))
        expect(page.get_by_label("Problems")).to_contain_text("nope")
