"""Policy renewal: a quote, a person who approves dear ones or sends them back, an invoice per cover.

treadle run examples/process/renewal.py -i policy_id=P-7 -i claims=3 --id renewal-1
"""

from __future__ import annotations

from treadle.process import Builder, coalesce, format_, payload, process, result, start, state, task

decide = task(
    "decide",
    roles=["underwriter"],
    title="Renew this policy?",
    payload={"policy": state.policy_id, "total": state.total, "round": state.round},
    schema={
        "type": "object",
        "required": ["answer"],
        "properties": {
            "answer": {"enum": ["approve", "reject", "rework"]},
            "discount": {"type": "number", "minimum": 0},
        },
    },
    timeout="3d",
    escalate_to=["head of underwriting"],
)


@process(
    "PolicyRenewal",
    version="1.0.0",
    title="Policy renewal",
    start={"type": "object", "required": ["policy_id"]},
)
def renewal(p: Builder) -> None:
    p.set({state.policy_id: start.policy_id, state.round: 0, state.answer: "approve"})
    p.reference(start.policy_id)
    p.call(
        "python",
        callable="services:quote",
        payload={"claims": start.claims},
        into="quote",
        timeout="30s",
        retry={"attempts": 3, "backoff": "exponential", "delay": "2s"},
        on_failure=lambda p: p.fail(format_("no quote for {}", state.policy_id), code="NO_QUOTE"),
    )
    p.set(state.total, result.quote.total)
    with p.when(state.total > 1000):
        with p.until(state.answer != "rework", max=5):
            p.set(state.round, state.round + 1)
            p.ask(decide)
            p.set(state.answer, payload.answer)
            p.set(state.total, state.total - coalesce(payload.discount, 0))
        with p.when(state.answer == "reject"):
            p.complete({"renewed": False})
    with p.each("item", in_=result.quote["items"]):
        p.call("python", callable="services:invoice", payload=p.item, into="invoice")
    p.complete({"renewed": True, "total": state.total, "rounds": state.round, "last_invoice": result.invoice})
