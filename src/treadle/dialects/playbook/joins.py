"""Fan-in by choice: `step.spec.policy.admit.join` turns several tokens into one (PLAYBOOK §5.24).

Without it every token runs its step. A tracker per key collects tokens until it is complete; then
one token goes on, whose `args.tokens` are the args of each. An incomplete tracker keeps the run
from completing, as seed 000 §6.1(3) says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .marking import Turn, canonical
from .model import Join, Step

if TYPE_CHECKING:
    from .states import Collected, Gathering, PlaybookState, TokenState


def absorb(turn: Turn, name: str, step: Step, token: TokenState) -> bool:
    """Takes a token into its tracker. True if the token was used up, False if it goes on itself."""
    join = step.join
    if join is None or token.get("joined") or _is_stranger(join, token):
        return False
    scope = turn.scope(token["args"], event=token.get("event") or {})
    key = str(join.key.render(scope))
    trackers = turn.state["joins"].setdefault(step.name, {})
    source = token.get("from")
    if (known := trackers.get(key)) is not None and known.get("fired") and source in known["from"]:
        # Not a late one: the next round begins, and what has not come of the last will not be missed.
        del trackers[key]
    tracker = trackers.setdefault(key, {"tokens": [], "from": []})
    tracker["tokens"].append({"from": source, "args": token["args"]})
    if source is not None and source not in tracker["from"]:
        tracker["from"].append(source)
    del turn.state["tokens"][name]
    if tracker.get("fired"):
        if _all_came(join, tracker):
            _drop(turn, step.name, key)
        return True
    if not _complete(join, tracker):
        turn.emit("join.waiting", step=step.name, data={"key": key, "tokens": len(tracker["tokens"])})
        return True
    turn.emit("join.completed", step=step.name, data={"key": key, "tokens": len(tracker["tokens"])})
    args = {"tokens": [item["args"] for item in _in_order(join, tracker)]}
    # Late tokens of those that were not waited for belong to this round still.
    if join.mode != "all" and not _all_came(join, tracker):
        tracker["fired"] = True
    else:
        _drop(turn, step.name, key)
    joined: TokenState = {**token, "args": turn.light_args(canonical(args)), "joined": True}
    turn.state["n"] += 1
    fresh = str(turn.state["n"])
    turn.state["tokens"][fresh] = joined
    turn.state["ready"].append(fresh)
    return True


def _is_stranger(join: Join, token: TokenState) -> bool:
    """A token of a step that the join does not name runs its step by itself."""
    return bool(join.sources) and token.get("from") not in join.sources


def _complete(join: Join, tracker: Gathering) -> bool:
    if join.mode == "any":
        return True
    if join.mode == "count":
        return len(tracker["tokens"]) >= join.count
    return _all_came(join, tracker)


def _all_came(join: Join, tracker: Gathering) -> bool:
    return all(source in tracker["from"] for source in join.sources)


def _in_order(join: Join, tracker: Gathering) -> list[Collected]:
    order = {source: index for index, source in enumerate(join.sources)}
    return sorted(tracker["tokens"], key=lambda item: order.get(item["from"] or "", len(order)))


def _drop(turn: Turn, step: str, key: str) -> None:
    trackers = turn.state["joins"][step]
    del trackers[key]
    if not trackers:
        del turn.state["joins"][step]


def incomplete(state: PlaybookState) -> list[str]:
    """Steps whose join still waits for a token."""
    return [
        step
        for step in sorted(state["joins"])
        if any(not t.get("fired") for t in state["joins"][step].values())
    ]
