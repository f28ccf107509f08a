"""`sys/http.request@1`, and what an HTTP answer leaves in a receipt.

The `http` tool makes the request. To a workflow an answer is an answer, whatever its status: bodies go to the
blobs, the receipt is `ok`. Only where nothing came back is it an error. `rx.tool("http")` keeps the tool's own
view, in which a 4xx or 5xx is an error; that error says what came back.
"""

from __future__ import annotations

import time
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.values import Value, encode
from treadle.tools.protocol import Outcome, Tool, ToolCall
from treadle.work.job import Done, Job

BY = "sys/http"


async def request(tool: Tool, call: ToolCall, job: Job) -> Done:
    asked: dict[str, Any] = job.intent.params["params"]
    config = {
        "method": asked["method"],
        "url": asked["url"],
        "headers": asked["headers"],
        # The bytes as they came: what they mean is for the workflow to say.
        "response": "bytes",
    }
    if asked["body_ref"] is not None:
        try:
            config["body"] = _bytes(await job.load_blob({"checksum": asked["body_ref"]}))
        except TreadleError as error:
            return Done(status="error", error=error.to_value(), by=BY)
    start_ns = time.time_ns()
    outcome = await tool.run(config, call)
    end_ns = time.time_ns()
    if (answer := answered(outcome)) is None:
        return await failed(outcome, job, by=BY)
    body = answer["data"]
    stored = None if not body else (await job.store_blob(body))["checksum"]
    value: dict[str, Value] = {
        "status": answer["status"],
        "headers": answer["headers"],
        "body_ref": stored,
        "timings": {"start_ns": start_ns, "end_ns": end_ns},
    }
    return Done(value=value, by=BY)


def _bytes(body: Value) -> bytes | str:
    if isinstance(body, bytes | str):
        return body
    raise TreadleError("body_ref names a value that is neither bytes nor text", cls="user", code="NOT_A_BODY")


def answered(outcome: Outcome) -> dict[str, Any] | None:
    """What the other side answered; None if nothing came back."""
    return outcome.result if outcome.http is not None and isinstance(outcome.result, dict) else None


async def failed(outcome: Outcome, job: Job, *, by: str) -> Done:
    """The error of a tool as a receipt. Of an HTTP answer it keeps status, headers and body; a large body is
    by reference (`body_ref`)."""
    error = outcome.error or {}
    timeout = error.get("kind") == "timeout"
    details = {"kind": error.get("kind"), **(error.get("details") or {})}
    if (answer := answered(outcome)) is not None:
        details |= {"status": answer["status"], "headers": answer["headers"]}
        if len(encode(answer["data"])) <= PAYLOAD_INLINE_BYTES_MAX:
            details["body"] = answer["data"]
        else:
            details["body_ref"] = (await job.store_blob(answer["data"]))["checksum"]
    known = TreadleError(
        str(error.get("message") or "the tool failed"),
        cls="timeout" if timeout else "transport",
        code=str(error.get("code") or "TOOL_FAILED"),
        details=details,
    )
    return Done(status="timeout" if timeout else "error", error=known.to_value(), by=by)
