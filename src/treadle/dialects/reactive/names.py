"""Names of schemas, effects and workflows: `com.acme/Order@1`."""

from __future__ import annotations

import re
from typing import Final

from treadle.kernel.errors import DefinitionError

_NAME: Final = re.compile(r"[a-z][a-z0-9._-]*/[A-Za-z][A-Za-z0-9._-]*@[1-9][0-9]*\Z")

TIMER_EFFECT: Final = "sys/timer.set@1"
RECEIPT_SCHEMA: Final = "sys/EffectReceiptEnvelope@1"
REJECTED_SCHEMA: Final = "sys/EffectReceiptRejected@1"
FRAME_SCHEMA: Final = "sys/EffectStreamFrame@1"
CONTEXT_SCHEMA: Final = "sys/WorkflowContext@1"
HTTP_EFFECT: Final = "sys/http.request@1"
# What may be named in a manifest and needs no definition, because it is always there.
BUILT_IN_EFFECTS: Final = frozenset({TIMER_EFFECT, HTTP_EFFECT, "sys/blob.put@1", "sys/blob.get@1"})
BUILT_IN_SCHEMAS: Final = frozenset(
    {
        RECEIPT_SCHEMA,
        REJECTED_SCHEMA,
        FRAME_SCHEMA,
        CONTEXT_SCHEMA,
        "sys/TimerSetParams@1",
        "sys/TimerSetReceipt@1",
        "sys/TimerFired@1",
        "sys/HttpRequestParams@1",
        "sys/HttpRequestReceipt@1",
    }
)


def is_name(text: object) -> bool:
    return isinstance(text, str) and _NAME.match(text) is not None


def check_name(text: object, what: str) -> str:
    if not is_name(text):
        raise DefinitionError(
            f"{text!r} is not the name of a {what}; write it as com.acme/Name@1",
            code="BAD_NAME",
            where=str(text),
        )
    return str(text)


def family_name(workflow: str) -> str:
    """`com.acme/order@1` takes events of the family `com.acme/orderEvent@1`."""
    name, _, number = workflow.partition("@")
    return f"{name}Event@{number}"
