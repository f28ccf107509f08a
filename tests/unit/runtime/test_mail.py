"""Mailboxes, and the ring of those that have something to do."""

from __future__ import annotations

from treadle.kernel.model import Signal
from treadle.runtime.commands import Deliver
from treadle.runtime.mail import Mail
from treadle.runtime.shards import Held


class Counted(str):
    """An id that says when it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_runs_that_are_barred_at_their_turn_are_not_looked_for_among_all_others() -> None:
    """Thousands may need the same code, one after the other."""
    mail = Mail(Held(1, {0}), lambda: None)
    count = 1000
    for number in range(count):
        mail.post(Deliver(Counted(f"run {number}"), Signal(name="go")))
    Counted.compared = 0
    for _ in range(count):
        item = mail.take()
        mail.post(item, front=True)
        mail.bar_run(item.run)
    assert not mail.ready
    assert Counted.compared < 10 * count
    mail.unbar_all()
    assert [mail.take().run for _ in range(count)] == [f"run {number}" for number in range(count)]
