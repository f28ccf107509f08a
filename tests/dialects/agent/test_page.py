"""The test that docs/agent.md shows is run, on the workflow that the page begins with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "agent.md"


def block(language: str, holds: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (one,) = [body for body in found if holds in body]
    return str(one)


async def test_the_test_that_the_page_shows_passes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.yaml").write_text(block("yaml", "id: triage"))
    (tmp_path / "answer.md").write_text("Answer them.\n")
    names: dict[str, Any] = {}
    exec(compile(block("python", "async def test_"), str(PAGE), "exec"), names)
    (shown,) = [name for name in names if name.startswith("test_")]
    await names[shown](tmp_path)
