"""Planted bugs of what is promised to those who call, and to those who are called: calls that meet, messages that are read
strictly, work that must not be repeated, keys, code that comes late. See `canaries.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from treadle.kernel.values import Value, decode_trusted
from treadle.runtime import commands, recovery
from treadle.runtime.commands import CheckpointSaved, Deliver
from treadle.runtime.fetching import Fetching, NotAtHand
from treadle.runtime.hot import Hot
from treadle.runtime.intake import ProgressQueue
from treadle.runtime.mail import Mail
from treadle.runtime.opened import OpenReads
from treadle.runtime.ports import Work
from treadle.runtime.staging import Answers
from treadle.store.run_rows import RunRow

from .process import SimProcess


@contextlib.contextmanager
def looked_at_when_it_came() -> Iterator[None]:
    """Whether a run is at the version that a caller expects is looked at when the call comes, and not when it is decided."""
    take_over = SimProcess.take_over

    def hasty(process: SimProcess) -> None:
        take_over(process)
        core = process.core
        accept, take = core.accept, core._intake._inbox._take

        def looked(command: Any) -> Any:
            if isinstance(command, Deliver) and command.expected_version is not None:
                hot = core.hot.peek(command.run)
                if hot is not None and hot.state.seq == command.expected_version:
                    command.expected_version = None
            return command

        core.accept = lambda command: accept(looked(command))
        core._intake._inbox._take = lambda command: take(looked(command))  # type: ignore[method-assign]  # the bug is planted in this one

    with patch.object(SimProcess, "take_over", hasty):
        yield


@contextlib.contextmanager
def who_comes_late_is_told_nothing_of_it() -> Iterator[None]:
    """Of two who complete a task, or steer a run that ends, each is told that it was the one."""
    settle = Answers.settle

    def plain(answers: Answers, asked: Any, value: Any, error: Any) -> None:
        if isinstance(value, dict):
            value = {name: part for name, part in value.items() if name != "stale"}
        settle(answers, asked, value, error)

    with patch.object(Answers, "settle", plain):
        yield


@contextlib.contextmanager
def messages_of_others_read_as_our_own() -> Iterator[None]:
    """Another process may say what only a run and its engine say to each other."""
    with patch.object(commands, "_check_foreign", lambda item: None):
        yield


@contextlib.contextmanager
def what_is_unknown_is_passed_over() -> Iterator[None]:
    """A message with a field that nobody knows is taken without it."""

    class Lax(commands._Delivery, kw_only=True, forbid_unknown_fields=False):
        pass

    with patch.object(commands, "_Delivery", Lax):
        yield


@contextlib.contextmanager
def any_bytes_are_a_message() -> Iterator[None]:
    """Bytes of a message are read, however they are written."""

    def trusting(body: bytes, *, levels: int) -> Value:
        return decode_trusted(body)

    with patch.object(commands, "decode", trusting):
        yield


@contextlib.contextmanager
def begun_before_its_mark_is_durable() -> Iterator[None]:
    """Who marks a call as begun is told at once that it is marked, and calls."""
    save = ProgressQueue._save

    def hasty(queue: ProgressQueue, hot: Hot, saved: CheckpointSaved) -> None:
        save(queue, hot, replace(saved, ack=None))
        if saved.ack is not None:
            saved.ack({}, None)

    with patch.object(ProgressQueue, "_save", hasty):
        yield


@contextlib.contextmanager
def another_key_after_a_crash() -> Iterator[None]:
    """Work that is handed out again has no key of its own any more, but that of its intent."""
    open_work = recovery._open_work

    def forgetful(row: RunRow, reads: OpenReads) -> tuple[list[Work], bool]:
        works, owes = open_work(row, reads)
        return [replace(work, intent=replace(work.intent, idempotency_key=None)) for work in works], owes

    with patch.object(recovery, "_open_work", forgetful):
        yield


@contextlib.contextmanager
def code_that_comes_late_is_waited_for_without_end() -> Iterator[None]:
    """What could not be loaded the first time is taken to be still on its way."""
    load = Fetching._load

    def silent(fetching: Fetching, lacking: NotAtHand) -> None:
        with contextlib.suppress(ImportError):
            lacking.load()
            load(fetching, lacking)

    with patch.object(Fetching, "_load", silent):
        yield


@contextlib.contextmanager
def barred_until_the_code_came_and_longer() -> Iterator[None]:
    """Runs that waited for code are not let in again when it is there."""
    with patch.object(Mail, "unbar_all", lambda mail: None):
        yield


# What breaks with one core and with several.
CALL_CANARIES = (
    looked_at_when_it_came,
    who_comes_late_is_told_nothing_of_it,
    messages_of_others_read_as_our_own,
    what_is_unknown_is_passed_over,
    any_bytes_are_a_message,
    begun_before_its_mark_is_durable,
    another_key_after_a_crash,
    code_that_comes_late_is_waited_for_without_end,
    barred_until_the_code_came_and_longer,
)
