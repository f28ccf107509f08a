"""Frames and checkpoints on their way into the store: rows beside the journal, written behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from treadle.kernel.errors import PASSING
from treadle.kernel.model import Frame
from treadle.kernel.roles import StreamingMachine
from treadle.kernel.values import encode

from .answers import Answers
from .commands import LATE, CheckpointSaved, FrameSent, Progress
from .hot import Hot, HotRuns
from .mail import Mail
from .narrative import frame_event
from .ports import Answer, Item
from .shards import Held
from .staging import Staging


class ProgressQueue:
    def __init__(self, hot: HotRuns, staging: Staging, answers: Answers, mail: Mail) -> None:
        self._hot = hot
        self._staging = staging
        self._answers = answers
        self._mail = mail
        self.waiting: deque[Progress] = deque()

    def add(self, progress: Progress) -> None:
        hot = self._hot.peek(progress.run)
        if isinstance(progress, FrameSent) and progress.type != LATE and hot and _wants_frames(hot):
            # An event of the run like any other: it keeps its place before the receipt.
            self._mail.post(_as_event(progress))
        else:
            self.waiting.append(progress)

    def drop_foreign(self, held: Held) -> list[Answer]:
        """Shards were lost: what those are told who wait for a checkpoint there."""
        foreign = [progress for progress in self.waiting if not held.holds(progress.run)]
        self.waiting = deque(progress for progress in self.waiting if held.holds(progress.run))
        return stale(foreign)

    def put_back(self, progress: Sequence[Progress]) -> None:
        self.waiting.extendleft(reversed(progress))

    def stage_next(self) -> None:
        """Stages what an intent's work has come to; of an intent that is not open any more, nothing."""
        progress = self.waiting.popleft()
        self._staging.staged.progress.append(progress)
        self._staging.belongs(progress.run)
        try:
            hot = self._hot.get(progress.run)
        except PASSING:
            raise
        except Exception:  # a run that cannot be loaded: its events say so, its progress can wait
            hot = None
        if hot is None or progress.intent not in hot.state.open:
            self._note_late(hot, progress)
        elif isinstance(progress, FrameSent):
            if progress.type == LATE:
                return  # its work is in other hands now, and that of these hands is no matter
            if _wants_frames(hot):
                self._mail.post_frame(_as_event(progress), progress.intent)
            else:
                self._staging.show(hot, frame_event(progress.type, progress.data))
        else:
            self._save(hot, progress)

    def _note_late(self, hot: Hot | None, progress: Progress) -> None:
        if isinstance(progress, CheckpointSaved):
            if progress.ack is not None:
                self._answers.tell(progress.ack, {"stale": True}, None)
        elif hot is not None and progress.type == LATE:
            self._answers.note_stale(hot, "receipt.stale", {"intent": progress.intent})
        elif hot is not None:
            about = {"intent": progress.intent, "seq": progress.seq}
            self._staging.diagnose(progress.run, "stream.unknown_intent", about)

    def _save(self, hot: Hot, saved: CheckpointSaved) -> None:
        for event in saved.events:
            self._staging.show(hot, event)
        self._staging.touch(hot)
        self._staging.hold(hot, saved.blobs)
        self._staging.batch.checkpoints[saved.intent] = (hot.no, encode(saved.body))
        hot.checkpoints.add(saved.intent)
        if saved.ack is not None:
            self._answers.tell(saved.ack, {}, None)


def stale(progress: Sequence[Progress]) -> list[Answer]:
    """What those are told whose work is not wanted here any more."""
    saved = [one for one in progress if isinstance(one, CheckpointSaved)]
    return [(one.ack, {"stale": True}, None) for one in saved if one.ack is not None]


def _as_event(sent: FrameSent) -> Item:
    """For machines that decide on frames."""
    return Item(sent.run, Frame(intent=sent.intent, seq=sent.seq, type=sent.type, value=sent.data))


def _wants_frames(hot: Hot) -> bool:
    machine = hot.machine
    return isinstance(machine, StreamingMachine) and machine.wants_frames(hot.definition)
