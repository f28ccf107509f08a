"""No secret in errors, traces and log lines, whoever writes them (KERNEL §7)."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import AskRequest
from treadle.performers.agent.models.anthropic import AnthropicModel
from treadle.performers.agent.sources import SourceError, resolve_all
from treadle.secrets.logs import cover, knows
from treadle.secrets.providers import Secrets
from treadle.testing.scripted import ScriptedModel

SERVER = str(Path(__file__).with_name("mcp_plain.py"))
TOKEN = "a-very-secret-token-1234"
URL = "https://user:hunter2@example.org/rules.md"


async def test_credentials_in_an_address_are_used_and_not_shown():
    asked: list[str] = []

    async def fetch(url: str) -> tuple[str, str]:
        asked.append(url)
        return "text", "2026-11-15T08:00:00Z"

    found = await resolve_all({"workflow.rules[0]": URL}, base=None, offline=False, fetch=fetch)
    assert asked == [URL]
    assert found["workflow.rules[0]"]["origin"] == "https://example.org/rules.md"
    assert "hunter2" not in json.dumps(found)


@pytest.mark.parametrize("offline", [True, False])
async def test_credentials_in_an_address_are_in_no_error(offline):
    async def fetch(url: str) -> tuple[str, str]:
        raise SourceError(f"{url}: HTTP 404, from http://me:pw@other.example/", code="SOURCE_URL_HTTP_ERROR")

    with pytest.raises(SourceError, match=r"https://example\.org/rules\.md") as caught:
        await resolve_all({"workflow.rules[0]": URL}, base=None, offline=offline, fetch=fetch)
    assert "hunter2" not in str(caught.value)
    assert "me:pw" not in str(caught.value)


@pytest.mark.house
async def test_what_a_server_says_in_the_wrong_place_is_logged_without_secrets(
    tmp_path, flow, monkeypatch, caplog
):
    monkeypatch.setenv("SERVER_TOKEN", TOKEN)
    skill = {"mcp": {"command": sys.executable, "args": [SERVER, "leaky"], "env": {"SERVER_TOKEN": "token"}}}
    (tmp_path / "flow.json").write_text(json.dumps(flow({"a": {"skills": ["calc"]}}, skills={"calc": skill})))
    engine = Engine("memory:")
    engine.models["fake"] = ScriptedModel({"run": {"a": [{"data": {}}]}})
    with caplog.at_level(logging.DEBUG):
        async with engine:
            engine.deploy(str(tmp_path / "flow.json"))
            await (await engine.start("wf", model="fake")).result(timeout=60)
    logged = [record for record in caplog.records if record.name.startswith("mcp.")]
    assert any("connecting with" in record.getMessage() for record in logged), "or this proves nothing"
    assert TOKEN not in caplog.text
    assert "[redacted:SERVER_TOKEN]" in caplog.text


async def test_what_is_asked_is_logged_without_secrets(caplog):
    vault = Secrets({})
    vault.learn("TOKEN", TOKEN)
    knows(vault)

    async def key(name: str) -> str:
        return "sk-test-1234567890"

    model = AnthropicModel(key, base_url="http://127.0.0.1:9", timeout_s=5)
    with caplog.at_level(logging.DEBUG), pytest.raises(Exception, match="reached"):
        await model.ask(AskRequest(instruction=f"Is {TOKEN} good?"))
    await model.close()
    assert "good?" in caplog.text, "or this proves nothing"
    assert TOKEN not in caplog.text


def test_a_traceback_is_cleaned_too_and_other_lines_stay_as_they_are(caplog):
    vault = Secrets({})
    vault.learn("TOKEN", TOKEN)
    knows(vault)
    log = logging.getLogger("httpx2")
    cover()

    def fails(secret: str) -> Any:
        raise ValueError(f"cannot read {secret}")

    with caplog.at_level(logging.INFO):
        for value in (TOKEN, "nothing of interest"):
            try:
                fails(value)
            except ValueError:
                log.exception("it failed with %s", "http://a:b@host/")
        log.info("all is %s", "well")
    first, second, third = caplog.records
    assert TOKEN not in first.getMessage()
    assert "cannot read [redacted:" in first.getMessage()
    assert "http://host/" in first.getMessage()
    assert "a:b" not in second.getMessage()
    assert (third.msg, third.args) == ("all is %s", ("well",))
