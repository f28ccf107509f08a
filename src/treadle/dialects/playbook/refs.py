"""The labels that the machine gives its intents, built and read in this one place.

A label names the token, the iteration where there is one, and what the intent is for: `7` is the step-run of
token 7, `7.3` its iteration 3, `7.3!on` what that iteration waits for, `7!due` the end of its lifecycle.
Journals hold them as text.
"""

from __future__ import annotations

from typing import Final, Literal, cast

import msgspec
from msgspec.structs import replace

Mark = Literal["", "due", "on", "lease", "keychain", "args", "keep"]


class Ref(msgspec.Struct, frozen=True):
    """`mark` says what for: the work itself (""), the lifecycle's end (`due`), what a pipeline waits for (`on`), a
    lease of iterations (`lease`), the proof of the keychain (`keychain`). 0.1.0 also had arguments rendered by a
    worker (`args`) and chunks of results kept by one (`keep`, counted by `part`)."""

    token: str
    iteration: int | None = None
    mark: Mark = ""
    part: int | None = None

    def __str__(self) -> str:
        head = self.token if self.iteration is None else f"{self.token}.{self.iteration}"
        tail = self.mark if self.part is None else f"{self.mark}{self.part}"
        return f"{head}!{tail}" if tail else head

    @classmethod
    def parse(cls, text: str) -> Ref:
        if text.isdigit():  # the step-run of a token, as most are
            return cls(text)
        head, _, tail = text.partition("!")
        token, _, index = head.partition(".")
        iteration = int(index) if index else None
        if tail.startswith("keep"):
            return cls(token, iteration, "keep", int(tail[4:]))
        return cls(token, iteration, cast("Mark", tail))

    @property
    def base(self) -> Ref:
        """The work that it stands beside."""
        return replace(self, mark="", part=None)

    def marked(self, mark: Mark, part: int | None = None) -> Ref:
        return replace(self, mark=mark, part=part)


KEYCHAIN: Final = Ref("", mark="keychain")
