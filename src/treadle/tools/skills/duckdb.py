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
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.work.agent_skill import Skill, ToolContext

from .files import ROOT, root_of

ROWS_MAX: Final = 1_000
CHARS_MAX: Final = 1024 * 1024
SECONDS_MAX: Final = 60.0
# All that a child needs of our environment; keys and tokens are not among it.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "SYSTEMROOT")


def duckdb_skill() -> Skill:
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
        return await _query(input["sql"], str(root_of(ctx)), ctx.config.get("DUCKDB_DATABASE"))

    return skill


async def _query(sql: str, root: str, database: str | None, seconds: float = SECONDS_MAX) -> Any:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "treadle.tools.skills.duckdb_child"),
        cwd=root,
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    path = database and os.path.abspath(database)
    asked = json.dumps({"sql": sql, "database": path, "rows_max": ROWS_MAX, "chars_max": CHARS_MAX})
    try:
        async with asyncio.timeout(seconds):
            out, err = await child.communicate(asked.encode())
    except TimeoutError as error:
        raise ToolError(f"the query took longer than {seconds:g} s") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if not out:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["it gave no reason"]
        raise ToolError(f"the query could not be run: {last[0]}")
    found = json.loads(out)
    if "error" in found:
        raise ToolError(found["error"])
    return found["ok"]
