"""How those are answered who wait: a coroutine on the event loop, or a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.runtime.ports import Ack, Answer


class LoopAck:
    """Answers a coroutine; many of them travel to the event loop in one hop."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def __call__(self, value: Any, error: TreadleError | None) -> None:
        if not self.future.done():
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)


def blocking_ack(future: concurrent.futures.Future[Any]) -> Ack:
    """Answers a thread that waits."""

    def ack(value: Any, error: TreadleError | None) -> None:
        if future.done():
            return  # it was told that its core is over
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    return ack


def answer_all(answers: list[Answer]) -> None:
    for ack, value, error in answers:
        ack(value, error)
