"""The application's own run: which manifest is active, what was proposed, what nobody subscribes to.

A proposal is submitted, shadowed, approved or rejected, applied; nothing is implicit. Its moves are
`Patch` events of this run, so they are journaled, replayed and snapshotted like everything else. The
run only keeps the books: whether an apply is safe is for the owner of the cells to say, before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

from treadle.kernel.errors import TreadleError, Unsupported
from treadle.kernel.model import Apply, Decision, Domain, Event, Patch
from treadle.kernel.showing import shown
from treadle.kernel.values import Value

# Who makes moves: the operations of applications alone, which have looked before whether a move is safe.
GOVERNOR: Final = "treadle:governor"

# What each move needs the proposal to be, and what it makes of it.
_MOVES: Final = {
    "shadow": (("submitted", "shadowed"), "shadowed"),
    "approve": (("shadowed",), "approved"),
    "reject": (("submitted", "shadowed", "approved"), "rejected"),
    "apply": (("approved",), "applied"),
}


@dataclass(frozen=True, slots=True)
class Books:
    """The application's own run. It needs no code: a store can say what is active without it."""

    app: str
    manifest: str


class ProposalState(TypedDict):
    """A manifest that somebody proposed, and what has become of it."""

    id: int
    manifest: str
    status: str


class Closing(TypedDict):
    """Who has closed the cells of an application, and until when."""

    token: Value
    until_ns: int


class BooksState(TypedDict):
    """The state of the application's own run."""

    manifest: str
    proposals: list[ProposalState]
    closed: NotRequired[Closing]


class ProposalRefused(TreadleError):
    """A proposal cannot make this move: submit, shadow, approve or reject, apply, in this order."""

    cls = "consistency"
    code = "PROPOSAL_REFUSED"


class ApplyBlocked(TreadleError):
    """The application is not quiescent: something is unfinished, open or queued. details["blockers"]
    lists it; let it finish, or cancel it yourself. Nothing was changed."""

    cls = "consistency"
    code = "APPLY_BLOCKED"


def closed_until(state: Value) -> int:
    """Until when the cells of an application take no events; 0 if they do. Its members agree on an apply meanwhile."""
    closed = (state or {}).get("closed")
    return 0 if closed is None else int(closed["until_ns"])


def is_closed_by(state: Value, token: Value) -> bool:
    return token is not None and ((state or {}).get("closed") or {}).get("token") == token


def governed(data: dict[str, Value]) -> Patch:
    """A move as the event of the application's run."""
    return Patch(data=data, by=GOVERNOR)


def begin(books: Books, input: Value) -> Decision:
    state: BooksState = {"manifest": books.manifest, "proposals": []}
    decision = Decision(
        state=state, status="running", events=[{"type": "manifest", "manifest": books.manifest}]
    )
    if input is not None:
        decision.events.append({"type": "event.unrouted", "schema": input["schema"]})
    return decision


def step(books: Books, state: Value, event: Event) -> Decision:
    match event:
        case Domain():
            return Decision(
                state=state, status="running", events=[{"type": "event.unrouted", "schema": event.schema}]
            )
        case Apply():
            return Decision(state=state, status="running")
        case Patch() if event.by == GOVERNOR:
            return _move(state, event.data)
        case _:
            raise Unsupported(
                f"{books.app} is an application: it takes events and proposals (treadle publish, treadle apply), "
                f"not a {event.kind}"
            )


def _move(state: BooksState, data: dict[str, Value]) -> Decision:
    op, proposals = data["op"], state["proposals"]
    if op == "close":
        state["closed"] = {"token": data["token"], "until_ns": data["until_ns"]}
        return Decision(state=state, status="running", events=[{"type": "cells.closed"}])
    if op == "open":
        if is_closed_by(state, data["token"]):
            del state["closed"]
        return Decision(state=state, status="running", events=[{"type": "cells.opened"}])
    if op == "apply":
        state.pop("closed", None)
    if op == "propose":
        proposals.append({"id": len(proposals) + 1, "manifest": data["manifest"], "status": "submitted"})
        told = {"type": "proposal.submitted", "proposal": len(proposals), "manifest": data["manifest"]}
        return Decision(state=state, status="running", events=[told])
    number = data.get("proposal")
    if op == "apply" and number is None:
        state["manifest"] = data["manifest"]
        return Decision(
            state=state, status="running", events=[{"type": "applied", "manifest": data["manifest"]}]
        )
    proposal = find(state, number)
    needs, becomes = _MOVES[op]
    if proposal["status"] not in needs:
        raise ProposalRefused(
            f"proposal {number} is {proposal['status']}; to {op} it must be {' or '.join(needs)}"
        )
    proposal["status"] = becomes
    if op == "apply":
        state["manifest"] = proposal["manifest"]
    told = {"type": f"proposal.{becomes}", "proposal": number, "manifest": proposal["manifest"]}
    if "report" in data:
        told["report"] = data["report"]
    return Decision(state=state, status="running", events=[told])


def find(state: BooksState | None, number: Value) -> ProposalState:
    for proposal in state["proposals"] if state else ():
        if proposal["id"] == number:
            return proposal
    raise ProposalRefused(f"there is no proposal {shown(number)}")
