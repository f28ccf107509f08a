"""What becomes of a question that a provider did not answer.

Rate limits, overload, lost connections and time-outs are asked again after a timer, with the
server's own Retry-After if it gave one; four attempts at most. Everything else is final at once.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.model import Receipt

from .flow import Flow, visit_of
from .states import Branch

ATTEMPTS_MAX: Final = 4
DELAY_S: Final = (1.0, 2.0, 4.0)
DELAY_S_MAX: Final = 3600.0
# Codes that end the run, not just the node: the question could never have been answered.
FATAL: Final = frozenset({"SCRIPT_EXHAUSTED", "SCRIPT_INVALID", "UNKNOWN_PROVIDER"})


def message_of(receipt: Receipt) -> str:
    error = receipt.error or {}
    return str(error.get("message") or error.get("code") or f"the provider's answer was {receipt.status}")


def code_of(receipt: Receipt) -> str:
    return str((receipt.error or {}).get("code") or receipt.status.upper())


def backs_off(flow: Flow, branch: Branch, receipt: Receipt) -> bool:
    """Opens the timer after which the same question is asked again; False if it is final."""
    details = (receipt.error or {}).get("details") or {}
    if not (details.get("retryable") is True or receipt.status == "timeout"):
        return False
    visit = visit_of(branch)
    visit["tries"] += 1
    if visit["tries"] >= ATTEMPTS_MAX:
        return False
    flow.state["retries"] += 1
    wanted = details.get("retry_after_s")
    delay = float(wanted) if isinstance(wanted, int | float) and wanted >= 0 else DELAY_S[visit["tries"] - 1]
    due_ns = flow.ctx.now_ns + int(min(delay, DELAY_S_MAX) * 10**9)
    flow.open(
        "timer", branch["id"], {"name": f"{visit['node']}: retry", "code": code_of(receipt)}, due_ns=due_ns
    )
    return True
