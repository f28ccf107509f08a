"""`duckdb`: SQL over files below one folder (CSV, Parquet, JSON) and over a database, if one is set.

What the model writes runs in a process of its own (`duckdb_child`) that reads that folder and
nothing else, and writes nowhere; a database is attached read-only. The process is killed when time
is up.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.performers.agent.skill import Skill, ToolContext
from treadle.tools.watchdog import WATCHDOG

from .files import ROOT, root_of
from .hidden import OwnFiles

ROWS_MAX: Final = 1_000
CHARS_MAX: Final = 1024 * 1024
SECONDS_MAX: Final = 60.0
# All that a child needs of our environment; keys and tokens are not among it.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "SYSTEMROOT")


def duckdb_skill(store: Path | None = None) -> Skill:
    """`store`: the engine's own database, which is not for models."""
    skill = Skill(
        "duckdb",
        name="DuckDB",
        description="SQL over local files",
        category="data",
        config={
            **ROOT,
            "DUCKDB_DATABASE": {"description": "A database file to read", "env": "TREADLE_DUCKDB_DATABASE"},
        },
    )

    @skill.tool(
        "query",
        description="Run one SQL query, for example SELECT * FROM 'sales.csv'. The database, if any, is `db`.",
        input_schema={
            "type": "object",
            "properties": {"sql": {"type": "string", "minLength": 1}},
            "required": ["sql"],
        },
        idempotent=True,
    )
    async def query(input: dict[str, Any], ctx: ToolContext) -> Any:
        if find_spec("duckdb") is None:
            raise ToolError(
                "the skill duckdb needs a package: pip install 'treadle[duckdb]'", code="EXTRA_MISSING"
            )
        database = ctx.config.get("DUCKDB_DATABASE")
        return await _query(input["sql"], str(root_of(ctx)), database, OwnFiles.of(store, ctx))

    return skill


async def _query(
    sql: str, root: str, database: str | None, own: OwnFiles | None = None, seconds: float = SECONDS_MAX
) -> Any:
    asked = {
        "sql": sql,
        "database": database and os.path.abspath(database),
        "rows_max": ROWS_MAX,
        "chars_max": CHARS_MAX,
        "own": asdict(own or OwnFiles()),
    }
    # A place for links; it is ours to remove, because the child may be killed.
    with TemporaryDirectory(prefix="treadle-query-", ignore_cleanup_errors=True) as view:
        out, err = await _ask_child(root, json.dumps({**asked, "view": os.path.realpath(view)}), seconds)
    if not out:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
        raise ToolError(f"the query could not be run: {last[0]}")
    found = json.loads(out)
    if "error" in found:
        raise ToolError(found["error"])
    return found["ok"]


async def _ask_child(root: str, asked: str, seconds: float) -> tuple[bytes, bytes]:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "treadle.performers.agent.skills.duckdb_child"),
        cwd=root,
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with WATCHDOG.over(child.pid):
            async with asyncio.timeout(seconds):
                return await child.communicate(asked.encode())
    except TimeoutError as error:
        raise ToolError(f"the query took longer than {seconds:g} s") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
