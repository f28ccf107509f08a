"""`workflows`: every deployed Treadle workflow as a tool, whatever its dialect.

A run started by a call has the call's idempotency key in its id, so a call that is repeated finds the run it
started and starts no second one. It shares the settings of the run it was called in (model, secrets, offline,
dry run), is cancelled with it, and where only people can move it on the model is told instead of kept waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from treadle.kernel.errors import RunNotFound, ToolError, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.kernel.values import Value
from treadle.performers.agent.skill import Skill, ToolContext

if TYPE_CHECKING:
    from treadle.lang.definition import Dialect
    from treadle.store.rows import DefinitionRow


class Runs(Protocol):
    """What this skill needs of an engine."""

    # What runs were given besides their settings, by run id.
    configs: dict[str, Mapping[str, Any]]

    @property
    def dialects(self) -> Mapping[str, Dialect]: ...

    async def start(
        self,
        workflow: Any,
        input: Value = None,
        *,
        id: str | None = None,
        model: str | None = None,
        config: Mapping[str, Any] | None = None,
        secrets: str | None = None,
        offline: bool = False,
        dry_run: bool = False,
        skills: Sequence[str] = (),
    ) -> Any: ...

    async def run(self, id: str) -> Any: ...

    async def cancel(self, id: str, reason: str = "") -> dict[str, Any]: ...

    async def definition(self, workflow: Any) -> DefinitionRow: ...

    async def definitions(self) -> list[dict[str, Any]]: ...


async def described(runs: Runs) -> list[dict[str, Any]]:
    """The deployed workflows, each with what a caller has to know to start it."""
    rows = []
    for row in await runs.definitions():
        body: Any = {}
        with suppress(TreadleError):  # one that cannot be loaded here has nothing to say
            body = (await runs.definition(row["digest"])).body
        known = row["dialect"] in runs.dialects and isinstance(body, dict)
        description, inputs = runs.dialects[row["dialect"]].about(body) if known else (None, None)
        rows.append({**row, "description": description or "", "inputs": inputs or {}})
    return rows


def workflows_skill(runs: Runs) -> Skill:
    skill = Skill("workflows", name="Workflows", description="Runs other Treadle workflows", category="tasks")

    @skill.tool(
        "list_workflows",
        description="List the workflows that can be run, with what they do and the input they take",
        idempotent=True,
    )
    async def list_workflows(input: dict[str, Any], ctx: ToolContext) -> Any:
        shown = ("name", "version", "dialect", "description", "inputs")
        return [
            {key: row[key] for key in shown} for row in await described(runs) if row["status"] == "available"
        ]

    @skill.tool(
        "run_workflow",
        description="Run a workflow and give its result, or what it waits for if only people can move it on",
        input_schema={
            "type": "object",
            "properties": {"workflow": {"type": "string", "minLength": 1}, "input": {"type": "object"}},
            "required": ["workflow"],
        },
        idempotent=True,
    )
    async def run_workflow(input: dict[str, Any], ctx: ToolContext) -> Any:
        run = await _started(runs, input["workflow"], input.get("input") or {}, ctx)
        try:
            shown = await run.settled()
        except asyncio.CancelledError:
            await _cancel_with(runs, ctx.run_id, run.id)
            raise
        if shown["status"] not in TERMINAL:
            return {"run": run.id, "status": shown["status"], "waiting_for": shown["waiting_for"]}
        if shown["status"] in ("completed", "partial"):
            return {"run": run.id, "result": shown["result"]}
        message = (shown["error"] or {}).get("message") or ""
        raise ToolError(f"{input['workflow']} ({run.id}) {shown['status']}: {message}")

    return skill


async def _started(runs: Runs, workflow: str, input: Value, ctx: ToolContext) -> Any:
    """The run of this call, found or started."""
    id = f"{ctx.run_id}/{ctx.idempotency_key[:16]}"
    with suppress(RunNotFound):
        return await runs.run(id)
    options = ctx._options
    dialect = (await runs.definition(workflow)).dialect
    if options.get("dry_run") and not runs.dialects[dialect].rehearses:
        raise ToolError(
            f"this is a dry run, and {workflow} (a {dialect}) would do its work: it was not started"
        )
    return await runs.start(
        workflow,
        input,
        id=id,
        model=options.get("model"),
        secrets=options.get("secrets"),
        offline=bool(options.get("offline")),
        dry_run=bool(options.get("dry_run")),
        config=runs.configs.get(ctx.run_id),
        skills=options.get("skills") or (),
    )


async def _cancel_with(runs: Runs, caller: str, id: str) -> None:
    """The call was taken from us. If its run has ended, nobody waits for the started one any more; if only
    this engine ends, the next one goes on with both."""
    with suppress(TreadleError):
        shown = await (await runs.run(caller)).show()
        if shown["status"] in TERMINAL:
            await runs.cancel(id, f"{caller} has ended")
