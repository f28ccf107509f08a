"""`http`: requests to public addresses. Private, loopback and link-local ones are refused where the
socket is opened, on every redirect; TREADLE_HTTP_ALLOW lists exceptions."""

from __future__ import annotations

from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.performers.agent.skill import Skill, ToolContext
from treadle.secrets.redact import without_credentials
from treadle.tools.http import HttpTool
from treadle.tools.protocol import ToolCall

_URL: Final = {"type": "string", "pattern": "^https?://"}
_MAP: Final = {"type": "object", "additionalProperties": {"type": "string"}}
BODY_BYTES_MAX: Final = 1024 * 1024


def http_skill() -> Skill:
    skill = Skill("http", name="HTTP", description="Requests to public web addresses")
    tool = HttpTool(ssrf_safe=True)

    async def send(config: dict[str, Any], ctx: ToolContext) -> Any:
        call = ToolCall(run=ctx.run_id, idempotency_key=ctx.idempotency_key, timeout_s=30.0)
        outcome = await tool.run({**config, "ssrf_safe": True, "max_bytes": BODY_BYTES_MAX}, call)
        answer = outcome.result
        if not isinstance(answer, dict) or "status" not in answer:
            message = str((outcome.error or {}).get("message") or "the request failed")
            raise ToolError(without_credentials(message))
        return {"status": answer["status"], "body": answer.get("data")}

    @skill.tool(
        "http_get",
        description="Fetch a web address",
        input_schema={"type": "object", "properties": {"url": _URL, "headers": _MAP}, "required": ["url"]},
        idempotent=True,
    )
    async def http_get(input: dict[str, Any], ctx: ToolContext) -> Any:
        return await send({"method": "GET", "url": input["url"], "headers": input.get("headers") or {}}, ctx)

    @skill.tool(
        "http_request",
        description="Send a request with any method and a JSON body",
        input_schema={
            "type": "object",
            "properties": {
                "url": _URL,
                "method": {"enum": ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]},
                "headers": _MAP,
                "body": {},
            },
            "required": ["url", "method"],
        },
    )
    async def http_request(input: dict[str, Any], ctx: ToolContext) -> Any:
        config = {"method": input["method"], "url": input["url"], "headers": input.get("headers") or {}}
        if "body" in input:
            config["json"] = input["body"]
        return await send(config, ctx)

    return skill
