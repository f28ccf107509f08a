"""`shell`: run a command. Only where the operator sets TREADLE_SHELL=1: a model that may run any
command may do anything its user may."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import ToolError
from treadle.performers.agent.skill import Skill, ToolContext
from treadle.tools.protocol import ToolCall
from treadle.tools.shell import ShellTool


def shell_skill() -> Skill:
    skill = Skill(
        "shell",
        name="Shell",
        description="Runs commands; opt-in",
        config={
            "SHELL": {"description": "Set to 1 to allow commands", "required": True, "env": "TREADLE_SHELL"}
        },
    )
    tool = ShellTool()

    @skill.tool(
        "run_command",
        description="Run a shell command in the workflow's folder",
        input_schema={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1},
                "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 3600},
            },
            "required": ["command"],
        },
    )
    async def run_command(input: dict[str, Any], ctx: ToolContext) -> Any:
        if ctx.config.get("SHELL") not in ("1", "true", "yes"):
            raise ToolError("commands are not allowed here; set TREADLE_SHELL=1 to allow them")
        config = {"cmds": [input["command"]], "timeout_seconds": input.get("timeout_seconds", 60)}
        outcome = await tool.run(
            config, ToolCall(run=ctx.run_id, idempotency_key=ctx.idempotency_key, base=ctx.base)
        )
        if outcome.error is not None and outcome.result is None:
            raise ToolError(str(outcome.error["message"]))
        return outcome.result

    return skill
