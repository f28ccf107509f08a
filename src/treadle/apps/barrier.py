"""An application's cells over several members: nobody decides one by old code once a new manifest is active.

Where one process decides all cells an apply is one commit. Where several do, it is a barrier:

1. **close**: the application's run notes that its cells take no events, for a while at most. Whoever decides a cell
   looks there with each event, so that events wait from then on, wherever they are and whoever takes a shard over.
2. **settle**: everybody who holds shards is asked. What was decided before is durable by then; what is in the way is
   told, or every cell gets its snapshot. The answer names the shards that it is for, until all have answered.
3. **apply**: the application's run moves to the new manifest, and with the same record its cells are open again. Where
   somebody refused, it only opens them.

If whoever drives this dies in between, the cells are open again when their time is over; an apply that would come after
it is refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.governance import ApplyBlocked, closed_until, is_closed_by
from treadle.kernel.errors import PASSING, InputInvalid, TreadleError
from treadle.kernel.values import Value
from treadle.runtime.commands import Operate

from . import cells

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk, Handing


# How long cells may be closed; and how far the clocks of two members may be apart (a server that is further off is not
# ready).
CLOSED_NS: Final = 60 * 10**9
SKEW_NS: Final = 10 * 10**9
# How often everybody is asked, while shards move.
ROUNDS_MAX: Final = 50
_ROUND_S: Final = 0.1
BARRIER: Final = "barrier"
# In the details of a refusal: the shards are not in one hand.
SEVERAL: Final = "several"


class BarrierHome(Protocol):
    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any: ...
    def homes(self) -> list[str]: ...


# --- whoever drives it ----------------------------------------------------------------------------------


async def apply(engine: BarrierHome, asked: dict[str, Any], *, token: str) -> None:
    """Applies a manifest: in one commit where one member decides all cells, else over all of them, who know this apply
    by its token."""
    try:
        await engine.operate("apply", asked, home=asked["app"])
    except TreadleError as error:
        if not (error.code == ApplyBlocked.code and error.details.get(SEVERAL)):
            raise
        await _over_members(engine, {**asked, "token": token})


async def _over_members(engine: BarrierHome, about: dict[str, Any]) -> None:
    home = str(about["app"])
    await engine.operate(BARRIER, {**about, "do": "close"}, home=home)
    try:
        await _everywhere(engine, {**about, "do": "settle"})
        await engine.operate("apply", about, home=home)
    except BaseException:
        await asyncio.shield(_open(engine, {**about, "do": "open"}, home))
        raise


async def _everywhere(engine: BarrierHome, body: dict[str, Any]) -> None:
    """Asks everybody who holds shards, until each shard was asked in somebody's hands."""
    agreed: set[int] = set()
    for _ in range(ROUNDS_MAX):
        asking = (engine.operate(BARRIER, body, home=home) for home in engine.homes())
        answers = await asyncio.gather(*asking)
        for answer in answers:
            agreed.update(answer["shards"])
        if len(agreed) == answers[0]["of"]:
            return
        await asyncio.sleep(_ROUND_S)
    raise ApplyBlocked("shards keep moving between members; try again", details={"blockers": []})


async def _open(engine: BarrierHome, body: dict[str, Any], home: str) -> None:
    """Opens the cells again, if the store lets us; else they open by themselves, and events wait until then."""
    for _ in range(ROUNDS_MAX):
        try:
            await engine.operate(BARRIER, body, home=home)
        except PASSING:
            await asyncio.sleep(_ROUND_S)
        except TreadleError:
            return
        else:
            return


# --- on the core thread of each -------------------------------------------------------------------------


def perform(
    desk: Handing, asked: Operate, code: Callable[[str], App], current: Callable[[str], App | None]
) -> Any:
    """`code` gives the application of a manifest, `current` that which is active under a name."""
    body = asked.body
    name = str(body["app"])
    match body["do"]:
        case "close":
            _check_open(desk, name, body["token"])
            # Who asks may say for how long: no message keeps cells closed for longer than a driver that lives does.
            until = desk.clock.now_ns() + min(int(body.get("closed_ns", CLOSED_NS)), CLOSED_NS)
            data = {"op": "close", "token": body["token"], "until_ns": until}
            return cells.govern(desk, current(name) or code(body["manifest"]), data, asked)
        case "settle":
            new = _at_hand(code, name, body["manifest"])
            if not is_closed_by(_books(desk, name), body["token"]):
                raise ApplyBlocked(f"the cells of {name} are open again; try again", details={"blockers": []})
            _hold_all(desk)
            cells.settle(desk, current(name), new)
            return {"shards": sorted(desk.store.held), "of": desk.store.shards}
        case "open":
            data = {"op": "open", "token": body["token"]}
            return cells.govern(desk, current(name) or code(body["manifest"]), data, asked)
        case what:
            raise InputInvalid(f"no part {what!r} of a barrier is known")


def check(desk: Desk, name: str, token: Value) -> None:
    """Whether an apply may be decided now: all cells are decided here, or everybody has agreed."""
    _hold_all(desk)
    if desk.held.all and token is None:
        return
    books = _books(desk, name)
    if books is None and token is None:
        return  # it has no cells yet
    if token is None:
        raise ApplyBlocked(
            f"the cells of {name} are decided by several members, which have to be asked",
            details={"blockers": [], SEVERAL: True},
        )
    if not is_closed_by(books, token) or closed_until(books) - SKEW_NS < desk.clock.now_ns():
        raise ApplyBlocked(
            f"it took too long to ask the members for the cells of {name}; try again",
            details={"blockers": []},
        )


def _check_open(desk: Desk, name: str, token: Value) -> None:
    books = _books(desk, name)
    if closed_until(books) > desk.clock.now_ns() and not is_closed_by(books, token):
        raise ApplyBlocked(
            f"another manifest of {name} is being applied; wait for it",
            details={"blockers": [{"run": name, "reason": "has queued events"}]},
        )


def _at_hand(code: Callable[[str], App], name: str, manifest: str) -> App:
    """The new code, which everybody who decides cells has to have."""
    try:
        return code(manifest)
    except TreadleError as error:
        lacks = f"does not have this code at {socket.gethostname()}:{os.getpid()}; start that one with --app FILE:ATTR"
        raise ApplyBlocked(
            f"{name} {lacks}", details={"blockers": [{"run": name, "reason": lacks}], "code": error.code}
        ) from error


def _books(desk: Desk, name: str) -> Value:
    hot = desk.hot.get(name)
    return None if hot is None else hot.state.state


def _hold_all(desk: Desk) -> None:
    """What is said of all that is decided here holds only if it still is."""
    if desk.held.several:
        desk.batch.shards.update(desk.store.held)
