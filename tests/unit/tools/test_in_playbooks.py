"""The tools where they live: in playbooks, run by the engine on a real store."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.errors import RunFailed
from treadle.secrets.providers import Secrets

SECRET = "hunter2-hunter2/äé"


async def play(folder: Path, text: str, input: Any = None, *, secrets: Secrets | None = None) -> Any:
    """The result of a playbook, run to its end on a database in `folder`."""
    file = folder / "flow.yaml"
    file.write_text(dedent(text))
    async with Engine(f"sqlite:///{folder}/t.db", secrets=secrets or Secrets(env={})) as engine:
        engine.deploy(str(file))
        run = await engine.start("flow", input or {})
        return await run.result(timeout=60)


def stored_bytes(folder: Path) -> bytes:
    return b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name.startswith("t.db")
    )


async def test_a_large_result_is_had_again_by_reference_and_by_address(tmp_path):
    result = await play(
        tmp_path,
        """
        workflow:
          - step: make
            tool: {kind: python, code: "result = ['x' * 100] * 2000"}
            next: {arcs: [{step: get}]}
          - step: get
            tool:
              - {name: one, kind: artifact, action: get, uri: "{{ make._ref }}"}
              - {name: two, kind: python, args: {all: "{{ one.data }}"}, code: "result = len(all)"}
        """,
    )
    assert result == 2000


async def test_an_artifact_of_the_engine_survives_in_its_store(tmp_path):
    result = await play(
        tmp_path,
        """
        workflow:
          - step: a
            tool:
              - {name: put, kind: artifact, action: put, data: {n: 5}, schema_hint: numbers}
              - {name: get, kind: artifact, action: get, result_ref: "{{ put }}"}
              - {name: address, kind: artifact, action: get, uri: "{{ put._ref }}"}
        """,
    )
    assert result["data"] == {"n": 5}


async def test_an_address_of_another_run_is_not_available(tmp_path):
    with pytest.raises(RunFailed) as caught:
        await play(
            tmp_path,
            "workflow: [{step: a, tool: {kind: artifact, action: get, uri: 'treadle://execution/x/step/y'}}]",
        )
    assert caught.value.error["code"] == "REFERENCE_NOT_AVAILABLE"


async def test_secrets_reach_the_tools_and_nothing_else(tmp_path, web):
    """The server answers with the header it was sent, the code prints it and fails with it."""
    secrets = Secrets({"api": SECRET, "db": {"user": "ann", "password": "pw-" + SECRET}}, env={})
    await play(
        tmp_path,
        """
        keychain: [{name: api, kind: bearer}, {name: db, kind: credential}]
        workload: {url: ""}
        workflow:
          - step: call
            tool:
              - {name: ask, kind: http, url: "{{ workload.url }}", auth: api}
              - name: say
                kind: python
                args: {token: "{{ keychain.db.password }}"}
                code: |
                  import base64
                  print("printing", token)
                  result = {"plain": token, "encoded": base64.b64encode(b"x" + token.encode()).decode(), token: 1}
              - name: boom
                kind: python
                args: {token: "{{ keychain.db.password }}"}
                code: "raise ValueError(token)"
                spec: {policy: {rules: [{else: {then: {do: continue}}}]}}
              - {name: sh, kind: shell, cmd: "echo $T; echo $T >&2", env: {T: "{{ keychain.api.token }}"}}
        """,
        {"url": web.url + "/echo"},
        secrets=secrets,
    )
    assert web.log[0]["headers"]["authorization"].encode("latin-1").decode() == f"Bearer {SECRET}"
    stored = stored_bytes(tmp_path)
    assert b"[redacted:db.password]" in stored
    assert b"[redacted:api" in stored
    assert b"hunter2" not in stored
    assert b"aHVudGVyMi" not in stored


async def test_an_entry_that_cannot_be_resolved_fails_the_run_before_its_first_step(tmp_path):
    with pytest.raises(RunFailed) as caught:
        await play(
            tmp_path,
            f"""
            keychain: [{{name: pg_k8s, kind: postgres_credential}}]
            workflow: [{{step: a, tool: {{kind: shell, cmd: "touch {tmp_path}/ran"}}}}]
            """,
        )
    assert caught.value.error["class"] == "authorization"
    assert "pg_k8s" in caught.value.error["message"]
    assert not (tmp_path / "ran").exists()


async def test_once_in_a_playbook_uses_the_tasks_own_key(tmp_path, pg, run):
    await run("postgres", {**pg, "command": "create table seen (n int)"})
    secrets = Secrets({"pg": pg}, env={})
    text = """
        workflow:
          - step: pages
            loop: {in: [1, 2, 3], iterator: page, spec: {mode: sequential}}
            tool: {kind: postgres, auth: pg, once: true, command: "insert into seen values ({{ iter.page }})"}
        """
    await play(tmp_path, text, secrets=secrets)
    found = await run("postgres", {**pg, "query": "select n from seen order by n"})
    assert [row["n"] for row in found.result["rows"]] == [1, 2, 3]
    keys = await run("postgres", {**pg, "query": "select count(distinct key) n from treadle_once"})
    assert keys.result["rows"] == [{"n": 3}]
