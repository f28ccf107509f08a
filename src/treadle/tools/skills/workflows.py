"""`workflows`: every deployed Treadle workflow as a tool, whatever its dialect.

A run started by a call has the call's idempotency key for its id, so a call that is repeated finds
the run it started and starts no second one.
"""

from __future__ import annotations

from typing import Any, Protocol

from treadle.kernel.errors import RunFailed, ToolError
from treadle.work.agent_skill import Skill, ToolContext


class Runs(Protocol):
    """What this skill needs of an engine."""

    async def start(self, workflow: Any, input: Any = None, *, id: str | None = None) -> Any: ...

    async def definitions(self) -> list[dict[str, Any]]: ...


def workflows_skill(runs: Runs) -> Skill:
    skill = Skill("workflows", name="Workflows", description="Runs other Treadle workflows", category="tasks")

    @skill.tool("list_workflows", description="List the workflows that can be run", idempotent=True)
    async def list_workflows(input: dict[str, Any], ctx: ToolContext) -> Any:
        return [
            {"name": row["name"], "version": row["version"], "dialect": row["dialect"]}
            for row in await runs.definitions()
        ]

    @skill.tool(
        "run_workflow",
        description="Run a workflow to its end and give its result",
        input_schema={
            "type": "object",
            "properties": {"workflow": {"type": "string", "minLength": 1}, "input": {"type": "object"}},
            "required": ["workflow"],
        },
        idempotent=True,
    )
    async def run_workflow(input: dict[str, Any], ctx: ToolContext) -> Any:
        run = await runs.start(
            input["workflow"], input.get("input") or {}, id=f"{ctx.run_id}/{ctx.idempotency_key[:16]}"
        )
        try:
            return {"run": run.id, "result": await run.result()}
        except RunFailed as error:
            message = (error.error or {}).get("message") or error.message
            raise ToolError(f"{input['workflow']} ({run.id}) failed: {message}") from error

    return skill
