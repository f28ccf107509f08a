"""Frames and checkpoints on their way into the store: rows beside the journal, written behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.errors import PASSING
from treadle.kernel.model import Frame
from treadle.kernel.values import encode

from .commands import CheckpointSaved, FrameSent, Progress
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
            core.show(hot, {"type": progress.type, **progress.data})
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
