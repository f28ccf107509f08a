"""The inbox: given to somebody, talked about, and what happened to it; the most urgent first."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import Site, look_over

NUMBERS = itertools.count(1)


@pytest.fixture
def task(site: Site) -> dict[str, Any]:
    id = f"invoice-{next(NUMBERS)}"
    site.start("urgent", id=id, input={"amount": 900}, reference=f"order of {id}")
    site.post(f"/runs/{id}/wait")
    (found,) = httpx.get(f"{site.url}/api/v1/tasks", params={"run": id}).json()["items"]
    row: dict[str, Any] = found
    return row


def test_a_task_is_assigned_and_talked_about_and_its_history_is_told(
    site: Site, page: Page, task: dict[str, Any]
) -> None:
    page.goto(f"{site.url}/tasks?task={task['id']}")
    view = page.get_by_label("Approve the payment", exact=True)
    expect(view).to_contain_text("due in")
    view.get_by_role("button", name="Claim").click()
    expect(view.get_by_label("History")).to_contain_text("claimed by local")
    view.get_by_role("button", name="Assign…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("User").fill("bob")
    dialog.get_by_role("button", name="Assign").click()
    expect(view).to_contain_text("claimed by bob")
    view.get_by_label("Comment").fill("is this the right account?")
    view.get_by_role("button", name="Add").click()
    history = view.get_by_label("History")
    expect(history).to_contain_text("local gave it to bob")
    expect(history).to_contain_text("local: is this the right account?")
    found = httpx.get(f"{site.url}/api/v1/tasks/{task['id']}").json()
    assert found["assignee"] == "bob"
    assert found["history"][-1]["text"] == "is this the right account?"


def test_the_inbox_is_narrowed_by_whose_and_when_it_is_due(
    site: Site, page: Page, task: dict[str, Any]
) -> None:
    page.goto(f"{site.url}/tasks")
    mine = page.get_by_role("listitem").filter(has_text=task["reference"])
    expect(mine).to_contain_text("due in")
    page.get_by_label("Due").select_option("none")
    expect(mine).to_have_count(0)
    page.get_by_label("Due").select_option("today")
    expect(mine).to_be_visible()
    page.get_by_label("Whose").select_option("mine")
    expect(mine).to_have_count(0)  # nobody has it yet
    mine_now = httpx.post(f"{site.url}/api/v1/tasks/{task['id']}/claim", json={})
    assert mine_now.status_code == 200
    expect(mine).to_be_visible()
    expect(page).to_have_url(re.compile("due=today&assignee=local"))


def test_a_task_is_within_reach_of_everybody(site: Site, browser: Browser, task: dict[str, Any]) -> None:
    with look_over(browser, f"{site.url}/tasks?task={task['id']}", "task") as page:
        expect(page.get_by_label("Approve the payment", exact=True)).to_be_visible()
