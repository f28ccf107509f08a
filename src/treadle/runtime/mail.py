"""Mailboxes: one per run that has something to do, and the ring in which they take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from .ports import Item


class Mail:
    def __init__(self) -> None:
        self._boxes: dict[str, deque[Item]] = {}
        self._ready: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __iter__(self) -> Iterator[Item]:
        for box in self._boxes.values():
            yield from box

    def post(self, item: Item, *, front: bool = False) -> None:
        box = self._boxes.get(item.run)
        if box is None:
            box = self._boxes[item.run] = deque()
            self._ready.append(item.run)
        if front:
            box.appendleft(item)
        else:
            box.append(item)

    def head(self, run: str) -> Item | None:
        box = self._boxes.get(run)
        return box[0] if box else None

    def take(self) -> Item:
        """The next event of the run whose turn it is; the run goes to the end of the ring."""
        run = self._ready.popleft()
        box = self._boxes[run]
        item = box.popleft()
        if box:
            self._ready.append(run)
        else:
            del self._boxes[run]
        return item

    def put_back(self, item: Item) -> None:
        """Undoes a `take`: first in its box, and next to have a turn."""
        self.post(item, front=True)
        self._ready.remove(item.run)
        self._ready.appendleft(item.run)

    def discard(self, unwanted: Callable[[Item], bool]) -> None:
        for run, box in list(self._boxes.items()):
            kept = deque(item for item in box if not unwanted(item))
            if kept:
                self._boxes[run] = kept
            else:
                del self._boxes[run]
                self._ready.remove(run)
