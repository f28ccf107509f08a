"""Who one is at the console, and what it then offers: it never offers what the API would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.server.issuer import LocalIssuer

from .conftest import Site, look_over, served


@dataclass
class Guarded:
    """A server whose store has tokens."""

    site: Site
    admin: str

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        answer = httpx.request(
            method, f"{self.site.url}/api/v1{path}", json=body, headers=headers, timeout=60
        )
        assert answer.status_code < 300, answer.text
        return answer.json()

    def token(self, *roles: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", "/tokens", {"user": "ann", "roles": list(roles)})
        return found


@pytest.fixture(scope="module")
def issuer() -> Iterator[LocalIssuer]:
    found = LocalIssuer()
    yield found
    found.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, issuer: LocalIssuer) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    admin = "an-admin-s-token-for-these-tests"
    (folder / "admin.token").write_text(admin, "utf-8")
    doors = ["--token-file", "admin.token", "--oidc-issuer", issuer.url, "--oidc-audience", "treadle"]
    with served(folder, "--port", "0", *doors, "--oidc-client", "console") as site:
        found = Guarded(site, admin)
        found.ask("POST", "/runs", {"workflow": "order", "id": "broke", "input": {"limit": 1}})
        found.ask("POST", "/runs", {"workflow": "approval", "id": "loan"})
        for id in ("broke", "loan"):
            found.ask("POST", f"/runs/{id}/wait")
        yield found


def enter(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in with a token").click()


def at_issuer(page: Page) -> None:
    """To the issuer's own page."""
    page.get_by_role("button", name="Log in with 127.0.0.1").click()
    expect(page.get_by_role("link", name="I am ann")).to_be_visible()


def test_people_log_in_at_their_issuer_and_stay_in_while_it_says_so(
    guarded: Guarded, issuer: LocalIssuer, page: Page
) -> None:
    asked: set[str] = set()
    page.on("request", lambda request: asked.add("/".join(request.url.split("/")[:3])))
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text) if "Security Policy" in said.text else None)
    issuer.lasts_s = 4
    page.goto(f"{guarded.site.url}/runs/broke?tab=state")
    at_issuer(page)
    page.get_by_role("link", name="I am ann").click()
    expect(page.locator("h1")).to_contain_text("card declined")  # where one wanted to go
    expect(page).to_have_url(f"{guarded.site.url}/runs/broke?tab=state")
    expect(page.get_by_role("button", name="ann")).to_be_visible()
    expect(page.get_by_role("button", name="Retry", exact=True)).to_have_count(0)  # a viewer
    # Its tokens end soon, and are replaced before they do; the next one says more of her.
    issuer.claims = {"roles": ["operator"]}
    expect(page.get_by_role("button", name="Retry", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Retry", exact=True)).to_be_visible()
    page.get_by_role("button", name="ann").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in with 127.0.0.1")).to_be_visible()
    assert page.evaluate("Object.keys(sessionStorage)") == []
    assert asked == {guarded.site.url, issuer.url}
    assert refused == []


def test_a_login_that_was_refused_or_not_begun_here_lets_nobody_in(
    guarded: Guarded, issuer: LocalIssuer, page: Page
) -> None:
    page.goto(f"{guarded.site.url}/runs")
    at_issuer(page)
    page.get_by_role("link", name="No").click()
    expect(page.get_by_role("alert")).to_contain_text("The issuer refused: access_denied")
    page.get_by_role("button", name="Try again").click()
    at_issuer(page)
    back = page.get_by_role("link", name="I am ann").get_attribute("href") or ""
    page.goto(re.sub("state=[^&]+", "state=somebody-else-s", back))
    expect(page.get_by_role("alert")).to_contain_text("not begun here")
    page.goto(back)  # nor a second time
    expect(page.get_by_role("alert")).to_contain_text("not begun here")
    assert page.evaluate("sessionStorage.getItem('treadle.token')") is None


def test_a_viewer_sees_everything_and_is_offered_nothing_that_acts(guarded: Guarded, page: Page) -> None:
    page.goto(f"{guarded.site.url}/runs/broke")
    enter(page, "tdl_wrong")
    expect(page.get_by_role("alert")).to_contain_text("wrong, has expired or was revoked")
    viewer = guarded.token("viewer")["token"]
    enter(page, viewer)
    expect(page.locator("h1")).to_contain_text("card declined")  # where one wanted to go
    expect(page.get_by_role("link", name="Compare")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^(Retry|Fork|Cancel)"))).to_have_count(0)
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("link", name="loan")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("button", name="Start a run")).to_have_count(0)
    page.get_by_role("link", name="Definitions").click()
    expect(page.get_by_text("playbook").first).to_be_visible()
    expect(page.get_by_role("button", name="Deploy")).to_have_count(0)
    page.get_by_role("link", name=re.compile("^Tasks")).click()
    page.get_by_role("button", name=re.compile("Review the loan")).click()
    expect(page.get_by_text("Only its roles can answer this task: boss")).to_be_visible()
    expect(page.get_by_role("button", name="Complete")).to_have_count(0)
    refused = httpx.post(
        f"{guarded.site.url}/api/v1/runs/broke/retry", headers={"Authorization": f"Bearer {viewer}"}
    )
    assert refused.status_code == 403


def test_an_operator_acts_and_logs_out(guarded: Guarded, page: Page) -> None:
    operator = guarded.token("operator")["token"]
    page.goto(f"{guarded.site.url}/runs/broke")
    enter(page, operator)
    page.get_by_role("button", name="Retry", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Retry", exact=True).click()
    expect(dialog).not_to_be_visible()
    # A mended definition brings code: that is an admin's.
    expect(page.get_by_role("button", name="Mend and retry")).to_have_count(0)
    refused = httpx.post(
        f"{guarded.site.url}/api/v1/runs/broke/retry",
        json={"files": [{"path": "mended.yaml", "text": "workflow: []"}]},
        headers={"Authorization": f"Bearer {operator}"},
    )
    assert refused.status_code == 403
    kinds = [record["kind"] for record in guarded.ask("GET", "/runs/broke/journal")]
    assert "retry" in kinds
    page.reload()
    expect(page.locator("h1")).to_contain_text("broke")  # the session outlives the page
    page.get_by_role("button", name="ann").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_who_only_answers_tasks_sees_the_inbox_alone(guarded: Guarded, page: Page) -> None:
    page.goto(f"{guarded.site.url}/runs")
    enter(page, guarded.token("boss")["token"])
    expect(page).to_have_url(re.compile("/tasks$"))
    expect(page.get_by_role("link", name="Runs")).to_have_count(0)
    page.get_by_role("button", name=re.compile("Review the loan")).click()
    expect(page.get_by_role("button", name="Complete")).to_be_visible()
    expect(page.get_by_text("Reconnecting")).to_have_count(0)


def test_a_revoked_token_leads_back_to_the_login(guarded: Guarded, page: Page) -> None:
    made = guarded.token("operator")
    page.goto(f"{guarded.site.url}/runs")
    enter(page, made["token"])
    expect(page.get_by_role("link", name="broke")).to_be_visible()
    guarded.ask("DELETE", f"/tokens/{made['id']}")
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_text("Your token has expired or was revoked")).to_be_visible()
    enter(page, guarded.token("operator")["token"])
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()


def test_the_login_is_within_reach_of_everybody(guarded: Guarded, browser: Browser) -> None:
    with look_over(browser, f"{guarded.site.url}/runs", "login"):
        pass
