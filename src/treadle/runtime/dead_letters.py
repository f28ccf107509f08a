"""What workers sent back and nobody could use: kept, looked at, offered again, or thrown away by people.

A letter is a row beside the runs: its intent failed when it came. Where the intent is open all the same (it was kept
by another release, or by hand) its work is offered once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.kernel.values import Value, encode
from treadle.lang.duration import instant_text
from treadle.store.figures import DEAD_LETTER

from . import document

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


# The kind of documents that say what became of letters, and how long they do.
DONE: Final = "deadletter.done"
# What is said of workers that sent what was not theirs to send, or what nobody waits for any more.
NOTED: Final = frozenset({"receipt.forged", "receipt.stale"})
KEPT_NS: Final = 30 * 24 * 3_600 * 10**9
_FORGOTTEN_AT_ONCE_MAX: Final = 1_000


def listed(reads: Reads) -> list[Value]:
    """All of them, newest first."""
    return [body for _, body in reads.documents(DEAD_LETTER)][::-1]


def shown(reads: Reads, id: str) -> dict[str, Value]:
    found = reads.document(DEAD_LETTER, id)
    if found is None:
        done = reads.document(DONE, id)
        why = (
            f"there is no dead letter {id!r}"
            if done is None
            else f"the dead letter {id!r} was {done} already"
        )
        raise InputInvalid(why, code="DEAD_LETTER_NOT_FOUND")
    return dict(found)


def perform(desk: Desk, body: dict[str, Value]) -> dict[str, Value] | None:
    """What a worker sent is kept, or noted if it was not its to send, or too late; people deal with what was kept."""
    match body["op"]:
        case "keep":
            _keep(desk, str(body["id"]), dict(body["row"]))
        case "note":
            if body["code"] not in NOTED:
                raise InputInvalid(f"{body['code']!r:.40} is not said of workers")
            desk.diagnose("", str(body["code"]), {"worker": body["worker"], "intent": body["intent"]})
        case _:
            return _deal(desk, body)
    return None


def _keep(desk: Desk, id: str, row: dict[str, Value]) -> None:
    now = desk.clock.now_ns()
    desk.batch.documents.append((DEAD_LETTER, id, now, encode({"id": id, "at": instant_text(now), **row})))


def _deal(desk: Desk, body: dict[str, Value]) -> dict[str, Value]:
    """`replay` offers the intent again, if it is open; either way the letter is done with. Whatever becomes of it is
    decided where its run is, so that it is done with once."""
    id = str(body["id"])
    letter = shown(desk.store, id)
    if body["op"] == "replay":
        run = str(letter["run"])
        state, _ = document.state_at(desk.store, desk.registry, run)
        if letter["intent"] not in state.open:
            raise TreadleError(
                f"the intent of this letter is not open any more; see `treadle show {run}`",
                code="INTENT_NOT_OPEN",
                cls="consistency",
            )
        desk.offer_again([run], [str(letter["intent"])])
    done = "replayed" if body["op"] == "replay" else "discarded"
    desk.batch.documents.append((DEAD_LETTER, id, 0, None))
    desk.batch.documents.append((DONE, id, desk.clock.now_ns(), encode(done)))
    return {"id": id, "run": letter["run"], "intent": letter["intent"], done: True}


def forget_old(desk: Desk, now_ns: int) -> None:
    """What became of letters long ago."""
    for id in desk.store.documents_before(DONE, now_ns - KEPT_NS, _FORGOTTEN_AT_ONCE_MAX):
        desk.batch.documents.append((DONE, id, 0, None))
