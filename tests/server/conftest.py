"""An engine in memory with its HTTP API around it, called without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from treadle import Engine
from treadle.server.app import create_app

FLOW = """
metadata: {name: greet, version: "1"}
workload: {name: world}
workflow:
  - step: hello
    tool: {kind: python, code: "def main(name):\\n    return {'text': 'hello ' + name}", args: {name: "{{ workload.name }}"}}
"""

APPROVAL = """
dialect: process
name: approval
version: "1"
tasks:
  review: {roles: [boss], schema: {type: object, required: [ok], properties: {ok: {type: boolean}}}}
steps:
  - task: review
  - await: go
"""


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory:") as engine:
        yield engine


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
        yield client


async def deployed(http: httpx.AsyncClient, **files: str) -> httpx.Response:
    posted = [{"path": f"{name}.yaml", "text": text} for name, text in files.items()]
    return await http.post("/definitions", json={"files": posted})
