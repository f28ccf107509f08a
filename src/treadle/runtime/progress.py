"""Frames and checkpoints on their way into the store: rows beside the journal, written behind. And how
events, of the journal or beside it, are numbered and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING
from treadle.kernel.model import Frame
from treadle.kernel.values import encode
from treadle.lang.duration import instant_text

from .commands import CheckpointSaved, FrameSent, Progress
from .narrative import frame_event
from .ports import Item

if TYPE_CHECKING:
    from .core import Core


def note(core: Core, progress: Progress) -> None:
    """Stages what an intent's work has come to; of an intent that is not open any more, nothing."""
    core.staged.progress.append(progress)
    try:
        hot = core.hot.get(progress.run)
    except PASSING:
        raise
    except Exception:  # a run that cannot be loaded: its events say so, its progress can wait
        hot = None
    if hot is None or progress.intent not in hot.state.open:
        if isinstance(progress, CheckpointSaved) and progress.ack is not None:
            core.staged.answers.append((progress.ack, {"stale": True}, None))
        elif hot is not None and isinstance(progress, FrameSent):
            about = {"intent": progress.intent, "seq": progress.seq}
            core.diagnose(progress.run, "stream.unknown_intent", about)
        return
    if isinstance(progress, FrameSent):
        if hot.machine.wants_frames(hot.definition):
            core.post(as_event(progress))
        else:
            core.show(hot, frame_event(progress.type, progress.data))
        return
    for event in progress.events:
        core.show(hot, event)
    core.stage_blobs(hot, progress.blobs)
    core.staged.batch.checkpoints[progress.intent] = (hot.no, encode(progress.body))
    hot.checkpoints.add(progress.intent)
    if progress.ack is not None:
        core.staged.answers.append((progress.ack, {}, None))


def as_event(sent: FrameSent) -> Item:
    """For machines that decide on frames."""
    return Item(sent.run, Frame(intent=sent.intent, seq=sent.seq, type=sent.type, value=sent.data))


def numbered(events: list[dict[str, Any]], first_no: int, seq: int, at_ns: int) -> list[dict[str, Any]]:
    """Events as people see them: their own number, the time, the record they stand in."""
    at = instant_text(at_ns)
    return [shown(event, first_no + i, at, seq) for i, event in enumerate(events)]


def shown(event: dict[str, Any], number: int, at: str, record: int | None) -> dict[str, Any]:
    """One event under its number, which no field of its own can replace."""
    own = {"seq": number, "at": at, "record": record}
    return {**own, **event, **own}
